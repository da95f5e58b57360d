"""What compression costs by itself, on this device: over Topk, over a pass over memory, by model and by length.

Source: SIDCo, the micro-benchmark: compression speed-up over Topk and k̂/k on GPU and CPU, the CPU as the compression
device, latency and throughput by model and size. Read from runs of `experiments.bench` in bench/NAME/ of the folder, or
in NAME/ of the folder itself; the models' gradients come from the jobs beside them. Differs from the paper in what a
compressor is timed with: its memory (error feedback), cold caches, and against the pass over memory too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.artifacts import Cell, Part, Printed, Verdict
from experiments.artifacts.microbench_pictures import figures
from experiments.bench.claims import KHAT, OURS, fits, used
from experiments.bench.report import CSV
from experiments.bench.subjects import ADD, TOPK
from experiments.results import Frame, read
from experiments.text import bullets, column, markdown, several

DEVICES = {"cpu": "CPU", "cuda": "GPU"}
LINEAR = (0.9, 1.1)  # exponents
LEGEND = (
    "Medians over rounds, in brackets the 20 % and 80 % quantiles. Over Topk: Topk's time with error feedback over "
    f"this one's, in the same round. × {ADD}: the time over that of `residual.add_(gradient)`, which error feedback "
    "cannot do without. k̂/k: the mean over calls after the first half of the warm-up. M floats/s: the length of the "
    "vector over the time. Cold: before each call a buffer of twice the last-level cache was read."
)
LIMITS = """\
- Not a step of training: one process with all cores to itself; in a job, ranks share them and the exchange runs beside.
- Not the paper's gradients: those of the benchmarks named, eight in a row from late in a short dense training.
  Normal noise is no gradient.
