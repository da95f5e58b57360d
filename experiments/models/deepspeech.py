"""The speech recogniser of the LSTM-AN4 benchmark: two convolutions, unidirectional LSTMs, a look ahead, letters."""

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SizeT = TypeVar("SizeT", int, Tensor)
AHEAD = 20  # frames the lookahead sees, each two hops of the spectrogram long


def halved(size: SizeT) -> SizeT:
    """Frames or bins after a convolution of stride 2, padded by half its kernel."""
    return (size + 1) // 2


def clipped(x: Tensor) -> Tensor:
    return F.hardtanh(x, 0.0, 20.0)


def normed(norm: nn.Module, x: Tensor, places: Tensor) -> Tensor:
    """`norm` over the true frames alone, zero elsewhere; (T', B, …), `places` of the true ones among T' x B."""
    frames = norm(x.flatten(0, 1).index_select(0, places))
    return frames.new_zeros((x.shape[0] * x.shape[1], *x.shape[2:])).index_copy(0, places, frames).view(x.shape)


class DeepSpeech(nn.Module):
    """Spectrograms to letters, frame by frame; an utterance's letters do not depend on what it is padded with.

    43,476,256 parameters at 161 bins, 32 channels, five layers of 1024 and 29 labels; weights as torch draws them.
    Every batch norm sees the true frames of the batch alone and everything behind an utterance's end is zero, in
    training too. The LSTMs run over the padding all the same: they look only back, so nothing before it changes, and
    a packed sequence takes two to four times as long on a CPU.

    Source: Amodei et al., Deep Speech 2 (arXiv 1512.02595), sec. 3; layers and sizes as in deepspeech.pytorch, which
    the paper's code takes them from. Differs from that code: its batch norms count the zeros of the padding in.
    """

    def __init__(self, bins: int, labels: int, channels: int = 32, hidden: int = 1024, layers: int = 5) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, (41, 11), stride=(2, 2), padding=(20, 5))
        self.norm1 = nn.BatchNorm1d(channels)
        self.conv2 = nn.Conv2d(channels, channels, (21, 11), stride=(2, 1), padding=(10, 5))
        self.norm2 = nn.BatchNorm1d(channels)
        widths = [channels * halved(halved(bins)), *[hidden] * (layers - 1)]
        self.lstms = nn.ModuleList(nn.LSTM(width, hidden) for width in widths)
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in widths[1:])  # before every layer but the first
        self.lookahead = nn.Conv1d(hidden, hidden, AHEAD + 1, groups=hidden, bias=False)
        self.norm = nn.BatchNorm1d(hidden)
        self.linear = nn.Linear(hidden, labels, bias=False)

    def forward(self, spectrograms: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, bins, T) and (B,) true frames -> logits (T', B, labels) and (B,) true frames of theirs, T' about T / 2.

        Logits behind an utterance's end mean nothing.
        """
        lengths = halved(lengths)
        x = self.conv1(spectrograms[:, None])  # (B, channels, bins / 2, T')
        mask = torch.arange(x.shape[3], device=x.device) < lengths[:, None]  # (B, T')
        places = mask.t().flatten().nonzero().squeeze(1)  # of true frames; waits for the device, once a step
        x = clipped(normed(self.norm1, x.permute(3, 0, 1, 2), places))
        x = self.conv2(x.permute(1, 2, 3, 0))
        x = clipped(normed(self.norm2, x.permute(3, 0, 1, 2), places)).flatten(2)  # (T', B, features)
        x, _ = self.lstms[0](x)
        for norm, lstm in zip(self.norms, self.lstms[1:], strict=True):
            x, _ = lstm(normed(norm, x, places))
        x = (x * mask.t()[:, :, None]).permute(1, 2, 0)  # (B, hidden, T')
        x = clipped(self.lookahead(F.pad(x, (0, AHEAD)))).permute(2, 0, 1)
        return self.linear(normed(self.norm, x, places)), lengths
