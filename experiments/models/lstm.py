"""The word-level language model of the LSTM-PTB benchmark."""

from torch import Tensor, nn

Carry = tuple[Tensor, Tensor]  # hidden and cell state, each (layers, B, hidden)


class LSTMLanguageModel(nn.Module):
    """Embedding, LSTM, linear layer to the vocabulary; input and output weights are not tied.

    66,034,000 parameters at 10,000 symbols, embedding and hidden 1500, two layers (torch's LSTM has two bias vectors
    per layer). Dropout after the embedding, between the layers and after the last one.

    Source: PyTorch's word_language_model example, whose recipe (1500 units, dropout 0.65, 35 steps, clip 0.25) the
    benchmark follows: embedding and output weights uniform in [-0.1, 0.1], output bias 0, LSTM as torch draws it.
    That the paper draws its weights this way too is recollection, not checked.
    """

    def __init__(
        self, symbols: int, embedding: int = 1500, hidden: int = 1500, layers: int = 2, dropout: float = 0.65
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, dropout=dropout if layers > 1 else 0.0)
        self.linear = nn.Linear(hidden, symbols)
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.linear.weight, -0.1, 0.1)
        nn.init.zeros_(self.linear.bias)

    def forward(self, tokens: Tensor, carry: Carry | None = None) -> tuple[Tensor, Carry]:
        """Tokens (T, B) and the state they start from (None: zeros) -> logits (T, B, symbols) and the state after."""
        out, after = self.lstm(self.dropout(self.embedding(tokens)), carry)
        return self.linear(self.dropout(out)), after
