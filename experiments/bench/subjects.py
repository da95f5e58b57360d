"""Who is measured: every conf/compressor/*.yaml as jobs instantiate it, and the pass over memory they are held to."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from torch import Tensor

from experiments.build import ConfigError, check, target_ratio
from experiments.record import ROOT
from sidco.compressor import Compressor
from sidco.payload import Payload, Sparse
from sidco.view import Layout

ADD, TOPK = "add_", "topk"  # what everything is compared with


class Subject(NamedTuple):
    """A compressor to measure, as a node that `build` makes an object of."""

    compressor: str  # its yaml file
    memory: str  # ef | momentum | none
    as_jobs: bool  # with the memory that jobs give it, if any
    ratio: float | None  # its target; None: it has none
    node: dict[str, Any]


class Adding(NamedTuple):
    residual: Tensor
    message: Payload


@dataclass(frozen=True)
class Accumulate(Compressor[Adding]):
    """residual += x, and nothing is sent: reads 2n, writes n, what error feedback cannot do without."""

    def init(self, x: Tensor, *, layout: Layout | None = None, seed: int = 0) -> Adding:
        empty = torch.empty(0, device=x.device)
        return Adding(torch.zeros_like(x), Sparse.of(empty, empty.int(), x.numel()))

    def compress(self, x: Tensor, state: Adding) -> tuple[Payload, Adding]:
        state.residual.add_(x)
        return state.message, state


BASELINE = Subject(ADD, "none", True, None, {"_target_": f"{Accumulate.__module__}.Accumulate"})


def known() -> list[str]:
    """The names of all yaml files."""
    return sorted(path.stem for path in (ROOT / "conf" / "compressor").glob("*.yaml"))


def subjects(names: Sequence[str] | None, ratio: float, *, alone: bool) -> list[Subject]:
    """The baseline, Top-k and the compressors named (None: all that make messages); `alone`: without memory too."""
    wrong = sorted(set(names or ()) - set(known()))
    if wrong:
        raise ConfigError(f"expected compressors of conf/compressor/ ({', '.join(known())}), got {', '.join(wrong)}")
    chosen = [TOPK, *(name for name in (known() if names is None else names) if name != TOPK)]
    with _hydra():
        found = [subject for name in chosen for subject in _of(name, ratio)]
    return [BASELINE, *(subject for subject in found if alone or subject.as_jobs)]


def _of(name: str, ratio: float) -> Iterator[Subject]:
    """With its memory and without; nothing where no message is made (plain DDP, PowerSGD)."""
    whole = compose("config", overrides=[f"compressor={name}", f"ratio={ratio}"], return_hydra_config=True)
    HydraConfig.instance().set_config(whole)
    cfg = OmegaConf.masked_copy(whole, [str(key) for key in whole if key != "hydra"])
    if cfg.compressor and "ratios" in cfg.compressor:
        cfg.compressor.steps = 1  # the warm-up of a ratio is over within ours
    config = check(cfg)
    if config["compressor"] is None:
        return
    used, bare = config["method"]["compressor"], config["compressor"]
    yield Subject(name, config["names"]["feedback"], True, target_ratio(config), used)
    if used != bare:
        yield Subject(name, "none", False, target_ratio(config), bare)


@contextmanager
def _hydra() -> Iterator[None]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield
