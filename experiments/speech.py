"""The speech task: letters out of spectrograms, by connectionist temporal classification."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.data import Batch
from experiments.data.speech import LETTERS
from experiments.tasks import evaluating


def alignable(frames: Tensor, letters: Tensor, lengths: Tensor) -> Tensor:
    """(B,) bool: has an utterance letters at all, and frames enough for them and a blank between equal ones?

    `frames` (B,); `letters` (B, S), padded with 0; `lengths` (B,) of theirs.
    """
    repeats = ((letters[:, 1:] == letters[:, :-1]) & (letters[:, 1:] > 0)).sum(1)
    return (lengths > 0) & (frames >= lengths + repeats)


def spelt(labels: Iterable[int]) -> str:
    return "".join(LETTERS[label] for label in labels)


def decoded(logits: Tensor, frames: Tensor) -> list[str]:
    """The likeliest label of each frame, repetitions and blanks dropped; (T, B, labels), (B,)."""
    best = logits.argmax(2).t().tolist()
    texts = []
    for labels, count in zip(best, frames.tolist(), strict=True):
        kept = [label for label, before in zip(labels[:count], [0, *labels], strict=False) if label not in (0, before)]
        texts.append(spelt(kept))
    return texts


@dataclass(frozen=True)
class SpeechRecognition:
    """Letters from speech. Character and word error rates in per cent, of greedy decoding over all batches.

    The loss is the mean, over the utterances that can be aligned, of the negative log likelihood of the transcript in
    nats, as in the authors' code. Those that cannot (a transcript longer than the frames, or empty) are left out and
    counted: the carried state.

    Rates are errors over all letters (spaces too) or words, by jiwer. Differs from the authors' code: it averages each
    utterance's own rate, and leaves spaces out of the characters.
    """

    metric: ClassVar[str] = "cer"
    higher_is_better: ClassVar[bool] = False
    unit: ClassVar[str] = "utterances"

    def loss(self, model: nn.Module, batch: Batch, carry: Tensor | None) -> tuple[Tensor, Tensor]:
        spectrograms, sizes, letters, lengths = batch
        logits, frames = model(spectrograms, sizes)
        fit = alignable(frames, letters, lengths)
        log_probs = F.log_softmax(logits.float(), dim=2)  # half precision would lose the small ones
        losses = F.ctc_loss(log_probs, letters, frames, lengths, reduction="none", zero_infinity=True)
        skipped = (~fit).sum() + (0 if carry is None else carry)
        return torch.where(fit, losses, 0.0).sum() / fit.sum().clamp(min=1), skipped

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        import jiwer  # here, because steps should not wait for it

        said: list[str] = []
        heard: list[str] = []
        with evaluating(model):
            for spectrograms, sizes, letters, lengths in batches:
                heard += decoded(*model(spectrograms, sizes))
                said += [spelt(row[:count]) for row, count in zip(letters.tolist(), lengths.tolist(), strict=True)]
        if not any(said):
            raise ValueError("evaluate: expected at least one transcript, got none; the validation set is too small")
        return {"cer": 100 * jiwer.cer(said, heard), "wer": 100 * jiwer.wer(said, heard)}

    def count(self, batch: Batch) -> int:
        return len(batch[0])

    def summary(self, carries: Sequence[Tensor | None]) -> dict[str, float]:
        """Utterances left out so far; of real ranks, those of the one that writes."""
        return {"skipped_utterances": sum(int(skipped) for skipped in carries if skipped is not None)}
