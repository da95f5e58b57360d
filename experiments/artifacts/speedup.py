"""The speed-up table: each compressor against dense training on the same link.

Source: SIDCo, the speed-up panels of the figures on LSTM-PTB, ResNet-20, VGG16 and the ImageNet models (Figs 3, 5, 6).
Three columns, never one: throughput, time to a target quality, and the paper's normalised training speed-up, the final
quality over the time of training, 0 where the target is not reached. Differs from the paper: the last two are there
only of runs that were evaluated on the way, for after a few steps they would be throughput by another name.
"""

import math
from typing import Any

import numpy as np
import pandas as pd

from experiments.artifacts import BF16, FP32, ROW, in_order, paper_numbers, place, where
from experiments.artifacts import speedup_text as text
from experiments.artifacts.cells import CellTable
from experiments.artifacts.scaling import timed_elsewhere
from experiments.artifacts.speedup_claims import CLAIMS, RIVALS, pairs
from experiments.artifacts.speedup_pictures import SPLIT, figures
from experiments.recipe import later
from experiments.results import Frame, geometric_mean, labels

FIRST = [
    "name_benchmark", "name_dataset", "name_compressor", "network", "rate_mbit_per_s", "unit", "metric", "origin",
    "name_feedback", "name_plan", "parameters", "world_size", "batch_per_rank", "hardware", "torch_version",
    "code_fingerprint", "where", "momentum", "weight_decay", "learning_rate", "memory", "target",
    "higher_is_better",
]  # fmt: skip
MEANS = [
    "loss_last",
    "metric_value",
    "density",
    "step_ms",
    "compute_only_ms",
    "exposed_comm_ms",
    "stages_last",
    "host_reads",
]


def draw(runs: Frame) -> pd.DataFrame:
    """One row per benchmark, link, compressor and ratio; several seeds become a geometric mean and its spread."""
    runs = runs.rename(columns=lambda name: name.removesuffix("_median"))
    runs = _against_dense(runs.assign(label=labels(runs), where=where(runs)))
    return in_order(pd.DataFrame([_row(jobs) for _, jobs in runs.groupby(ROW, dropna=False)]))


def _against_dense(runs: Frame) -> pd.DataFrame:
    """Each job over the dense jobs of its own cell and seed, the fastest where there are several; NaN where none is."""
    speed, sooner, quality = runs["units_per_second"], 1 / runs["seconds_to_target"], _quality_per_second(runs)
    fp32, bf16 = (_dense(runs, speed, name) for name in (FP32, BF16))
    dense_quality = _dense(runs, quality, FP32)
    return runs.assign(
        over_fp32=speed / fp32,
        over_best_dense=speed / np.maximum(fp32, bf16),  # NaN unless both were run: the better of one is no contest
        best_dense=np.where(bf16 > fp32, BF16, FP32),
        target_over_fp32=sooner / _dense(runs, sooner, FP32),
        quality_over_fp32=(quality / dense_quality).where(dense_quality > 0),
    )


def _dense(runs: Frame, rate: Frame, name: str) -> Any:
    """The rate of the dense job of that name for each job, in its order."""
    keys = pd.MultiIndex.from_frame(runs[["cell", "seed"]])
    of_one = rate[runs["name_compressor"] == name]
    return of_one.groupby([runs["cell"], runs["seed"]]).max().reindex(keys).to_numpy()


def _quality_per_second(runs: Frame) -> pd.Series:
    """Final quality over the time of training, inverted where less is better; 0 where the target was not reached."""
    good = runs["metric_value"].where(runs["higher_is_better"], 1 / runs["metric_value"])
    known = (runs["points"] > 0) | runs["target"].notna()
    never = runs["target"].notna() & runs["seconds_to_target"].isna()
    return (good / runs["train_seconds"]).where(known).mask(never, 0.0)


