"""Speech and its letters: utterances of unequal length, end to end in memory, batched with others of their length."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.data import Batch
from experiments.data.cache import Arrays, CachedData
from experiments.data.images import generator

LETTERS = "_'ABCDEFGHIJKLMNOPQRSTUVWXYZ "  # the first is CTC's blank, in no transcript
INDEX = {letter: place for place, letter in enumerate(LETTERS[1:], start=1)}
RATE = 16_000  # samples a second
WINDOW, HOP = RATE // 50, RATE // 100  # 20 ms, 10 ms
BINS = WINDOW // 2 + 1
Split = Literal["train", "valid"]
Utterance = tuple[np.ndarray, str]  # (samples,) int16, its transcript in LETTERS


def spectrogram(samples: Tensor) -> Tensor:
    """(samples,) int16 -> (BINS, samples // HOP + 1): log of 1 + magnitude, of zero mean and unit deviation.

    Source: deepspeech.pytorch, which the paper's code takes it from: 20 ms Hamming windows every 10 ms.
    """
    window = torch.hamming_window(WINDOW)
    spectrum = torch.stft(samples / 2**15, WINDOW, HOP, window=window, pad_mode="constant", return_complex=True)
    levels = spectrum.abs().log1p()
    return (levels - levels.mean()) / (levels.std() + 1e-6)  # silence stays zero


@dataclass(frozen=True, kw_only=True)
class Speech(CachedData):
    """Utterances cached as samples and letters; a batch is (spectrograms, their lengths, letters, their lengths).

    Shapes (B, BINS, T), (B,) frames, (B, S), (B,) letters, padded with zeros. Training utterances are sorted by
    duration; W * B neighbours make a global batch, dealt out in turn, so that no rank has the longer ones. An epoch
    leaves out the remainder: some of the shortest and of the longest, drawn anew from (seed, epoch). The first epoch
    goes from the shortest batch to the longest; later ones are shuffled batch by batch.

    Source: Amodei et al., Deep Speech 2 (arXiv 1512.02595), sec. 3.2 ("SortaGrad"). Differs from the authors' code: it
    goes from short to long in every epoch, gives each rank batches of another length, and blots out parts of the
    training spectrograms (SpecAugment).
    """

    bins: int = BINS
    labels: int = len(LETTERS)

    def __post_init__(self) -> None:
        if (self.bins, self.labels) != (BINS, len(LETTERS)):
            raise ValueError(
                f"{type(self).__name__}: expected dataset.bins={BINS} and dataset.labels={len(LETTERS)}, which follow "
                f"from the spectrogram and the alphabet, got {self.bins} and {self.labels}: leave them alone"
            )

    @abstractmethod
    def utterances(self, split: Split) -> list[Utterance]:
        """All of a split, in an order that does not depend on the machine."""

    def build(self) -> Arrays:
        train = sorted(self.utterances("train"), key=lambda utterance: len(utterance[0]))
        valid = self.utterances("valid")
        # shuffled once and for all: listed by speaker, the first batches of validation would hold few voices
        valid = [valid[place] for place in np.random.default_rng(0).permutation(len(valid))]
        return _joined("train", train) | _joined("valid", valid)

    def train_batches(self, rank: int, world_size: int, batch_size: int, epoch: int, seed: int) -> Iterator[Batch]:
        steps, whole = self.steps_per_epoch(world_size, batch_size), world_size * batch_size
        draws = generator(seed, epoch)
        first = int(torch.randint(self._count("train") - steps * whole + 1, (), generator=draws))
        order = torch.randperm(steps, generator=draws) if epoch else torch.arange(steps)
        for step in order.tolist():
            start = first + step * whole
            yield self._batch("train", range(start + rank, start + whole, world_size))

    def valid_batches(self, batch_size: int) -> Iterator[Batch]:
        count = self._count("valid")
        for start in range(0, count, batch_size):
            yield self._batch("valid", range(start, min(start + batch_size, count)))

    def steps_per_epoch(self, world_size: int, batch_size: int) -> int:
        count = self._count("train")
        if count < world_size * batch_size:
            raise ValueError(
                f"{type(self).__name__}: expected at most {count // world_size} utterances per rank and step at "
                f"{world_size} ranks ({count} in all), got {batch_size}; lower training.batch_per_rank"
            )
        return count // (world_size * batch_size)

    def _count(self, split: Split) -> int:
        return len(self.arrays[f"{split}_letter_ends"])

    def _batch(self, split: Split, chosen: Sequence[int]) -> Batch:
        sounds = [spectrogram(part) for part in self._parts(f"{split}_sample", chosen)]
        letters = self._parts(f"{split}_letter", chosen)
        longest = max(sound.shape[1] for sound in sounds)
        most = max(1, *(len(part) for part in letters))  # one at least: CTC takes no empty matrix
        return (
            torch.stack([F.pad(sound, (0, longest - sound.shape[1])) for sound in sounds]),
            torch.tensor([sound.shape[1] for sound in sounds]),
            torch.stack([F.pad(part.long(), (0, most - len(part))) for part in letters]),
            torch.tensor([len(part) for part in letters]),
        )

    def _parts(self, name: str, chosen: Sequence[int]) -> list[Tensor]:
        """The chosen utterances' samples or letters, cut out of the whole."""
        whole, ends = torch.from_numpy(self.arrays[f"{name}s"]), self.arrays[f"{name}_ends"]
        return [whole[ends[place - 1] if place else 0 : ends[place]] for place in chosen]


def _joined(split: Split, utterances: list[Utterance]) -> Arrays:
    """Ragged utterances end to end, and where each ends."""
    samples = [samples for samples, _ in utterances]
    letters = [np.array([INDEX[letter] for letter in text], np.uint8) for _, text in utterances]
    return {
        f"{split}_samples": np.concatenate(samples),
        f"{split}_sample_ends": np.cumsum([len(part) for part in samples], dtype=np.int64),
        f"{split}_letters": np.concatenate(letters),
        f"{split}_letter_ends": np.cumsum([len(part) for part in letters], dtype=np.int64),
    }
