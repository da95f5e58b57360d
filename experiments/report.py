"""The report of a folder of runs: `python -m experiments.report outputs/quick`.

Writes REPORT.md, runs.csv (every row), tables/ and figures/ there, all anew, and prints the table.
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.artifacts import link, paper_numbers
from experiments.artifacts.speedup import SPEEDUP
from experiments.build import digest
from experiments.progress import plain_console
from experiments.results import Frame, newest_code, read, states
from experiments.wandb_sink import log_report

LOOPBACK = (
    "LOOPBACK: the links of these rows were NOT shaped. Messages crossed 127.0.0.1 at whatever rate that gives; "
    "these are not results about a network."
)
SPEED, SPLIT = "speed and quality", "where a step's time goes (ms, medians)"
TIMES = {
    "step": "step_ms",
    "forward + backward": "forward_backward_ms",
    "compress": "compress_ms",
    "exchange": "exchange_ms",
    "mean": "mean_ms",
    "optimizer": "optimizer_ms",
    "compute alone": "compute_only_ms",
    "step - compute alone": "exposed_comm_ms",
}
IN_TERMINAL = 9  # columns of the first table that fit 120 characters
NOT = """\
- Not trained models: loss and quality are those after the few steps named, the loss a mean over the last five or fewer.
  They stand beside each speed to show that the method learns at all, not how well it ends.
- Not time to a quality: a speed-up here is throughput over dense throughput, from medians of a step's time.
- Not another machine: no GPU unless the hardware says so, and ranks that share one machine's cores.
- Not all ranks: times and bytes are those of rank 0, which waits for the slowest within its exchange.
- Not latency: bandwidth is emulated, latency is not. Many small messages would cost more on a real network.
- Not certainty: ± of k̂/k is the normal 90 % interval 1.645 s/√n over steps, as if steps were independent;
  ± of a speed-up is the standard deviation between seeds, around a geometric mean. One seed has none, and says so."""


class NothingFinished(RuntimeError):
    """There is no row to report."""


def write(folder: Path) -> pd.DataFrame:
    """Write all files of the report of `folder` and return the table of the newest code's rows."""
    runs, jobs = read(folder), states(folder)
    if not runs.empty:
        runs = runs[runs["network"] != "virtual"]  # workers in one process have no speed
    if runs.empty:
        counts = ", ".join(f"{n} {state}" for state, n in jobs["state"].value_counts().items()) or "no job at all"
        raise NothingFinished(
            f"{folder}: expected at least one finished job below jobs/, got {counts}; "
            f"run `python -m experiments.train -m experiment={SPEEDUP.experiment} profile=quick`"
        )
    rows = newest_code(runs)
    table = SPEEDUP.draw(rows)
    for part in ("tables", "figures"):
        shutil.rmtree(folder / part, ignore_errors=True)
        (folder / part).mkdir()
    runs.to_csv(folder / "runs.csv", index=False)
    table.to_csv(folder / "tables" / f"{SPEEDUP.name}.csv", index=False)
    (folder / "tables" / f"{SPEEDUP.name}.md").write_text(_tables(table))
    pictures = SPEEDUP.figures(table, folder / "figures")
    parts = [
        f"# Report of {folder.resolve().name}", *_shout(table), _facts(rows, len(runs) - len(rows)), _probes(rows),
        _tables(table),
        *[f"![{path.stem}](figures/{path.name})" for path in pictures],
        _claims(table), _headline(table), _unfinished(jobs), f"## What these numbers are not\n\n{NOT}",
    ]  # fmt: skip
    (folder / "REPORT.md").write_text("\n\n".join(filter(None, parts)) + "\n")
    return table


def _shout(table: Frame) -> list[str]:
    return [f"> **{LOOPBACK}**"] if (table["network"] == "loopback").any() else []


