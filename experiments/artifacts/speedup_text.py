"""The speed-up table as text, and what has to be said beside it."""

from typing import Any

import pandas as pd

from experiments.artifacts import NEVER, link
from experiments.artifacts.remarks import never, own_training, reasons, shared_training
from experiments.results import Frame
from experiments.text import bullets, column, markdown, plus_minus, seeds, several, without_empty

LOOPBACK = (
    "LOOPBACK: the links of these rows were NOT shaped. Messages crossed 127.0.0.1 at whatever rate that gives; "
    "these are not results about a network."
)
LEGEND = (
    "Plain DDP (`none`) exchanges inside its backward: its exchange is not separable, and `step - compute alone`, "
    "a step less one without exchange, stands for it. For the others that difference contains compression too. "
    "In the picture a bar longer than its tick, the whole step, hides work behind the exchange."
)
LIMITS = """\
- Not trained models: loss and quality are those after the few steps named, the loss a mean over the last five or fewer.
  They stand beside each speed to show that the method learns at all, not how well it ends.
- Not one speed-up: throughput is from medians of a step's time, excluded steps left out. Time to target and
  quality / time add up all steps, the first ones too, and are there only where quality was evaluated on the way:
  after a few steps, quality over time is throughput by another name. A target is seen when quality is next evaluated.
- Not another machine: no GPU unless the hardware says so, and ranks that share one machine's cores.
- Not all ranks: times and bytes are those of rank 0, which waits for the slowest within its exchange.
- Not latency: bandwidth is emulated, latency is not. Many small messages would cost more on a real network.
- Not free on a GPU: "host reads" counts how often the exchange of one step reads what a device computes. On a GPU
  the host waits each time; on a CPU, as here unless the hardware says otherwise, it costs nothing.
- Not certainty: ± of k̂/k is the normal 90 % interval 1.645 s/√n over steps, as if steps were independent;
  ± of a speed-up is the standard deviation between seeds, around a geometric mean. One seed has none, and says so."""
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
FASTER = 1.2  # times its rate: no shaped link gives that to a message that no burst can hide
LAST = "seeds"  # of the columns of the first table that fit 120 characters


def warning(table: Frame) -> str:
    """What must not be overlooked."""
    return LOOPBACK if (table["network"] == "loopback").any() else ""


def facts(rows: Frame) -> str:
    """What the rows were measured under; several values where the jobs differ."""
    burst = f", burst {several(rows, 'burst_kib')} KiB" if (rows["network"] == "shaped").any() else ""
    listed = bullets({
        "network": f"{', '.join(sorted({link(row) for row in rows.itertuples()}))}{burst}; **latency is not emulated**",
        "ranks": f"{several(rows, 'world_size')}, {several(rows, 'ranks_per_node')} a node",
        "threads of a rank": several(rows, "threads_per_rank"),
        "steps": f"{several(rows, 'steps_timed')} timed after {several(rows, 'excluded_steps')} excluded",
        "seeds": several(rows, "seed"),
    })  # fmt: skip
    return "\n\n".join(filter(None, [listed, _probes(rows), _unthrottled(rows)]))


def _probes(rows: Frame) -> str:
    """What the links really gave, before each job: medians over jobs."""
    columns = [name for name in rows if name.startswith("probe_")]
    found: list[dict[str, Any]] = []
    for _, same in rows.groupby(["network", "rate_mbit_per_s"], dropna=False):
        for name in same[columns].dropna(axis=1, how="all"):  # a slow link is not probed with the largest message
            way, size = name.removeprefix("probe_").removesuffix("_mbit_per_s").rsplit("_", 1)
            found.append({"link": link(same.iloc[0]), "message": size, way: same[name].median()})
    if not found:
        return ""
    table = pd.DataFrame(found).groupby(["link", "message"], sort=False, as_index=False).first()
    shown = table.map(
        lambda value: f"{value:.1f}" if isinstance(value, float) else value.replace("000kb", " MB").replace("kb", " KB")
    )
    return f"Rates reached, Mb/s that left a rank's interface (median over jobs):\n\n{markdown(shown)}"


def _unthrottled(rows: Frame) -> str:
    """Said where a message too large for the burst crossed a shaped link faster than the link is said to be."""
    columns = [name for name in rows if name.startswith("probe_") and "_100kb_" not in name]
    shaped = rows[rows["network"] == "shaped"]
    reached = shaped[columns].max(axis=1) / shaped["rate_mbit_per_s"]
    over = reached[reached > FASTER]
    if over.empty:
        return ""
    return (
        f"> **NOT THROTTLED: in {len(over)} of {len(shaped)} jobs 1 or 10 MB crossed the link at up to "
        f"{over.max():.1f} times its rate. What these rows say of that link is void.**"
    )