- Not the paper's devices: read the hardware above. Where a device has no data, nothing is known of it here.
- Not error-free: a virtual machine's neighbours share its memory's bandwidth; read the quantiles."""


@dataclass(frozen=True)
class Microbench:
    name: str = "microbench"
    title: str = "Compression by itself: the micro-benchmark"
    source: str = "SIDCo (arXiv 2101.10761): its micro-benchmark on GPU and CPU, Figs 1 and 7, and the appendix"
    experiment: str = "microbench"

    def part(self, runs: Frame, folder: Path) -> Part | None:
        table = measured(folder)
        if table.empty:
            return None
        by_run = list(table.groupby("run", sort=False))
        texts = {_heading(rows): _text(rows) for _, run in by_run for _, rows in run.groupby("vector", sort=False)}
        return Part(
            table=table,
            body="\n\n".join(filter(None, [
                *[_facts(run) for _, run in by_run], _missing(table),
                *[f"### {heading}\n\n{markdown(text)}" for heading, text in texts.items()], LEGEND,
            ])),
            pictures=[path for _, run in by_run for path in figures(run, folder / "figures")],
            claims=claims(table),
            limits=LIMITS,
            printed=[Printed(heading, _smallest(text)) for heading, text in texts.items()],
        )  # fmt: skip


def measured(folder: Path) -> pd.DataFrame:
    """Cold rows of all runs of the bench there, compressors with the memory that jobs give them; empty without any.

    With the columns `run`, `model` (the benchmark whose gradients they are, or noise) and `floats_per_second`.
    """
    home = folder / "bench" if (folder / "bench").is_dir() else folder
    found = [used(pd.read_csv(path)).assign(run=path.parent.name) for path in sorted(home.glob(f"*/{CSV}"))]
    if not found:
        return pd.DataFrame()
    rows, jobs = pd.concat(found, ignore_index=True), read(home)
    models = {} if jobs.empty else dict(zip(jobs["parameters"], jobs["name_benchmark"], strict=True))
    captured = rows["captured"].astype(bool)
    named = [models.get(numel, "captured gradients") for numel in rows["numel"]]
    return rows.assign(
        model=np.where(captured, named, "normal noise"),
        floats_per_second=rows["numel"] / (1e-3 * rows["compress_ms_median"]),
    )


def claims(table: Frame) -> dict[str, Verdict]:
    """Of each device that the paper has."""
    found: dict[str, Verdict] = {}
    for device, name in DEVICES.items():
        rows = table[table["device"] == device]
        found |= {
            f"SIDCo-E compresses faster than Topk on the {name}": faster(rows, TOPK),
            f"SIDCo-E compresses faster than DGC on the {name}": faster(rows, "dgc"),
            f"SIDCo-E's mean k̂/k lies within {KHAT[0]:g} and {KHAT[1]:g} on the {name}": near(rows),
            f"SIDCo-E's cost is linear in d on the {name}": linear(rows),
        }
    return found


def faster(rows: Frame, rival: str) -> Verdict:
    """The ratio of two medians, not of each round; a difference that the quantiles bridge is told as such."""
    cells, keys = [], ["run", "vector", "ratio"]
    theirs = {tuple(row[key] for key in keys): row for row in _records(rows, rival)}
    for ours in _records(rows, OURS):
        other = theirs.get(tuple(ours[key] for key in keys))
        if other:
            times = other["compress_ms_median"] / ours["compress_ms_median"]
            first, last = sorted((ours, other), key=lambda row: row["compress_ms_median"])
            apart = first["compress_ms_p80"] < last["compress_ms_p20"]
            figure = f"{times:.2f}x{'' if apart else ' (within the spread of the calls)'}"
            cells.append(Cell(_place(ours), times > 1, figure))
    return Verdict(cells)


def near(rows: Frame) -> Verdict:
    low, high = KHAT
    dgc = {(row["run"], row["vector"], row["ratio"]): row["khat_over_k"] for row in _records(rows, "dgc")}
    cells = []
    for row in _records(rows, OURS):
        other = dgc.get((row["run"], row["vector"], row["ratio"]))
        figure = f"{row['khat_over_k']:.2f}{'' if other is None else f' (dgc {other:.2f})'}"
        cells.append(Cell(_place(row), low <= row["khat_over_k"] <= high, figure))
    return Verdict(cells)


def linear(rows: Frame) -> Verdict:
    """The exponent of cost against length, from a million floats of noise on."""
    low, high = LINEAR
    return Verdict([
        Cell(f"{run}, ratio {fit.ratio:g}", low <= fit.exponent <= high,
             f"d^{fit.exponent:.2f} from {fit.sizes:.0f} lengths")
        for run, same in rows.groupby("run", sort=False)
        for fit in fits(same).itertuples() if fit.compressor == OURS
    ])  # fmt: skip


def _records(rows: Frame, name: str) -> Sequence[dict]:
    return rows[rows["compressor"] == name].to_dict("records")


def _place(row: dict) -> str:
    return f"{_vector(row)}, ratio {row['ratio']:g}"


def _vector(row: dict) -> str:
    return f"{row['model']}, {row['numel']:,} floats"


def _heading(rows: Frame) -> str:
    first = rows.iloc[0].to_dict()
    return f"{DEVICES.get(first['device'], first['device'])} ({first['run']}): {_vector(first)}"


def _facts(run: Frame) -> str:
    """Of one run of the bench."""
    dirty = " **with uncommitted changes**" if run["uncommitted_changes"].eq(True).any() else ""
    return f"**{run['run'].iloc[0]}**\n\n" + bullets({
        "device": f"{several(run, 'device')}, {several(run, 'hardware')}, {several(run, 'threads')} threads",
        "software": f"torch {several(run, 'torch_version')}, commit {several(run, 'commit')}{dirty}, "
        f"code fingerprint {several(run, 'code_fingerprint')}",
        "vectors": "; ".join(dict.fromkeys(f"{_vector(row)}: {row['rotation']}" for row in run.to_dict("records"))),
        "rows": f"{len(run)}, origin: {several(run, 'origin')}; {run['rounds'].min()} to {run['rounds'].max()} rounds",
    })  # fmt: skip


def _missing(table: Frame) -> str:
    """Devices that nothing was measured on."""
    lines = [
        f"- **{name}**: no data; on a machine that has one, `make artifact-microbench DEVICE={device}` measures it"
        for device, name in DEVICES.items() if device not in set(table["device"])
    ]  # fmt: skip
    return "\n".join(lines)


def _text(rows: Frame) -> pd.DataFrame:
    """A line a ratio and compressor, the fastest first."""
    rows = rows.sort_values(["ratio", "compress_ms_median"], ascending=[False, True])
    rows = rows.assign(millions=1e-6 * rows["floats_per_second"])
    return pd.DataFrame({
        "compressor": rows["compressor"],
        "ratio": column(rows, "ratio", "{:g}"),
        "ms": _ranged(rows, "compress_ms", "{:.3g}"),
        "over Topk": _ranged(rows, "speedup_topk", "{:.3g}"),
        f"× {ADD}": _ranged(rows, "times_add", "{:.2f}"),
        "k̂/k": column(rows, "khat_over_k", "{:.2f}"),
        "M floats/s": column(rows, "millions", "{:.4g}"),
        "origin": rows["origin"],
    })  # fmt: skip


def _smallest(text: Frame) -> pd.DataFrame:
    """The lines of the smallest ratio, for a terminal."""
    return text[text["ratio"] == text["ratio"].iloc[-1]].drop(columns="origin")


def _ranged(rows: Frame, name: str, form: str) -> Frame:
    low, high = (column(rows, f"{name}_{part}", form) for part in ("p20", "p80"))
    return column(rows, f"{name}_median", form) + " (" + low + "–" + high + ")"


MICROBENCH = Microbench()
