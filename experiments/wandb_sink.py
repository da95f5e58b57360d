"""wandb as one more place for what a job records: a run a job, offline unless the user says otherwise.

Importing this module does not import wandb; a job with `logger=none` never does.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

AXES = ("step", "epoch", "seconds")


class WandbSink:
    """One job's run. Made on global rank 0 only."""

    def __init__(
        self, folder: Path, config: dict[str, Any], *, project: str, mode: str | None = None, tags: tuple[str, ...] = ()
    ) -> None:
        names = config["names"]
        attempt = 1 + len(list(folder.glob("wandb/*run-*")))  # the id of a deleted run cannot be used again
        self._run = _start(
            folder,
            project=project,
            mode=mode,
            id=f"{folder.name.rsplit('-', 1)[-1]}-{attempt}",
            name=folder.name,
            group=f"{names['experiment']}-{names['profile']}",
            job_type="train",
            tags=[str(names["benchmark"]), str(names["compressor"]), *tags],
            config=config,  # plain containers: wandb refuses OmegaConf's
        )
        for axis in AXES:
            self._run.define_metric(axis)
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, **scalars: float | None) -> None:
        self._run.log({"step": step, **{name: value for name, value in scalars.items() if value is not None}})

    def close(self, exit_code: int, **summary: Any) -> None:
        self._run.summary.update(summary)
        self._run.finish(exit_code=exit_code)


def log_report(folder: Path, key: str, tables: Mapping[str, Any], pictures: list[Path], project: str = "sidco") -> bool:
    """The tables and the pictures of a sweep as one run of its own; False if the same was logged before."""
    if list(folder.glob(f"wandb/*run-*-{key}")):
        return False
    import wandb

    run = _start(folder, project=project, mode=None, id=key, name=f"report {folder.name}", job_type="report")
    for name, table in tables.items():
        shown = table.astype(object).where(table.notna(), None)  # a table cell is a value or nothing, never NaN
        run.log({name: wandb.Table(columns=list(shown), data=shown.to_numpy().tolist())})
    run.log({path.stem: wandb.Image(str(path)) for path in pictures})
    run.finish()
    return True


def _start(folder: Path, *, mode: str | None, **settings: Any) -> Any:
    import wandb

    quiet = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True)
    chosen: Any = os.environ.get("WANDB_MODE") or mode or "offline"
    return wandb.init(dir=str(folder), mode=chosen, settings=quiet, reinit="create_new", **settings)
