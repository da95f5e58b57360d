"""What a notebook looks at: somebody's own runs where there are some, else the committed reference of that profile."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from experiments.artifacts.estimation import ESTIMATION
from experiments.curves import series
from experiments.publish import REFERENCE
from experiments.results import Frame, labels, newest_code, read
from experiments.text import several

NEEDED = {"cell", "setting", "compression", "points"}  # columns that a table is made with; older files lack some
TEXT = ("cell", "code_fingerprint", "commit", "python_version", "torch_version")  # that may look like numbers
STEP = ("khat_over_k", "stages")
SERIES = ["cell", "label", "ratio", "seed"]  # what a published step says of its job


class NothingToRead(RuntimeError):
    """There are neither runs nor a reference, or none that can be shown."""


@dataclass(frozen=True)
class Reading:
    """Rows as `results.read` gives them, of one code, and whose they are. `print` tells."""

    runs: Frame  # a DataFrame
    folder: Path  # of the report: outputs/quick, or one below results/reference
    own: bool  # not the reference

    def __str__(self) -> str:
        whose = "your own runs" if self.own else "the committed reference, for there are no runs of your own"
        dirty = ", WITH UNCOMMITTED CHANGES" if self.runs["uncommitted_changes"].eq(True).any() else ""
        return (
            f"{len(self.runs)} rows, {whose}: {'/'.join(self.folder.resolve().parts[-2:])}\n"
            f"hardware: {several(self.runs, 'hardware')}; torch {several(self.runs, 'torch_version')}\n"
            f"commit: {several(self.runs, 'commit')}{dirty}\n"
            f"origin: {several(self.runs, 'origin')}; seeds: {several(self.runs, 'seed')}"
        )

    def steps(self) -> pd.DataFrame:
        """Timed steps of `runs`: job, step, khat_over_k, stages (NaN: it has none).

        Of a reference, where `runs` are those of `estimates`, as published beside them; else none.
        """
        if self.own:
            return series(self.folder, self.runs, STEP)
        path, names = self.folder / "tables" / f"{ESTIMATION.name}_series.csv", ["job", "step", *STEP]
        if not path.exists():
            return pd.DataFrame(columns=names, dtype=float)
        told = self.runs.assign(label=labels(self.runs))[["job", *SERIES]]  # there, a job is named by what it is of
        return pd.read_csv(path, dtype={"cell": str}).merge(told, on=SERIES).reindex(columns=names)


def own_or_reference(
    output: Path, wanted: Callable[[Frame], Frame] = lambda runs: runs, reference: Path = REFERENCE
) -> Reading:
    """The rows of `output` (such as outputs/quick) that are `wanted`; without one, those of the newest reference of
    the profile that folder is named after.
    """
    runs = read(output)
    rows = wanted(newest_code(runs)) if len(runs) else runs
    if len(rows):
        return Reading(rows, output, own=True)
    paths = sorted(reference.glob(f"*/{output.name}/runs.csv"))
    if not paths:
        known = ", ".join(sorted({path.parent.name for path in reference.glob("*/*/runs.csv")}))
        raise NothingToRead(
            f"expected finished jobs in {output}, or a reference of that profile (there is: {known or 'none'}), got "
            f"neither; run `make reproduce-table PROFILE={output.name}`"
        )
    return max((_published(path, wanted) for path in paths), key=lambda found: found.runs["finished"].max())


def estimates(runs: Frame) -> pd.DataFrame:
    """Rows of compressors that estimate a threshold for k, in runs long enough for it to find its way; where none is,
    all rows that aim at a k.
    """
    chosen = ESTIMATION.select(runs)
    return chosen if len(chosen) else runs[runs["khat_over_k_mean"].notna()]


def _published(path: Path, wanted: Callable[[Frame], Frame]) -> Reading:
    runs, name = pd.read_csv(path, dtype=dict.fromkeys(TEXT, str)), "/".join(path.parts[-3:])
    missing = sorted(NEEDED - set(runs))
    if missing:
        raise NothingToRead(
            f"{name} was published by older code: expected the columns {', '.join(missing)}, got none; look at "
            "another profile, or run and publish it anew"
        )
    rows = wanted(runs)
    if not len(rows):
        raise NothingToRead(f"{name} has no row of the kind looked for: look at another profile")
    return Reading(rows, path.parent, own=False)
