"""A corpus every machine has: the source text of Python's own standard library."""

import hashlib
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.data.cache import DataMissing
from experiments.data.text import END, Split, Text, ranked

# tests and the packages that distributions leave out or generate at build time would make the text depend on the
# machine; encodings/ is tables, not prose
EXCLUDED = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings"}
    | {"idlelib", "tkinter", "turtledemo", "lib2to3", "distutils", "ensurepip"}
)
WORD = re.compile(r"[^\W\d]\w*|\d\w*|[^\w\s]")


@dataclass(frozen=True, kw_only=True)
class StdlibText(Text):
    """The .py files of this interpreter's standard library, in lower case, split by file (one in 20 validates).

    A word is an identifier, a number (all numbers become one symbol, N, as in PTB) or a punctuation mark; comments and
    docstrings are text like the rest. A regular expression rather than `tokenize`: ten times faster, and strings fall
    into words. The text differs between Python versions: the sha256 that `prepare` returns says which one was read.
    """

    folder: str | None = None  # None: this interpreter's standard library

    def sources(self) -> list[Path]:
        root = self._root()
        files = sorted(file for file in root.rglob("*.py") if not self._excluded(file.relative_to(root)))
        if not files:
            raise DataMissing(
                f"stdlib: expected Python's standard library as .py files in {root}, got none. Run an interpreter "
                "that ships its sources, or give dataset.folder a folder of .py files"
            )
        return files

    def words(self, split: Split) -> Iterator[str]:
        root = self._root()
        for file in self.sources():
            if self._split(file.relative_to(root)) != split:
                continue
            for line in file.read_text(encoding="utf-8", errors="replace").lower().splitlines():
                if words := WORD.findall(line):
                    yield from ("N" if word[0].isdigit() else word for word in words)
                    yield END

    def vocabulary(self, counts: Counter[str]) -> list[str]:
        return ranked(counts)[: self.symbols]

    def _root(self) -> Path:
        return Path(self.folder or sysconfig.get_path("stdlib"))

    def _excluded(self, file: Path) -> bool:
        return not EXCLUDED.isdisjoint(file.parts) or file.name.startswith("_sysconfigdata")

    def _split(self, file: Path) -> Split:
        return "valid" if hashlib.sha256(file.as_posix().encode()).digest()[0] % 20 == 0 else "train"
