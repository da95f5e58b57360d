"""Skeletons of a new compressor: `python scripts/new_compressor.py foo` writes its module and its yaml, no more."""

import keyword
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULE = '''"""{title}: say in one line what is sent."""

from dataclasses import dataclass

from torch import Tensor

from sidco.compressor import Compressor, check_ratio, target_count
from sidco.kernels import reference
from sidco.payload import Payload, Sparse
from sidco.view import Layout


@dataclass(frozen=True)
class {title}(Compressor[None]):
    """What it does; the law it obeys.

    Source: paper, section, equation. Differs from it in …
    """

    ratio: float

    def __post_init__(self) -> None:
        check_ratio(self.ratio)

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> None:
        return None  # or a NamedTuple of tensors, numbers and other states

    def compress(self, x: Tensor, state: None) -> tuple[Payload, None]:
        # a working placeholder, Top-k: choose your own coordinates, or your own payload
        values, indices = reference.largest(x, target_count(x.numel(), self.ratio))
        return Sparse.of(values, indices, x.numel()), state
'''
YAML = """_target_: sidco.compressors.{name}.{title}
ratio: ${{ratio}}
"""


def main(name: str, root: Path = ROOT) -> list[Path]:
    """Write both files; refuse a name that is taken or no module name."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise SystemExit(f"NAME must be a module name such as my_method, got {name!r}")
    title = "".join(part.capitalize() for part in name.split("_"))
    files = {
        root / "sidco" / "compressors" / f"{name}.py": MODULE.format(title=title),
        root / "conf" / "compressor" / f"{name}.yaml": YAML.format(name=name, title=title),
    }
    taken = [str(path.relative_to(root)) for path in files if path.exists()]
    if taken:
        raise SystemExit(f"{', '.join(taken)} exists: choose another NAME")
    for path, text in files.items():
        path.write_text(text)
        print(path.relative_to(root))
    print(f"try it:  python -m pytest tests/test_battery.py -k {name}\n         make compare C={name}")
    return list(files)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: make new-compressor NAME=my_method")
    main(sys.argv[1])
