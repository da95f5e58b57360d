"""AN4, CMU's spelt names, addresses and numbers, from the original tree in any of the formats it has come in."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.data.cache import DataMissing, data_folder
from experiments.data.speech import INDEX, RATE, Speech, Split, Utterance

SUFFIXES = (".raw", ".sph", ".wav", ".flac")
FILES = {"train": "an4_train", "valid": "an4_test"}
LINE = re.compile(r"(?:<s>)?\s*(?P<text>.*?)\s*(?:</s>)?\s*\((?P<name>[^()]+)\)\s*")


@dataclass(frozen=True, kw_only=True)
class AN4(Speech):
    """948 + 130 utterances, 48 minutes, 16 kHz, one channel, in $SIDCO_DATA/an4.

    `etc/an4_{train,test}.{fileids,transcription}` and for each id `wav/<id>.raw` (headerless, 16 bits, big-endian,
    although its README says little-endian), `.sph`, `.wav` or `.flac`; all give the same samples.

    Source: Acero, Acoustical and environmental robustness in automatic speech recognition (1993).
    """

    def sources(self) -> list[Path]:
        listings = [self._listing(split, kind) for split in FILES for kind in ("fileids", "transcription")]
        return [*listings, *(self._audio(name) for split in FILES for name in self._names(split))]

    def utterances(self, split: Split) -> list[Utterance]:
        names, file = self._names(split), self._listing(split, "transcription")
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        if len(lines) != len(names):
            raise self._missing(f"{len(names)} ids but {len(lines)} transcripts in {file.name} (a copy cut short?)")
        return [(self._read(name), self._text(line, name)) for name, line in zip(names, lines, strict=True)]

    def _root(self) -> Path:
        return data_folder() / "an4"

    def _missing(self, got: str) -> DataMissing:
        root = self._root()
        return DataMissing(
            f"an4: looked in {root}, got {got}. Expected CMU's tree: {root}/etc/an4_{{train,test}}.{{fileids,"
            f"transcription}} and {root}/wav/{{an4_clstk,an4test_clstk}}/<speaker>/*.{{raw,sph,wav,flac}}. The address "
            "it was handed out from, www.speech.cs.cmu.edu/databases/an4, has been dead for years: unpack a copy of "
            "an4_raw.bigendian.tar.gz or an4_sphere.tar.gz there, from a mirror or from someone who has it (the "
            "paper's own repository, github.com/sands-lab/SIDCo, carries the raw recordings in data/an4). Set "
            "SIDCO_DATA to the folder that holds an4/, or use data that needs no files: benchmark=lstm_speech"
        )

    def _listing(self, split: str, kind: str) -> Path:
        file = self._root() / "etc" / f"{FILES[split]}.{kind}"
        if not file.is_file():
            raise self._missing(f"no etc/{file.name}")
        return file

    def _names(self, split: str) -> list[str]:
        names = self._listing(split, "fileids").read_text(encoding="utf-8").split()
        if not names:
            raise self._missing(f"an empty etc/{FILES[split]}.fileids")
        return names

    def _audio(self, name: str) -> Path:
        stem = self._root() / "wav" / name
        for suffix in SUFFIXES:
            file = stem.parent / (stem.name + suffix)  # not with_suffix: a name may have dots
            if file.is_file():
                return file
        raise self._missing(f"no recording wav/{name}.{{raw,sph,wav,flac}} (a copy cut short?)")

    def _read(self, name: str) -> np.ndarray:
        """(samples,) int16."""
        import soundfile  # here, because only the preparing process should pay for it

        file = self._audio(name)
        raw = {"format": "RAW", "subtype": "PCM_16", "endian": "BIG", "samplerate": RATE, "channels": 1}
        if (promised := _promised(file)) > file.stat().st_size:
            raise self._missing(f"{file} of {file.stat().st_size} bytes, {promised} by its header (a copy cut short?)")
        try:
            samples, rate = soundfile.read(file, dtype="int16", **(raw if file.suffix == ".raw" else {}))
        except soundfile.LibsndfileError as error:
            raise self._missing(f"an unreadable recording {file} ({error})") from error
        if rate != RATE or samples.ndim != 1 or not len(samples):
            raise self._missing(f"{file} with shape {samples.shape} at {rate} Hz instead of one channel at {RATE} Hz")
        if file.suffix == ".raw" and _roughness(samples.byteswap()) < _roughness(samples):
            raise self._missing(f"{file} in little-endian order (convert it: dd conv=swab)")
        return samples

    def _text(self, line: str, name: str) -> str:
        """'<s> YES </s> (an251-fash-b)' -> 'YES'."""
        found, last = LINE.fullmatch(line), name.rsplit("/", 1)[-1]
        if found is None or found["name"] != last:
            raise self._missing(f"the transcript {line!r} where that of {name} should be, WORDS ({last})")
        text = " ".join(found["text"].upper().split())
        if unknown := sorted(set(text) - set(INDEX)):
            raise self._missing(f"the characters {unknown} in the transcript {line!r}; letters, ' and spaces are known")
        return text


def _promised(file: Path) -> int:
    """The bytes a file has by its own header; 0 where it does not say. The library reads what is left of a file."""
    with file.open("rb") as start:
        header = start.read(1024)
    if header.startswith(b"RIFF"):
        return 8 + int.from_bytes(header[4:8], "little")
    count = re.search(rb"sample_count -i (\d+)", header) if header.startswith(b"NIST") else None
    return len(header) + 2 * int(count[1]) if count else 0


def _roughness(samples: np.ndarray) -> float:
    """How far apart neighbours are: sound is smooth, its bytes the wrong way round are noise."""
    return float(np.abs(np.diff(samples.astype(np.float64))).sum())
