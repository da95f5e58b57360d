"""BENCH.md and the figures of a run of the micro-benchmark, from its files alone."""

from pathlib import Path

import pandas as pd

from experiments.bench.claims import CLAIMS, fits, used
from experiments.bench.pictures import figures
from experiments.bench.rounds import COLD, HOT, RANKS
from experiments.bench.vectors import ROTATION
from experiments.record import read_json
from experiments.results import Frame
from experiments.text import NOTHING, bullets, column, markdown, several, without_empty

CSV, RUN, TEXT = "bench.csv", "run.json", "BENCH.md"
MIB = 2**20
BUSY = 0.25  # of all cores, by others

METHOD = f"""Each round times every compressor once, one after the other on the same gradient, so that what disturbs
the machine disturbs all alike. "× add_" is the time over that of `residual.add_(gradient)` **in the same round**,
"faster than topk" that of Top-k with error feedback over it; of these ratios and of the times the median is given,
with the 20 % and 80 % quantiles. Cold: a buffer of twice the last-level cache is read before each call. Hot: the
residual was touched by a call just before, the gradient by being read; only where these fit the cache. Before each
call a pause lets the threads that worked last stop spinning: torch's and numba's would fight for the cores. "Alone":
without the memory (error feedback, momentum) that jobs give the compressor. Pack makes the message a buffer; mean
averages {RANKS} messages at the same places (one, where messages are summed on the wire). Density is the mean over
the timed calls, k_hat / k over all after the first half of the warm-up; no compressor's state is reset in between.
Extra memory is the peak of one call beyond what stood before it, the message included: resident memory of a process
of its own on a CPU (exact to about 0.25 MB), torch's allocator on a GPU. A warm-up of the ratio (dgc_full) is over
before anything is timed. Plain DDP and PowerSGD make no message: they are not here."""

LIMITS = """One process with all cores to itself: in a job, ranks share them and the exchange runs beside. Normal
noise is not a gradient; captured ones are as good as the training they come from. A virtual machine's neighbours
share its memory's bandwidth: read the quantiles. How often a GPU is waited for in a call was not counted."""


class NothingMeasured(RuntimeError):
    """There is no row to report."""


def write(folder: Path) -> Path:
    """BENCH.md and figures/ anew; the path of the former."""
    if not (folder / CSV).exists():
        raise NothingMeasured(
            f"{folder}: expected {CSV} of a run, got none; run `python -m experiments.bench --name {folder.name}`"
        )
    rows, run = pd.read_csv(folder / CSV), read_json(folder / RUN) or {}
    (folder / "figures").mkdir(exist_ok=True)
    pictures = [f"![{path.stem}](figures/{path.name})" for path in figures(rows, folder / "figures")]
    parts = [
        f"# Micro-benchmark {folder.resolve().name}", _facts(rows, run), *_warnings(rows),
        "## Claims, tried on these rows", _claims(rows), "## How it was measured", METHOD, *pictures,
        *_tables(rows, COLD), *_tables(rows, HOT), _exponents(rows), f"## What these numbers are not\n\n{LIMITS}",
    ]  # fmt: skip
    (folder / TEXT).write_text("\n\n".join(filter(None, parts)) + "\n")
    return folder / TEXT


def _facts(rows: Frame, run: dict) -> str:
    dirty = " **with uncommitted changes**" if rows["uncommitted_changes"].eq(True).any() else ""
    spread = f"{rows['rounds'].min()} to {rows['rounds'].max()}"
    facts = {
        "hardware": f"{several(rows, 'hardware')}, {several(rows, 'threads')} threads, {several(rows, 'device')}, "
        f"last-level cache {rows['cache_bytes'].iloc[0] / MIB:g} MiB",
        "software": f"torch {several(rows, 'torch_version')}, Python {several(rows, 'python_version')}",
        "commit": several(rows, "commit") + dirty,
        "code fingerprint": several(rows, "code_fingerprint"),
        "rows": f"{len(rows)}, origin: {several(rows, 'origin')}; {spread} rounds, "
        f"{rows['warmup_calls'].min()} to {rows['warmup_calls'].max()} calls before them",
    }
    if "seconds" in run:
        facts["took"] = f"{run['seconds'] / 60:.1f} minutes"
    if run.get("left_out"):
        facts["left out"] = "; ".join(run["left_out"])
    return bullets(facts)


def _warnings(rows: Frame) -> list[str]:
    few, load = rows[rows["gradients"] < ROTATION], rows["load_before"].max()
    busy = (
        f"> **The machine was busy: a load of {load:.1f} on {rows['cores'].iloc[0]} cores before it began. Threads "
        "then wait for each other: believe nothing of several; measure again with --threads 1, or in a quiet hour.**"
    )
    same = (
        f"> **Fewer than {ROTATION} gradients in rotation on {several(few, 'vector')}: error feedback sees the same "
        "again and again. Capture more steps: capture.steps=[100,101,102,103,104,105,106,107].**"
    )
    return [busy] * bool(load > BUSY * rows["cores"].iloc[0]) + [same] * (not few.empty)


def _claims(rows: Frame) -> str:
    lines = []
    for sentence, judge in CLAIMS.items():
        verdict = judge(rows)
        lines.append(f"- **{verdict.state}**: {sentence} {verdict.tally}".rstrip())
        lines += [f"    - {'yes' if cell.holds else 'NO'}: {cell.where}: {cell.figure}" for cell in verdict.cells]
    return "\n".join(lines)


def _tables(rows: Frame, cache: str) -> list[str]:
    parts = []
    for (vector, ratio), same in used(rows, cache).groupby(["vector", "ratio"], sort=False):
        first = same.iloc[0]
        parts.append(f"### {vector}, ratio {ratio:g}, {cache} ({first['rotation']}, {first['device']})")
        alone = rows[
            ~rows["as_jobs"] & (rows["vector"] == vector) & (rows["ratio"] == ratio) & (rows["cache"] == cache)
        ]
        parts.append(markdown(without_empty(_text(same, alone))))
    return parts and [f"## {cache.capitalize()}", *parts]


def _text(rows: Frame, alone: Frame) -> pd.DataFrame:
    """The fastest first."""
    rows = rows.sort_values("compress_ms_median")
    by_name = alone.set_index("compressor")["compress_ms_median"]
    rows = rows.assign(
        alone_ms=rows["compressor"].map(by_name), extra=rows["extra_bytes"] / MIB, sent=rows["message_bytes"] / MIB
    )
    return pd.DataFrame({
        "compressor": rows["compressor"],
        "memory": rows["memory"],
        "compress ms": _ranged(rows, "compress_ms", "{:.4g}"),
        "× add_": _ranged(rows, "times_add", "{:.2f}"),
        "faster than topk": _ranged(rows, "speedup_topk", "{:.3g}"),
        "k_hat / k": column(rows, "khat_over_k", "{:.2f}"),
        "stages": column(rows, "stages", "{:.0f}"),
        "density": column(rows, "density", "{:.3g}"),
        "alone ms": column(rows, "alone_ms", "{:.4g}"),
        "pack ms": column(rows, "pack_ms_median", "{:.3g}"),
        "mean ms": column(rows, "mean_ms_median", "{:.3g}"),
        "message MiB": column(rows, "sent", "{:.3g}"),
        "extra MiB": column(rows, "extra", "{:.2f}"),
    })  # fmt: skip


def _ranged(rows: Frame, name: str, form: str) -> Frame:
    low, high = (column(rows, f"{name}_{part}", form) for part in ("p20", "p80"))
    return column(rows, f"{name}_median", form) + " (" + low + "–" + high + ")"


def _exponents(rows: Frame) -> str:
    found = fits(rows)
    if found.empty:
        return ""
    wide = found.pivot_table(index="compressor", columns="ratio", values="exponent", sort=False)
    text = pd.DataFrame({"compressor": wide.index, **{f"{r:g}": column(wide, r, "{:.3f}").to_numpy() for r in wide}})
    spans = "; ".join(
        f"{ratio:g}: {same['from'].min():,.0f} to {same['to'].max():,.0f} floats"
        for ratio, same in found.groupby("ratio")
    )
    return f"## Exponents of cost against d, by ratio\n\n{markdown(text.fillna(NOTHING))}\n\n{spans}"