def _facts(rows: Frame, older: int) -> str:
    """Where the rows come from; several values where the jobs differ."""
    dirty = "" if not rows["uncommitted_changes"].eq(True).any() else " **with uncommitted changes**"
    burst = f", burst {_all(rows, 'burst_kib')} KiB" if (rows["network"] == "shaped").any() else ""
    facts = {
        "hardware": f"{_all(rows, 'hardware')}, {_all(rows, 'memory_gib')} GiB, {_all(rows, 'system')}",
        "software": f"torch {_all(rows, 'torch_version')}, Python {_all(rows, 'python_version')}",
        "commit": _all(rows, "commit") + dirty,
        "code fingerprint": _all(rows, "code_fingerprint")
        + (f"; {older} rows of older code are in runs.csv and left out here" if older else ""),
        "network": f"{', '.join(sorted({link(row) for row in rows.itertuples()}))}{burst}; **latency is not emulated**",
        "ranks": f"{_all(rows, 'world_size')}, {_all(rows, 'ranks_per_node')} a node",
        "threads of a rank": _all(rows, "threads_per_rank"),
        "steps": f"{_all(rows, 'steps_timed')} timed after {_all(rows, 'excluded_steps')} excluded",
        "seeds": _all(rows, "seed"),
        "rows": f"{len(rows)}, origin: {_all(rows, 'origin')}",
    }  # fmt: skip
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def _all(rows: Frame, column: str) -> str:
    values = sorted(set(rows[column].dropna()))
    return ", ".join(f"{value:g}" if isinstance(value, int | float) else str(value) for value in values)


def _probes(rows: Frame) -> str:
    """What the links really gave, before each job: medians over jobs."""
    columns = [name for name in rows if name.startswith("probe_")]
    if not columns:
        return ""
    found: list[dict[str, Any]] = []
    for _, same in rows.groupby(["network", "rate_mbit_per_s"], dropna=False):
        for name in columns:
            way, size = name.removeprefix("probe_").removesuffix("_mbit_per_s").rsplit("_", 1)
            found.append({"link": link(same.iloc[0]), "message": size, way: same[name].median()})
    table = pd.DataFrame(found).groupby(["link", "message"], sort=False, as_index=False).first()
    shown = table.map(
        lambda value: f"{value:.1f}" if isinstance(value, float) else value.replace("000kb", " MB").replace("kb", " KB")
    )
    return f"Rates reached, Mb/s that left a rank's interface (median over jobs):\n\n{_markdown(shown)}"


def _printed(rows: Frame) -> dict[str, pd.DataFrame]:
    """The rows of one benchmark and link as text: speed and quality side by side, and the split of a step."""
    first = rows.iloc[0]
    steps = "/".join(f"{n:g}" for n in sorted(set(rows["loss_after_steps"])))
    name = {"compressor": rows["label"], "ratio": _column(rows, "ratio", "{:g}")}
    baselines = "/".join(sorted(set(rows["best_dense"]) - {""}))
    speed = {
        **name,
        f"{first['unit']}/s": _column(rows, "units_per_second", "{:.4g}"),
        "over fp32": _plus_minus(rows, "speedup_over_fp32", "speedup_sd", "{:.2f}x"),
        f"over best dense{baselines and f' ({baselines})'}": _column(rows, "speedup_over_best_dense", "{:.2f}x"),
        f"loss after {steps} steps (not trained)": _column(rows, "loss_last", "{:.3f}"),
        f"{first['metric']} after {steps} steps": _column(rows, "metric_value", "{:.4g}"),
        "k̂/k": _plus_minus(rows, "khat_over_k", "khat_over_k_ci90", "{:.2f}"),
        "seeds": rows["seeds"].map(lambda n: "1 seed" if n == 1 else f"{n} seeds"),
        "density": _column(rows, "density", "{:.3g}"),
        "payload KB": _column(rows, "payload_kb", "{:.4g}"),
        "sent KB": _column(rows, "sent_kb", "{:.4g}"),
        "origin": rows["origin"],
    }
    split = {label: _column(rows, column, "{:.1f}") for label, column in TIMES.items()}
    return {SPEED: pd.DataFrame(speed), SPLIT: pd.DataFrame({**name, **split, "origin": rows["origin"]})}


def _column(rows: Frame, name: str, form: str) -> Frame:
    return rows[name].map(lambda value: "–" if pd.isna(value) else form.format(value))


def _plus_minus(rows: Frame, name: str, spread: str, form: str) -> Frame:
    return _column(rows, name, form) + rows[spread].map(lambda value: "" if pd.isna(value) else f" ±{value:.2f}")


