"""Where data lies, and how what is made of it is kept: one .npz per data set, whole or not there at all."""

import hashlib
import os
import tempfile
import zipfile
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]


class DataMissing(RuntimeError):
    """The data set is not here and cannot be fetched; the message says where it was looked for and what to use."""


def data_folder() -> Path:
    """Where people put data sets: $SIDCO_DATA, or ~/.cache/sidco/data."""
    return Path(os.environ.get("SIDCO_DATA") or "~/.cache/sidco/data").expanduser()


def cache_folder() -> Path:
    """Where this package keeps what it made of them: $SIDCO_CACHE, or ~/.cache/sidco."""
    return Path(os.environ.get("SIDCO_CACHE") or "~/.cache/sidco").expanduser()


def write(path: Path, arrays: Arrays) -> None:
    """Write aside, then rename: a reader sees the whole file or none, whoever is killed when."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def read(path: Path) -> Arrays | None:
    """The arrays, or None where the file is absent, cut short or damaged (zip keeps a CRC of each member)."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None


def digest(arrays: Arrays) -> str:
    """sha256 over names, types, shapes and bytes: the identity of the data, wherever and whenever it was made."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        sha.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        sha.update(array.view(np.uint8).data if array.size else b"")
    return sha.hexdigest()


class CachedData(ABC):
    """A data set made once from source files and cached. Subclasses are frozen dataclasses.

    The cache file is named by a fingerprint of the configuration, the source files and this package's code, so that it
    need never be invalidated.
    """

    @abstractmethod
    def sources(self) -> list[Path]:
        """The files it is made of. Raises DataMissing where there are none."""

    @abstractmethod
    def build(self) -> Arrays:
        """Read the sources: the slow part."""

    def fetch(self) -> None:
        """Download what is not here; called by `prepare` only, so only ever by one process."""
        return

    def prepare(self) -> str:
        self.fetch()
        path = self._path()
        arrays = read(path)
        if arrays is None:
            arrays = self.build()
            write(path, arrays)
        return digest(arrays)

    @cached_property
    def arrays(self) -> Arrays:
        """What `prepare` cached. Never built here: W ranks would build it W times."""
        path = self._path()
        arrays = read(path)
        if arrays is None:
            raise DataMissing(
                f"{type(self).__name__}: expected the prepared data in {path}, got no whole file. "
                "Call prepare() in the launching process before the ranks start."
            )
        return arrays

    def _path(self) -> Path:
        sha = hashlib.sha256(repr(self).encode())
        for code in sorted(Path(__file__).parent.glob("*.py")):
            sha.update(code.read_bytes())
        for source in self.sources():
            stat = source.stat()
            sha.update(f"{source} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return cache_folder() / "prepared" / f"{type(self).__name__.lower()}-{sha.hexdigest()[:16]}.npz"
