"""The notebooks: each .py is the source, and the .ipynb beside it is made from it.

`python scripts/notebooks.py pair` writes each .ipynb anew, without outputs. `python scripts/notebooks.py pictures` runs
the notebooks on the committed reference and keeps their marked figures for the README.
"""

import base64
import os
import sys
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS, PICTURES = ROOT / "notebooks", ROOT / "docs" / "pictures"
MARK = "picture"  # of a cell whose figure the README shows: `# %% picture="name"`
COLOURS = 64  # of such a figure: a third of the bytes, in a repository for ever


def sources() -> list[Path]:
    return sorted(NOTEBOOKS.glob("*.py"))


def paired(source: Path) -> str:
    """The .ipynb of a .py: without outputs, and the same bytes for the same source."""
    notebook = jupytext.read(source)
    for place, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{place}"  # else drawn at random
    return nbformat.writes(notebook) + "\n"


def executed(source: Path, folder: Path, timeout_s: int = 120) -> NotebookNode:
    """The notebook with its outputs, run in `folder` by this Python, on one thread. Raises where a cell does."""
    notebook = jupytext.read(source)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    NotebookClient(notebook, timeout=timeout_s, kernel_name="python3").execute(cwd=str(folder), env=environment)
    return notebook


def pictures(notebook: NotebookNode) -> dict[str, bytes]:
    """PNG files of the marked figures of an executed notebook, by name; one a cell."""
    found = {}
    for cell in notebook.cells:
        if MARK in cell.metadata:
            (png,) = [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]
            found[cell.metadata[MARK]] = _smaller(base64.b64decode(png))
    return found


def _smaller(png: bytes) -> bytes:
    small = BytesIO()
    picture = Image.open(BytesIO(png)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    picture.save(small, "PNG", optimize=True)
    return small.getvalue()


def _draw() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    marked = [source for source in sources() if f' {MARK}="' in source.read_text()]
    with TemporaryDirectory() as elsewhere:  # nobody's outputs are beside it
        folder = Path(elsewhere) / "notebooks"
        folder.mkdir()
        for source in marked:
            for name, png in pictures(executed(source, folder)).items():
                (PICTURES / f"{name}.png").write_bytes(png)
                print(f"docs/pictures/{name}.png")


def main(what: str) -> None:
    if what == "pictures":
        _draw()
        return
    for source in sources():
        source.with_suffix(".ipynb").write_text(paired(source))


if __name__ == "__main__":
    if sys.argv[1:] not in (["pair"], ["pictures"]):
        raise SystemExit("usage: make notebooks, or make pictures")
    main(sys.argv[1])
