"""Where training ends as text, and what has to be said beside it. No seconds: virtual workers have none."""

import pandas as pd

from experiments.artifacts import FP32, NEVER
from experiments.artifacts.remarks import never, own_training, reasons, shared_training
from experiments.results import Frame
from experiments.text import NOTHING, bullets, column, plus_minus, seeds, several, without_empty

LIMITS = """\
- Not the paper's training: epochs, batch and learning rate are those named here. A compressor may end elsewhere after
  more of them; a claim holds or fails after as many as these.
- Not a speed: virtual workers share one process and take turns, so nothing here is a time. Their arithmetic is that
  of real ranks; bytes are what each would have sent.
- Not certainty: ± is the standard deviation between seeds. One seed has none, says so, and a point more or less may be
  luck.
- Best is the best of all evaluations, on the same images or words that are looked at throughout: end is the fairer."""
ASIDE = ("density", "training", "origin")  # left to the files: what is left fits 120 columns


def facts(rows: Frame) -> str:
    """What was trained, and how often it was looked at."""
    workers = {True: "virtual workers in one process", False: "ranks"}
    kinds = sorted({workers[network == "virtual"] for network in rows["network"]})
    return bullets({
        "workers": f"{several(rows, 'world_size')}, {' and '.join(kinds)}",
        "steps": f"{several(rows, 'steps_total')}, of {several(rows, 'batch_per_rank')} a worker",
        "evaluations on the way": several(rows, "points"),
        "seeds": several(rows, "seed"),
    })  # fmt: skip


def heading(rows: Frame) -> str:
    """Of a cell: what was trained, and for how long."""
    first = rows.iloc[0]
    epochs = "" if pd.isna(first["epochs"]) else f"{first['epochs']:.3g} epochs = "
    size = f"{first['parameters'] / 1e6:.2f} M parameters, {first['world_size']} workers of {first['batch_per_rank']}"
    name, rest = first["where"].split(", ", 1)
    return f"{name} on {first['dataset']}, {rest} ({size}, {epochs}{first['steps_total']} steps)"


def tables(rows: Frame) -> dict[str, pd.DataFrame]:
    """The rows of a cell: how well each ends, and what it sends."""
    first, gap = rows.iloc[0], plus_minus(rows, "gap_to_dense", "gap_sd", "{:+.2f}")
    goal = f"{first['metric']} {first['target']:g}"
    text = pd.DataFrame({
        "compressor": rows["label"],
        "ratio": column(rows, "ratio", "{:g}"),
        f"{first['metric']} at the end": plus_minus(rows, "final", "final_sd", "{:.2f}"),
        "best": column(rows, "best", "{:.2f}"),
        "gap to dense": gap.where(rows["compressor"] != FP32, NOTHING),
        f"steps to {goal}": [never(row) or f"{row.steps_to_target:g}" for row in rows.itertuples()],
        "train loss": column(rows, "loss_last", "{:.3f}"),
        "k̂/k": column(rows, "khat_over_k", "{:.2f}"),
        "density": column(rows, "density", "{:.3g}"),
        "payload KB a step": column(rows, "payload_kb", "{:.4g}"),
        "seeds": seeds(rows),
        "training": own_training(rows),
        "origin": rows["origin"],
    })  # fmt: skip
    return {"How training ends": without_empty(text)}


def terminal(rows: Frame) -> pd.DataFrame:
    """What fits 120 columns."""
    (text,) = tables(rows).values()
    return text.drop(columns=list(ASIDE), errors="ignore")


def notes(rows: Frame) -> list[str]:
    """What all rows share, what columns and marks mean, and why a gap is blank."""
    first, said = rows.iloc[0], shared_training(rows)
    if (rows["compressor"] != FP32).any():
        said.append(f"gap to dense: in points of {first['metric']}, seed by seed; below 0 is worse than dense")
    if (rows["reached_target"] < rows["seeds"]).any():
        said.append(f"{NEVER}: {first['metric']} {first['target']:g} was never seen in these steps")
    return [*said, *reasons(rows)]