def _row(jobs: Frame) -> dict[str, Any]:
    """One row of the table, of the jobs that differ in their seed. KB are 1000 bytes, per step and rank."""
    first, over = jobs.iloc[0], jobs["over_fp32"].dropna()
    split = jobs[SPLIT].mean()
    if math.isnan(split["exchange_ms"]):
        split["forward_backward_ms"] = math.nan  # plain DDP exchanges inside its backward: the two cannot be told apart
    low, high = (over * (jobs["step_ms"] / jobs[f"step_ms_{end}"])[over.index] for end in ("p80", "p20"))
    return {
        **{name.removeprefix("name_"): first[name] for name in (*FIRST, *ROW[:3])},
        **later(first),
        "units_per_second": geometric_mean(jobs["units_per_second"]),
        "speedup_over_fp32": geometric_mean(over),
        "speedup_sd": over.std(),  # between seeds; NaN of one
        "speedup_p20": geometric_mean(low), "speedup_p80": geometric_mean(high),  # own steps over dense's median
        "speedup_over_best_dense": geometric_mean(jobs["over_best_dense"].dropna()),
        **_to_quality(jobs),
        "best_dense": "/".join(sorted(set(jobs.loc[jobs["over_best_dense"].notna(), "best_dense"]))),
        **jobs[MEANS].mean().to_dict(), **split.to_dict(),
        "step_ms_p20": jobs["step_ms_p20"].mean(), "step_ms_p80": jobs["step_ms_p80"].mean(),
        "loss_after_steps": first["excluded_steps"] + first["steps_timed"],
        "khat_over_k": jobs["khat_over_k_mean"].mean(),
        "khat_over_k_ci90": math.sqrt((jobs["khat_over_k_ci90"] ** 2).sum(skipna=False)) / len(jobs),
        "payload_kb": jobs["payload_bytes"].mean() / 1000, "sent_kb": jobs["sent_bytes"].mean() / 1000,
        "seeds": len(jobs), "note": _note(jobs),
    }  # fmt: skip


def _to_quality(jobs: Frame) -> dict[str, float]:
    """Time to the target, if all seeds reached it, and final quality over time: 0 if one seed's is."""
    target, reached = jobs["target"].notna().any(), jobs["seconds_to_target"].notna()
    timed = jobs if reached.all() else jobs[:0]
    quality = jobs["quality_over_fp32"].dropna()
    return {
        "reached_target": reached.sum() if target else math.nan,  # seeds
        "seconds_to_target": geometric_mean(timed["seconds_to_target"]),
        "steps_to_target": timed["steps_to_target"].mean(),
        "target_over_fp32": geometric_mean(timed["target_over_fp32"].dropna()),
        "train_seconds": geometric_mean(jobs["train_seconds"]),
        "quality_over_fp32": 0.0 if (quality == 0).any() else geometric_mean(quality),
    }


def _note(jobs: Frame) -> str:
    notes = ["1 seed"] if len(jobs) == 1 else []
    for column, wanted in (("over_fp32", "dense fp32 (none)"), ("over_best_dense", "none and bf16")):
        seeds = jobs.loc[jobs[column].isna(), "seed"]
        if len(seeds):
            notes.append(
                f"no speed-up {column.replace('_', ' ')} for seed {_listed(seeds)}: {wanted} did not finish in this "
                "sweep with the same training"
            )
    alone = jobs["seconds_to_target"].notna() & jobs["target_over_fp32"].isna() & jobs["over_fp32"].notna()
    if alone.any():
        notes.append(
            f"no speed-up to the target for seed {_listed(jobs.loc[alone, 'seed'])}: dense fp32 never reached it"
        )
    return "; ".join(notes)


def _listed(seeds: Frame) -> str:
    return ", ".join(map(str, sorted(seeds)))


def headline(table: Frame, numbers: Frame) -> pd.DataFrame:
    """The paper's "up to" beside the largest ratio measured here; the two are never in one column."""
    rivals = {f"SIDCo over {said}": name for name, said in RIVALS.items()}
    rows = []
    for number in numbers.itertuples():
        found = [
            (ours.units_per_second / theirs.units_per_second, place(ours))
            for ours, theirs in pairs(table, rivals.get(str(number.claim), ""))
        ]
        times, where = max(found, default=(math.nan, "no data"))
        rows.append({
            "claim": number.claim, "value": f"up to {number.value}{number.unit}", "origin": "paper",
            "page": number.page or "page not transcribed", "source": f"[{number.mark}] {number.source}",
            "measured_max": times, "measured_where": where,
        })  # fmt: skip
    return pd.DataFrame(rows)


def _select(runs: Frame) -> Frame:
    """Not of workers in one process, which have no speed, nor of what another artifact times."""
    return runs[(runs["network"] != "virtual") & ~timed_elsewhere(runs)]


SPEEDUP = CellTable(
    name="speedup",
    title="Speed",
    source="SIDCo (arXiv 2101.10761): the speed-up panels of its figures on end-to-end training",
    experiment="speedup",
    select=_select,
    draw=draw,
    facts=text.facts,
    heading=text.heading,
    tables=text.tables,
    terminal=text.terminal,
    notes=text.notes,
    figures=figures,
    legend=text.LEGEND,
    limits=text.LIMITS,
    warning=text.warning,
    headline=lambda table: text.headline(headline(table, paper_numbers())),
    claims=CLAIMS,
)