def _notes(rows: Frame) -> list[str]:
    """Why a speed-up is blank."""
    notes = rows["note"].str.split("; ").map(lambda parts: [part for part in parts if part not in ("", "1 seed")])
    names = rows["label"] + _column(rows, "ratio", " {:g}").replace("–", "")
    return [f"{name}: {'; '.join(parts)}" for name, parts in zip(names, notes, strict=True) if parts]


def _title(rows: Frame) -> str:
    first = rows.iloc[0]
    size = (
        f"{first['parameters'] / 1e6:.2f} M parameters, {first['batch_per_rank']} a rank, {first['world_size']} ranks"
    )
    return f"{first['benchmark']} on {first['dataset']}, {link(first)} ({size})"


def _tables(table: Frame) -> str:
    parts = []
    for _, rows in table.groupby("cell", sort=False):
        parts.append(f"## {_title(rows)}")
        parts += [f"{name.capitalize()}:\n\n{_markdown(text)}" for name, text in _printed(rows).items()]
        parts += ["\n".join(f"- {note}" for note in _notes(rows))]
    parts.append(
        "Plain DDP (`none`) exchanges inside its backward: its exchange is not separable, and `step - compute alone`, "
        "a step less one without exchange, stands for it. For the others that difference contains compression too. "
        "In the picture a bar longer than its tick, the whole step, hides work behind the exchange."
    )
    return "\n\n".join(filter(None, parts))


def _markdown(text: Frame) -> str:
    lines = [list(text), ["---"] * len(text.columns), *text.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _claims(table: Frame) -> str:
    lines = ["## Claims, tried on these rows"]
    for sentence, judge in SPEEDUP.claims.items():
        verdict = judge(table)
        lines.append(f"- **{verdict.state}**: {sentence} {verdict.tally}")
        lines += [f"    - {'yes' if cell.holds else 'NO'}: {cell.where}: {cell.figure}" for cell in verdict.cells]
    return "\n".join([lines[0], "", *lines[1:]])


def _headline(table: Frame) -> str:
    numbers = SPEEDUP.headline(table, paper_numbers())
    numbers["measured_max"] = _column(numbers, "measured_max", "{:.2f}x")
    names = {"value": "the paper's", "measured_max": "measured here, largest", "measured_where": "where"}
    return (
        "## The paper's headline numbers\n\nThe paper's are of training as a whole on its own cluster; "
        f"those measured here are of throughput.\n\n{_markdown(numbers.rename(columns=names))}"
    )


def _unfinished(jobs: Frame) -> str:
    bad = jobs[jobs["state"] != "done"]
    lines = [f"- {job.job}: **{job.state}**: {' '.join(job.reason.split())}" for job in bad.itertuples()]
    return "\n".join(["## Jobs without a result", "", *(lines or ["none"])])


def show(table: Frame, console: Console) -> None:
    """The tables of speeds on a terminal of 120 columns."""
    for _, rows in table.groupby("cell", sort=False):
        text = _printed(rows)[SPEED].iloc[:, :IN_TERMINAL]
        printed = Table(*map(escape, text), title=escape(_title(rows)), box=box.SIMPLE, padding=(0, 1))
        for cells in text.to_numpy().tolist():
            printed.add_row(*cells)
        console.print(printed)
        for note in _notes(rows):
            console.print(f"  {note}", markup=False, highlight=False)
    for line in _shout(table):
        console.print(line.strip("> *"), style="bold red")


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables, figures and REPORT.md of a folder of runs.")
    parser.add_argument("folder", type=Path, help="what `output` was, such as outputs/quick")
    folder, console = parser.parse_args().folder, plain_console()
    try:
        table = write(folder)
    except NothingFinished as reason:
        sys.exit(str(reason))
    show(table, console)
    if list(folder.glob("jobs/*/wandb")) and log_report(
        folder, digest(table.to_csv()), table, sorted((folder / "figures").glob("*.png"))
    ):
        console.print("the table and the figures are in a wandb run of their own")
    console.print(f"report: {folder / 'REPORT.md'}", soft_wrap=True)


if __name__ == "__main__":
    main()
