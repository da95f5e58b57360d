"""Word-level text as contiguous streams of symbols, read in windows so that hidden state can be carried."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from experiments.data import Batch
from experiments.data.cache import Arrays, CachedData, DataMissing, data_folder

UNKNOWN, END = "<unk>", "<eos>"
Split = Literal["train", "valid"]


def ranked(counts: Counter[str]) -> list[str]:
    """<unk>, <eos>, then the words by falling count, equal counts alphabetically: the same on every machine."""
    words = sorted((word for word in counts if word not in (UNKNOWN, END)), key=lambda word: (-counts[word], word))
    return [UNKNOWN, END, *words]


@dataclass(frozen=True, kw_only=True)
class Text(CachedData):
    """A text cut into parallel streams; batch after batch continues each stream where it stopped.

    `symbols` is the size of the model's vocabulary; where the text has fewer, the rest is never used (the parameter
    count stays). `window` is the number of steps gradients flow back.
    """

    symbols: int = 10_000
    window: int = 35

    @abstractmethod
    def words(self, split: Split) -> Iterator[str]:
        """The text, word by word, <eos> after each line."""

    @abstractmethod
    def vocabulary(self, counts: Counter[str]) -> list[str]:
        """The symbols, given how often each word occurs in the training text."""

    def build(self) -> Arrays:
        vocabulary = self.vocabulary(Counter(self.words("train")))
        index = {word: i for i, word in enumerate(vocabulary)}
        unknown = index[UNKNOWN]
        splits: tuple[Split, Split] = ("train", "valid")
        tokens = {s: np.fromiter((index.get(word, unknown) for word in self.words(s)), np.int32) for s in splits}
        return {"vocabulary": np.array(vocabulary), **tokens}

    def train_batches(self, rank: int, world_size: int, batch_size: int, epoch: int, seed: int) -> Iterator[Batch]:
        """Streams rank * batch_size onwards of world_size * batch_size; text has one order: epoch, seed are unused."""
        self.steps_per_epoch(world_size, batch_size)
        own = slice(rank * batch_size, (rank + 1) * batch_size)
        return self._windows(self._streams("train", world_size * batch_size)[own])

    def valid_batches(self, batch_size: int) -> Iterator[Batch]:
        return self._windows(self._streams("valid", batch_size))

    def steps_per_epoch(self, world_size: int, batch_size: int) -> int:
        tokens, streams = len(self.arrays["train"]), world_size * batch_size
        steps = (tokens // streams - 1) // self.window
        if steps < 1:
            raise ValueError(
                f"{type(self).__name__}: {streams} streams need at least {streams * (self.window + 1)} words, "
                f"got {tokens}; use fewer ranks or a smaller training.batch_per_rank"
            )
        return steps

    def _streams(self, split: Split, count: int) -> Tensor:  # (count, length), the tail dropped
        tokens = torch.from_numpy(self.arrays[split])
        length = len(tokens) // count
        return tokens[: length * count].view(count, length)

    def _windows(self, streams: Tensor) -> Iterator[Batch]:
        """(B, length) -> pairs of (window, B); only full windows."""
        by_time = streams.t().contiguous().long()
        for start in range(0, len(by_time) - self.window, self.window):
            yield by_time[start : start + self.window], by_time[start + 1 : start + 1 + self.window]


@dataclass(frozen=True, kw_only=True)
class PTBText(Text):
    """Text in the word-level format of the Penn Treebank files: one sentence a line, already tokenised.

    Read from `<prefix>.train.txt` and `<prefix>.valid.txt` in $SIDCO_DATA/<name>; any prefix.

    Source: format of Mikolov et al. 2010 (Recurrent neural network based language model), 10,000 symbols with <unk>
    and the <eos> appended to each line.
    """

    name: str  # not a path: a configuration's hash must not depend on the machine

    def sources(self) -> list[Path]:
        return [self._file("train"), self._file("valid")]

    def words(self, split: Split) -> Iterator[str]:
        with self._file(split).open(encoding="utf-8") as lines:
            for line in lines:
                yield from line.split()
                yield END

    def vocabulary(self, counts: Counter[str]) -> list[str]:
        symbols = ranked(counts)
        if len(symbols) > self.symbols:
            raise ValueError(
                f"{self._file('train')}: expected at most {self.symbols} symbols with {UNKNOWN} and {END}, "
                f"got {len(symbols)}; replace rare words by {UNKNOWN}, or set dataset.symbols"
            )
        return symbols

    def _file(self, split: Split) -> Path:
        folder = data_folder() / self.name
        found = sorted(folder.glob(f"*.{split}.txt"))
        if len(found) != 1:
            raise DataMissing(
                f"{self.name}: expected exactly one <prefix>.{split}.txt in {folder}, got "
                f"{[file.name for file in found] if folder.is_dir() else 'no such folder'}. Layout: <prefix>.train.txt "
                "and <prefix>.valid.txt, one tokenised sentence a line (as ptb.train.txt). Set SIDCO_DATA to the "
                f"folder that holds {self.name}/, or use data that needs no files: benchmark=lstm_stdlib"
            )
        return found[0]
