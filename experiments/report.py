"""The report of a folder of runs: `python -m experiments.report outputs/quick`.

Writes REPORT.md, report.html (the same as one page), runs.csv (every row), tables/ and figures/ there, all anew, and
prints the tables. With `--only NAME` one artifact's files are written, and REPORT_NAME.md and report_NAME.html in place
of those.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from experiments import html
from experiments.artifacts import Artifact, Part, Verdict
from experiments.artifacts.break_even import BREAK_EVEN
from experiments.artifacts.convergence import CONVERGENCE
from experiments.artifacts.distribution import DISTRIBUTION
from experiments.artifacts.estimation import ESTIMATION
from experiments.artifacts.gaussiank import GAUSSIANK
from experiments.artifacts.loss_curves import LOSS_CURVES
from experiments.artifacts.microbench import MICROBENCH
from experiments.artifacts.power_law import POWER_LAW
from experiments.artifacts.rules import RULES_TABLE
from experiments.artifacts.scaling import SCALING
from experiments.artifacts.speedup import SPEEDUP
from experiments.artifacts.table1 import TABLE1
from experiments.build import digest
from experiments.progress import plain_console
from experiments.record import ROOT
from experiments.results import Frame, newest_code, read, states
from experiments.text import bullets, several
from experiments.wandb_sink import log_report

ARTIFACTS: tuple[Artifact, ...] = (
    SPEEDUP,
    BREAK_EVEN,
    CONVERGENCE,
    LOSS_CURVES,
    ESTIMATION,
    RULES_TABLE,
    TABLE1,
    DISTRIBUTION,
    POWER_LAW,
    GAUSSIANK,
    MICROBENCH,
    SCALING,
)


class NothingFinished(RuntimeError):
    """There is no row to report."""


def write(folder: Path, only: str | None = None) -> dict[str, Part]:
    """Write all files of the report of `folder`; by name, the artifacts that have something there to say.

    Of rows of the newest code. With `only`, the name of one: its files, and REPORT_NAME.md; REPORT.md stays as it is.
    """
    runs, jobs = read(folder), states(folder)
    artifacts = [artifact for artifact in ARTIFACTS if only in (None, artifact.name)]
    if runs.empty:
        counts = ", ".join(f"{n} {state}" for state, n in jobs["state"].value_counts().items()) or "no job at all"
        raise NothingFinished(
            f"{folder}: expected at least one finished job below jobs/, got {counts}; "
            f"run `python -m experiments.train -m experiment={artifacts[0].experiment} profile=quick`"
        )
    rows = newest_code(runs)
    for name in ("tables", "figures"):
        if not only:
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(exist_ok=True)
    runs.to_csv(folder / "runs.csv", index=False)
    found = {artifact.name: (artifact, artifact.part(rows, folder)) for artifact in artifacts}
    parts = {name: part for name, (_, part) in found.items() if part}
    for name, part in parts.items():
        part.table.to_csv(folder / "tables" / f"{name}.csv", index=False)
        _text(folder / "tables" / f"{name}.md", [part.body])
    title = f"# Report of {folder.resolve().name}"
    texts = [_part(artifact, part) for artifact, part in found.values() if part]
    empty = _empty(folder, [name for name in found if name not in parts])
    report = folder / _file(only)
    _text(report, [title, _facts(rows, len(runs) - len(rows)), *texts, empty, _unfinished(jobs)])
    html.write(report)
    return parts


def _file(only: str | None) -> str:
    return f"REPORT_{only}.md" if only else "REPORT.md"


def _part(artifact: Artifact, part: Part) -> str:
    """An artifact's part of the report."""
    texts = [
        f"## {artifact.title}", f"Source: {artifact.source}.", part.warning and f"> **{part.warning}**", part.body,
        *[f"![{path.stem}](figures/{path.name})" for path in part.pictures], _claims(part.claims),
        part.paper and f"### The paper's own numbers\n\n{part.paper}",
        f"### What these numbers are not\n\n{part.limits}",
    ]  # fmt: skip
    return "\n\n".join(filter(None, texts))


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


def _claims(claims: Mapping[str, Verdict]) -> str:
    lines = ["### Claims, tried on these rows", ""] if claims else []
    for sentence, verdict in claims.items():
        lines.append(f"- **{verdict.state}**: {sentence} {verdict.tally}")
        lines += [f"    - {'yes' if cell.holds else 'NO'}: {cell.where}: {cell.figure}" for cell in verdict.cells]
    return "\n".join(lines)


def _empty(folder: Path, names: list[str]) -> str:
    """The artifacts that have nothing here: said, not left out."""
    profile = folder.resolve().name
    if profile == "quick":
        how = "; `make artifact-{name}` fills it"
    elif (ROOT / "conf" / "profile" / f"{profile}.yaml").exists() and not profile.startswith("convergence"):
        how = f"; `make artifact-{{name}} PROFILE={profile}` fills it"
    else:  # a folder of one's own, or a profile that trains for quality alone
        how = "; `make artifact-{name}` has it, in outputs/quick"
    lines = [f"- {name}: no data here{how.format(name=name)}" for name in names]
    return "\n".join(["## Artifacts without data", "", *lines]) if lines else ""


def _unfinished(jobs: Frame) -> str:
    bad = jobs[jobs["state"] != "done"]
    lines = [f"- {job.job}: **{job.state}**: {' '.join(job.reason.split())}" for job in bad.itertuples()]
    return "\n".join(["## Jobs without a result", "", *(lines or ["none"])])


def show(part: Part, console: Console) -> None:
    """The tables of an artifact on a terminal of 120 columns."""
    for heading, text, notes in part.printed:
        heads = [Column(escape(name), no_wrap=" " not in name) for name in text]
        printed = Table(*heads, title=escape(heading), box=box.SIMPLE_HEAD, collapse_padding=True)
        for cells in text.to_numpy().tolist():
            printed.add_row(*cells)
        console.print(printed)
        for note in notes:
            console.print(f"  {note}", markup=False, highlight=False)
    console.print(part.warning, style="bold red", end="\n" if part.warning else "")


def _arguments() -> argparse.Namespace:
    names = [artifact.name for artifact in ARTIFACTS]
    parser = argparse.ArgumentParser(description="Tables, figures and REPORT.md of a folder of runs.")
    parser.add_argument("folder", type=Path, help="what `output` was, such as outputs/quick")
    parser.add_argument("--only", choices=names, help="this artifact alone, and REPORT_NAME.md")
    return parser.parse_args()


def main() -> None:
    given, console = _arguments(), plain_console()
    folder: Path = given.folder
    try:
        parts = write(folder, given.only)
    except NothingFinished as reason:
        sys.exit(str(reason))
    for part in parts.values():
        show(part, console)
    tables = {name: part.table for name, part in parts.items()}
    pictures = sorted(path for part in parts.values() for path in part.pictures)
    key = digest([table.to_csv() for table in tables.values()])
    if parts and list(folder.glob("jobs/*/wandb")) and log_report(folder, key, tables, pictures):
        console.print("the tables and the figures are in a wandb run of their own")
    report = folder / _file(given.only)
    console.print(f"report: {report}, and in a browser {html.page_of(report)}", soft_wrap=True)


if __name__ == "__main__":
    main()
