"""The report of a folder of runs: `python -m experiments.report outputs/quick`.

Writes REPORT.md, runs.csv (every row), tables/ and figures/ there, all anew, and prints the tables.
"""

import argparse
import shutil
import sys
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from experiments.artifacts import Artifact
from experiments.artifacts.convergence import CONVERGENCE
from experiments.artifacts.remarks import grouped_training
from experiments.artifacts.speedup import SPEEDUP
from experiments.build import digest
from experiments.curves import curves
from experiments.progress import plain_console
from experiments.results import Frame, newest_code, read, states
from experiments.text import bullets, markdown, several
from experiments.wandb_sink import log_report

ARTIFACTS = (SPEEDUP, CONVERGENCE)


class NothingFinished(RuntimeError):
    """There is no row to report."""


def write(folder: Path) -> dict[str, pd.DataFrame]:
    """Write all files of the report of `folder`; the table of each artifact that has rows of the newest code."""
    runs, jobs = read(folder), states(folder)
    if runs.empty:
        counts = ", ".join(f"{n} {state}" for state, n in jobs["state"].value_counts().items()) or "no job at all"
        raise NothingFinished(
            f"{folder}: expected at least one finished job below jobs/, got {counts}; "
            f"run `python -m experiments.train -m experiment={SPEEDUP.experiment} profile=quick`"
        )
    rows = newest_code(runs)
    for part in ("tables", "figures"):
        shutil.rmtree(folder / part, ignore_errors=True)
        (folder / part).mkdir()
    runs.to_csv(folder / "runs.csv", index=False)
    tables, parts = {}, []
    for artifact in ARTIFACTS:
        chosen = artifact.select(rows)
        if len(chosen):
            tables[artifact.name], part = _part(artifact, chosen, folder)
            parts.append(part)
    title = f"# Report of {folder.resolve().name}"
    _text(folder / "REPORT.md", [title, _facts(rows, len(runs) - len(rows)), *parts, _unfinished(jobs)])
    return tables


def _part(artifact: Artifact, rows: Frame, folder: Path) -> tuple[pd.DataFrame, str]:
    """An artifact's files, its table and its part of the report."""
    table, lines = artifact.draw(rows), curves(folder, rows if artifact.curves else rows[:0])
    table.to_csv(folder / "tables" / f"{artifact.name}.csv", index=False)
    if artifact.curves:
        lines.to_csv(folder / "tables" / f"{artifact.name}_curves.csv", index=False)
    pictures = artifact.figures(table, lines, folder / "figures")
    shown = _tables(artifact, table)
    _text(folder / "tables" / f"{artifact.name}.md", [shown])
    warning = artifact.warning(table)
    part = [
        f"## {artifact.title}", f"Source: {artifact.source}.", warning and f"> **{warning}**", artifact.facts(rows),
        shown, *[f"![{path.stem}](figures/{path.name})" for path in pictures], _claims(artifact, table),
        artifact.headline and f"### The paper's headline numbers\n\n{artifact.headline(table)}",
        f"### What these numbers are not\n\n{artifact.limits}",
    ]  # fmt: skip
    return table, "\n\n".join(filter(None, part))


def _text(path: Path, parts: list[str]) -> None:
    path.write_text("\n\n".join(filter(None, parts)) + "\n")


def _facts(rows: Frame, older: int) -> str:
    """Where all rows come from; several values where the jobs differ."""
    dirty = "" if not rows["uncommitted_changes"].eq(True).any() else " **with uncommitted changes**"
    return bullets({
        "hardware": f"{several(rows, 'hardware')}, {several(rows, 'memory_gib')} GiB, {several(rows, 'system')}",
        "software": f"torch {several(rows, 'torch_version')}, Python {several(rows, 'python_version')}",
        "commit": several(rows, "commit") + dirty,
        "code fingerprint": several(rows, "code_fingerprint")
        + (f"; {older} rows of older code are in runs.csv and left out here" if older else ""),
        "rows": f"{len(rows)}, origin: {several(rows, 'origin')}",
    })  # fmt: skip


def _tables(artifact: Artifact, table: Frame) -> str:
    parts = []
    for _, rows in table.groupby("cell", sort=False):
        parts.append(f"### {artifact.heading(rows)}")
        parts += [f"{caption}:\n\n{markdown(text)}" for caption, text in artifact.tables(rows).items()]
        parts.append("\n".join(f"- {note}" for note in artifact.notes(rows)))
    return "\n\n".join(filter(None, [*parts, artifact.legend]))


def _claims(artifact: Artifact, table: Frame) -> str:
    lines = ["### Claims, tried on these rows", ""]
    for sentence, judge in artifact.claims.items():
        verdict = judge(table)
        lines.append(f"- **{verdict.state}**: {sentence} {verdict.tally}")
        lines += [f"    - {'yes' if cell.holds else 'NO'}: {cell.where}: {cell.figure}" for cell in verdict.cells]
    return "\n".join(lines)


def _unfinished(jobs: Frame) -> str:
    bad = jobs[jobs["state"] != "done"]
    lines = [f"- {job.job}: **{job.state}**: {' '.join(job.reason.split())}" for job in bad.itertuples()]
    return "\n".join(["## Jobs without a result", "", *(lines or ["none"])])


def show(artifact: Artifact, table: Frame, console: Console) -> None:
    """The tables of an artifact on a terminal of 120 columns."""
    for _, rows in table.groupby("cell", sort=False):
        text = artifact.terminal(rows)
        heads = [Column(escape(name), no_wrap=" " not in name) for name in text]
        printed = Table(*heads, title=escape(artifact.heading(rows)), box=box.SIMPLE_HEAD, collapse_padding=True)
        for cells in text.to_numpy().tolist():
            printed.add_row(*cells)
        console.print(printed)
        for note in (*grouped_training(rows), *artifact.notes(rows)):
            console.print(f"  {note}", markup=False, highlight=False)
    console.print(artifact.warning(table), style="bold red", end="\n" if artifact.warning(table) else "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables, figures and REPORT.md of a folder of runs.")
    parser.add_argument("folder", type=Path, help="what `output` was, such as outputs/quick")
    folder, console = parser.parse_args().folder, plain_console()
    try:
        tables = write(folder)
    except NothingFinished as reason:
        sys.exit(str(reason))
    for artifact in ARTIFACTS:
        if artifact.name in tables:
            show(artifact, tables[artifact.name], console)
    key = digest([table.to_csv() for table in tables.values()])
    if list(folder.glob("jobs/*/wandb")) and log_report(
        folder, key, tables, sorted((folder / "figures").glob("*.png"))
    ):
        console.print("the tables and the figures are in a wandb run of their own")
    console.print(f"report: {folder / 'REPORT.md'}", soft_wrap=True)


if __name__ == "__main__":
    main()
