"""Speech without files: every letter a chord of its own, drawn from a seed."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.data.speech import INDEX, RATE, Speech, Split, Utterance

SPOKEN = [letter for letter in INDEX if letter.isalpha()]  # A to Z; a space is silence
LETTER = RATE // 8  # samples of a letter, the silence that ends it included: 6 frames after the convolutions


@dataclass(frozen=True, kw_only=True)
class SyntheticSpeech(Speech):
    """Utterances of one to three words of one to four letters; the same for every training seed.

    A letter is two tones out of eleven for a tenth of a second, as a telephone dials, over white noise. Small models
    learn it in seconds: it shows whether training works, and says nothing of speech.
    """

    train_count: int = 512
    valid_count: int = 64
    noise: float = 0.1  # deviation, in units of a tone's amplitude
    draw: int = 0  # another number is another data set

    def sources(self) -> list[Path]:
        return []  # none

    def utterances(self, split: Split) -> list[Utterance]:
        count, key = (self.train_count, 0) if split == "train" else (self.valid_count, 1)
        draws = np.random.default_rng((self.draw, key))
        return [self._spoken(_text(draws), draws) for _ in range(count)]

    def _spoken(self, text: str, draws: np.random.Generator) -> Utterance:
        clean = np.concatenate([_chord(letter) for letter in text])
        loud = clean + self.noise * draws.standard_normal(len(clean))
        return (4000 * loud).round().clip(-(2**15), 2**15 - 1).astype(np.int16), text


def _text(draws: np.random.Generator) -> str:
    words = ("".join(draws.choice(SPOKEN, size=draws.integers(1, 5))) for _ in range(draws.integers(1, 4)))
    return " ".join(words)


def _chord(letter: str) -> np.ndarray:  # (LETTER,)
    """Two of the tones 400, 700, …, 3400 Hz for four fifths of the time."""
    if letter == " ":
        return np.zeros(LETTER)
    place = SPOKEN.index(letter)
    low, high = place % 5, 5 + place // 5  # 5 low tones, 6 high ones
    seconds = np.arange(LETTER) / RATE
    tones = np.sin(2 * np.pi * (400 + 300 * low) * seconds) + np.sin(2 * np.pi * (400 + 300 * high) * seconds)
    return np.where(np.arange(LETTER) < LETTER * 4 // 5, tones, 0.0)
