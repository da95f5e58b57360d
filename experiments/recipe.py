"""How a run trains, read from its configuration: what two runs must share to be compared, and what each row states."""

import json
import math
from typing import Any

from experiments.build import ConfigError, build, scientific
from experiments.data import Dataset
from experiments.schedule import Schedule

COMPRESSION = ("method", "plan", "seed")  # what two jobs that may be compared differ in
OF_MEMORY = ("step_space", "local_clip")  # switches of training that say how a compressor is used, not what is trained
MEMORIES = {
    "ErrorFeedback": "gradient space",
    "MomentumCorrection": "momentum correction",
    "PowerSGD": "PowerSGD's own",
}
SAID = {"gradient space": "EF in gradient space", "step space": "EF in step space", "none": "no memory"}
PARTS = ("memory", "momentum", "weight_decay", "learning_rate", "schedule")
IN_EPOCHS = ("evaluate_every", "checkpoint_every")  # where training.epochs is set


def recipe(config: dict[str, Any]) -> dict[str, Any]:
    """Where momentum is applied, weight decay, and what the compressor does with what it did not send.

    `after`: the optimizer's momentum, of the mean that arrives; `before`: of each worker's own gradient, and what is
    sent comes of it (momentum correction). A key that an older configuration lacks is off.
    """
    classes = {node["_target_"].rsplit(".", 1)[-1]: node for node in _nodes(config["method"])}
    memory = next((MEMORIES[name] for name in classes if name in MEMORIES), "none")
    if memory == "gradient space" and config["training"].get("step_space"):
        memory = "step space"
    value, nesterov, where = _momentum(config)
    applied = f"{value:g}{' nesterov' if nesterov else ''} {where}" if value else "none"
    return {
        "momentum": applied,
        "weight_decay": float(_optimizer(config).get("weight_decay") or 0),
        "learning_rate": float(_optimizer(config).get("lr", math.nan)),
        "schedule": str(build(config.get("schedule")) or Schedule()),
        "decay_1d": config["training"].get("decay_1d", True),
        "memory": memory,
    }


def later(row: Any) -> dict[str, Any]:
    """What older tables of runs do not state of a row: constant rates, and weight decay of all parameters."""
    return {"schedule": row.get("schedule", str(Schedule())), "decay_1d": row.get("decay_1d", True)}


def in_steps(config: dict[str, Any], dataset: Dataset) -> dict[str, Any]:
    """The configuration with what it counts in epochs counted in steps; the data set has been prepared."""
    training = config["training"]
    if training["epochs"] is None:
        return config
    per_epoch = dataset.steps_per_epoch(config["workers"]["world_size"], training["batch_per_rank"])
    total = math.ceil(training["epochs"] * per_epoch)
    if total <= training["excluded_steps"] or max(training["capture_steps"], default=0) >= total:
        raise ConfigError(
            f"training.epochs={training['epochs']:g} are {total} steps: expected more than training.excluded_steps, "
            f"{training['excluded_steps']}, and than all of capture.steps, {training['capture_steps']}"
        )
    often = {key: training[key] and training[key] * per_epoch for key in IN_EPOCHS}
    return {**config, "training": {**training, "steps": total - training["excluded_steps"], **often}}


def compared(config: dict[str, Any]) -> dict[str, Any]:
    """What is trained: equal in runs that may be compared, so a dense run is a baseline of true DGC too.

    Momentum counts by its size, wherever it is applied. What a compressor does with it is in `compression`.
    """
    kept = {key: value for key, value in scientific(config).items() if key not in COMPRESSION}
    value, nesterov, _ = _momentum(config)
    decay = _optimizer(config).get("weight_decay") or 0
    kept["optimizer"] = {**_optimizer(config), "momentum": value, "nesterov": nesterov, "weight_decay": decay}
    apart = (*OF_MEMORY, "momentum")  # what of it is applied stands under optimizer
    kept["training"] = {key: value for key, value in config["training"].items() if key not in apart}
    return kept


def compression(config: dict[str, Any]) -> dict[str, Any]:
    """What is sent and how: rows that agree in this too differ in their seed only."""
    switches = {key: True for key in OF_MEMORY if config["training"].get(key)}
    return {"method": config["method"], "plan": config["plan"], **switches}


def rule(sent: str) -> str:
    """How SIDCo adapts its stages, of a row's `compression`; empty where nothing is adapted by a rule."""
    nodes = _nodes(json.loads(sent)["method"])
    return next((str(node["rule"]) for node in nodes if "rule" in node and node.get("stages") is None), "")


def said(row: Any, part: str) -> str:
    """A part of the recipe in a row of a table, for people."""
    value = row[part]
    if part == "memory":
        return SAID.get(value) or str(value)
    if part == "momentum":
        return "no momentum" if value == "none" else f"momentum {value} compression"
    if part == "learning_rate":
        return f"learning rate {value:g}"
    if part == "schedule":
        return "constant rate" if value == str(Schedule()) else f"rate with {value}"
    where = "" if row.get("decay_1d", True) else " (not of 1-D parameters)"
    return f"weight decay {value:g}{where}" if value else "no weight decay"


def _optimizer(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("optimizer") or {}


def _momentum(config: dict[str, Any]) -> tuple[float, bool, str]:
    """Its size, whether it looks ahead, and where it is applied; both places at once are refused before a run."""
    for node in _nodes(config["method"]):
        if node["_target_"].endswith(".MomentumCorrection"):
            return float(node["momentum"]), bool(node.get("nesterov")), "before"
    optimizer = _optimizer(config)
    return float(optimizer.get("momentum") or 0), bool(optimizer.get("nesterov")), "after"


def _nodes(node: Any) -> list[dict[str, Any]]:
    """Every description of an object inside `node`, outermost first."""
    if not isinstance(node, dict):
        return []
    inner = [found for value in node.values() for found in _nodes(value)]
    return [node, *inner] if "_target_" in node else inner
