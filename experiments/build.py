"""Configuration -> objects: its checks, and the only place that instantiates."""

import hashlib
import json
import math
import re
from dataclasses import fields
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError

from experiments.schema import Capture, Config, Network, Training, Workers
from sidco.compressor import check_ratio

# what a configuration says beside what is measured
ASIDE = ("ratio", "names", "output", "feedback", "wire", "compressor", "fail_fast", "logger", "slots")
RATE_UNITS = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}


class ConfigError(ValueError):
    """The configuration cannot be run as it stands."""


class Incompatible(ConfigError):
    """Two choices that do not go together: a cell of a grid to be skipped, with the reason."""


def rate_mbit(rate: str) -> float:
    """'100mbit' -> 100.0."""
    found = re.fullmatch(r"([0-9.]+)(kbit|mbit|gbit)", rate)
    if not found or not _positive(found[1]):
        raise ConfigError(f"network.rate must be a number above 0 and a unit, 100mbit or 1gbit, got {rate!r}")
    return float(found[1]) * RATE_UNITS[found[2]]


def check(cfg: DictConfig) -> dict[str, Any]:
    """The resolved configuration as plain containers, or a ConfigError that says what to write instead."""
    try:
        check_ratio(cfg.ratio)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for key, low in (("training.steps", 1), ("training.excluded_steps", 0), ("workers.world_size", 1)):
        if OmegaConf.select(cfg, key) < low:
            raise ConfigError(f"{key} must be at least {low}, got {OmegaConf.select(cfg, key)}")
    _check_network(cfg.network, cfg.workers)
    try:
        plain = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except InterpolationKeyError as error:
        names = cfg.names
        wanted = re.search(r"'([^']+)' not found", str(error))
        raise Incompatible(
            f"model {names.model} needs {wanted[1] if wanted else error}, which dataset {names.dataset} does not have"
        ) from None
    assert isinstance(plain, dict)
    for path, part, kind in (
        ("", plain, Config),
        ("network.", plain["network"], Network),
        ("workers.", plain["workers"], Workers),
        ("training.", plain["training"], Training),
        ("capture.", plain["capture"], Capture),
    ):
        known = [entry.name for entry in fields(kind)]
        for key in part:
            if key not in known:  # a + on the command line gets past Hydra, and would be obeyed by nobody
                raise ConfigError(f"{path}{key} is not known here: it must be one of {', '.join(known)}")
    for part in ("method", "plan", "schedule"):
        build(plain[part])  # their constructors refuse what makes no sense: now, not on every rank later
    _check_wire(plain)
    _check_feedback(plain)
    _check_training(plain["training"])
    names = plain["names"]  # without a benchmark, model and data were chosen one by one
    names["benchmark"] = names.get("benchmark") or f"{names['model']}+{names['dataset']}"
    if plain["training"]["step_space"] and not plain["optimizer"]["lr"] > 0:
        raise ConfigError(f"training.step_space needs a learning rate above 0, got {plain['optimizer']['lr']}")
    return {str(key): value for key, value in plain.items()}


def _check_training(training: dict[str, Any]) -> None:
    for key, wanted in (("evaluate_every", "valid_batches"), ("target", "evaluate_every")):
        if training[key] is not None and not training[wanted]:
            raise ConfigError(f"training.{key} needs training.{wanted}: there would be nothing to look at")
    for key in ("evaluate_every", "checkpoint_every"):
        if training[key] is not None and training[key] < 1:
            raise ConfigError(f"training.{key} must be null or at least 1, got {training[key]}")
    for key in ("epochs", "time_cap_s"):
        if training[key] is not None and not 0 < training[key] < math.inf:
            raise ConfigError(f"training.{key} must be null or above 0, got {training[key]}")
    if training["epochs"] is not None:
        training["steps"] = None  # of epochs, how many is known when the data is
    total = math.inf if training["steps"] is None else training["excluded_steps"] + training["steps"]
    if not all(0 <= step < total for step in training["capture_steps"]):
        raise ConfigError(
            f"capture.steps must lie in 0 to {total - 1}, this job's steps, got {training['capture_steps']}"
        )


def _check_wire(plain: dict[Any, Any]) -> None:
    """Only sparse messages can be coded; which a compressor sends is known when it has sent one."""
    if plain["wire"] == plain["compressor"]:
        return
    if plain["compressor"] is None:
        raise ConfigError("this compressor has no message to code: drop wire=")
    wire, x = build(plain["wire"]), torch.ones(64)
    try:
        wire.compress(x, wire.init(x))
    except ValueError as error:
        raise ConfigError(f"{error}: use wire=plain") from None


def _check_feedback(plain: dict[Any, Any]) -> None:
    feedback = plain["feedback"] or {}
    if plain["compressor"] is None and feedback:
        raise Incompatible("this compressor has no message to feed back: drop feedback=")
    if "momentum" in feedback and plain["optimizer"].get("momentum"):
        raise ConfigError("feedback=momentum applies training.momentum before compression: set optimizer.momentum=0")
    if plain["training"]["local_clip"] and feedback.get("clip") is None and plain["training"]["clip_norm"]:
        raise ConfigError("training.local_clip leaves the average unclipped, so feedback.clip must be set")


def _check_network(network: DictConfig, workers: DictConfig) -> None:
    if network.cluster and (network.shaped or workers.virtual):
        raise ConfigError(
            "network=cluster is made of real nodes: neither network.shaped nor workers.virtual goes with it"
        )
    if not network.shaped:
        if network.rate is not None:
            raise ConfigError(f"network.rate={network.rate} limits nothing on loopback: add network=shaped")
        return
    if network.rate is None:
        raise ConfigError("network=shaped needs network.rate, such as 100mbit")
    rate_mbit(network.rate)
    if workers.virtual:
        raise ConfigError("workers.virtual=true sends nothing: a shaped link would say nothing about it")
    if workers.world_size < 2:
        raise ConfigError("network=shaped needs workers.world_size of at least 2: one rank has nobody to talk to")


def scientific(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a checked configuration that decides what is measured.

    `ratio` itself is not in it: what uses it has it resolved, so dense jobs of a grid over ratios are one job.
    """
    kept = {key: value for key, value in config.items() if key not in ASIDE}
    kept["network"] = {key: value for key, value in config["network"].items() if key != "port"}
    kept["workers"] = {key: value for key, value in config["workers"].items() if not key.endswith("timeout_s")}
    return kept


def digest(content: Any) -> str:
    """Twelve hexadecimal digits of the sha256 of anything that is JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def target_ratio(config: dict[str, Any]) -> float | None:
    """The ratio the compressor aims at; None for one that has none."""
    node = config["compressor"] or {}
    return node["ratio"] if "ratio" in node else (node.get("inner") or {}).get("ratio")


def build(node: Any) -> Any:
    """The object a node of a checked configuration describes; None for None."""
    try:
        return None if node is None else instantiate(node)
    except InstantiationException as error:
        if isinstance(error.__cause__, ValueError | TypeError):  # a constructor's words, without Hydra's around them
            raise ConfigError(str(error.__cause__)) from None
        raise


def _positive(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False