def heading(rows: Frame) -> str:
    """Of a cell: where it was measured, and the size of what was trained."""
    first = rows.iloc[0]
    size = (
        f"{first['parameters'] / 1e6:.2f} M parameters, {first['batch_per_rank']} a rank, {first['world_size']} ranks"
    )
    name, link_and_more = first["where"].split(", ", 1)
    return f"{name} on {first['dataset']}, {link_and_more} ({size})"


def tables(rows: Frame) -> dict[str, pd.DataFrame]:
    """The rows of a cell: speed and quality side by side, and the split of a step."""
    name = {"compressor": rows["label"], "ratio": column(rows, "ratio", "{:g}")}
    split = {label: column(rows, part, "{:.1f}") for label, part in TIMES.items()}
    return {
        "Speed and quality": _speed(rows, name),
        "Where a step's time goes (ms, medians)": without_empty(
            pd.DataFrame(
                {**name, **split, "host reads": column(rows, "host_reads", "{:.0f}"), "origin": rows["origin"]}
            )
        ),
    }


def _speed(rows: Frame, name: dict[str, Any]) -> pd.DataFrame:
    """Without the columns in which no row has an entry: without a target, its two are not there."""
    first, baselines = rows.iloc[0], "/".join(sorted(set(rows["best_dense"]) - {""}))
    steps = "/".join(f"{n:g}" for n in sorted(set(rows["loss_after_steps"])))
    return without_empty(pd.DataFrame({
        **name,
        f"{first['unit']}/s": column(rows, "units_per_second", "{:.4g}"),
        "over fp32": plus_minus(rows, "speedup_over_fp32", "speedup_sd", "{:.2f}x"),
        f"over best dense{baselines and f' ({baselines})'}": column(rows, "speedup_over_best_dense", "{:.2f}x"),
        f"time to {first['metric']} {first['target']:g}": [_to_target(row) for row in rows.itertuples()],
        "quality / time over fp32": column(rows, "quality_over_fp32", "{:.2f}x").replace("0.00x", "0"),
        f"loss after {steps} steps (not trained)": column(rows, "loss_last", "{:.3f}"),
        f"{first['metric']} after {steps} steps": column(rows, "metric_value", "{:.4g}"),
        "k̂/k": plus_minus(rows, "khat_over_k", "khat_over_k_ci90", "{:.2f}"),
        "seeds": seeds(rows),
        "density": column(rows, "density", "{:.3g}"),
        "payload KB": column(rows, "payload_kb", "{:.4g}"),
        "sent KB": column(rows, "sent_kb", "{:.4g}"),
        "training": own_training(rows),
        "origin": rows["origin"],
    }))  # fmt: skip


def _to_target(row: Any) -> str:
    """Seconds, and how many times sooner than dense; the mark if a seed never got there."""
    seconds = row.seconds_to_target
    times = "" if pd.isna(row.target_over_fp32) else f" ({row.target_over_fp32:.2f}x)"
    return never(row) or f"{seconds:.{0 if seconds >= 100 else 2}f} s{times}"


def terminal(rows: Frame) -> pd.DataFrame:
    """What fits 120 columns: the loss only where quality is seen once."""
    text = next(iter(tables(rows).values())).loc[:, :LAST]
    losses = [name for name in text if name.startswith("loss")]
    return text.drop(columns=losses) if rows["quality_over_fp32"].notna().any() else text


def notes(rows: Frame) -> list[str]:
    """What all rows share, what columns and marks mean, and why a speed-up is blank."""
    first, said = rows.iloc[0], shared_training(rows)
    if rows["target"].notna().any():
        said.append("time to the target: seconds of steps until it was first seen (how many times sooner than dense)")
    if rows["quality_over_fp32"].notna().any():
        quality = first["metric"] if first["higher_is_better"] else f"1/{first['metric']}"
        said.append(f"quality / time: final {quality} over seconds of training, relative to that of dense")
    if (rows["reached_target"] < rows["seeds"]).any():
        said.append(f"{NEVER}: the target was never reached in these steps; quality / time is then 0")
    return [*said, *reasons(rows)]


def headline(numbers: Frame) -> str:
    """The paper's numbers, and ours beside them."""
    numbers["measured_max"] = column(numbers, "measured_max", "{:.2f}x")
    names = {"value": "the paper's", "measured_max": "measured here, largest", "measured_where": "where"}
    return (
        "The paper's are of training as a whole on its own cluster; those measured here are of throughput.\n\n"
        f"{markdown(numbers.rename(columns=names))}"
    )
