"""The small trainings that ranks and virtual workers both do, and what they are made of."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from sidco.compressors.topk import TopK
from sidco.feedback import ErrorFeedback
from sidco.method import Gathered, Method
from sidco.plan import PerParameter, Plan, SizeCapped, WholeModel
from sidco.workers import VirtualWorkers

STEPS = 5
PLANS = {"model": WholeModel(), "parameter": PerParameter(), "capped": SizeCapped(mib=0.5)}


class Mixed(nn.Module):
    """Odd sizes, equal sizes that a rebuilt bucket may swap, a frozen embedding, a parameter that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.embed.weight.requires_grad_(False)
        self.rnn = nn.LSTM(12, 16)
        self.twin_a, self.twin_b = nn.Linear(16, 16), nn.Linear(16, 16)
        self.out = nn.Linear(16, 7)
        self.idle = nn.Parameter(torch.ones(5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.rnn(self.embed(tokens))
        return self.out(torch.tanh(self.twin_b(torch.tanh(self.twin_a(hidden)))))


class Wide(nn.Module):
    """4 x (600 x 600): many buckets at bucket_cap_mb=1."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(600, 600) for _ in range(4)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.one_hot(tokens % 600, 600).float().mean(0)
        return self.layers(x)[:, :7].unsqueeze(0).expand(*tokens.shape, 7)


@dataclass(frozen=True)
class Training:
    """A training run that ranks and virtual workers both do."""

    model: type[nn.Module]
    method: Method
    plan: Plan
    world: int
    bucket_cap_mb: float = 25


def trainings(methods: dict[str, Method]) -> dict[str, Training]:
    """Every method once at each world size, and TopK over plans, models and bucket sizes."""
    runs = {}
    for name, method in methods.items():
        for world in (2, 3):
            runs[f"{name}/{world}"] = Training(Mixed, method, WholeModel(), world)
    topk = Gathered(ErrorFeedback(TopK(0.05)))
    for plan_name, plan in PLANS.items():
        for cap in (0.001, 25):
            runs[f"topk-{plan_name}-{cap}/2"] = Training(Mixed, topk, plan, 2, cap)
        runs[f"topk-wide-{plan_name}/3"] = Training(Wide, topk, plan, 3, 1)
    return runs


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ranks see other data, and rank 1's gradient is far larger, so counts differ."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return (
        torch.randint(0, 50, (6, 4), generator=generator),
        torch.randint(0, 7, (6, 4), generator=generator),
    )


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    tokens, targets = batch(rank, step)
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    return loss * (1 if rank == 0 else 30 * rank)


def fresh(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def train_virtually(run: Training) -> dict[str, torch.Tensor]:
    torch.set_num_threads(1)  # as on ranks: a matrix product's bits depend on it
    model = fresh(run.model)
    workers = VirtualWorkers(model, run.method, run.plan, world_size=run.world, seed=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(STEPS):
        workers.backward([loss_of(model, rank, step) for rank in range(run.world)])
        optimizer.step()
    return weights(model)


def methods(ratio: float = 0.05) -> dict[str, Method]:
    """Every yaml's method, with the feedback its configuration gives it, and some whose messages are coded."""
    from hydra import compose, initialize_config_dir
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from experiments.build import build, check

    conf, found = Path(__file__).resolve().parent.parent / "conf", {}
    with initialize_config_dir(str(conf), version_base="1.3"):
        names = [path.stem for path in sorted((conf / "compressor").glob("*.yaml"))]
        for name in (*names, "sidco_e wire=bf16", "topk wire=bf16_bitmap", "sidco_e wire=fixed"):
            words = [f"compressor={name.split()[0]}", *name.split()[1:], f"ratio={ratio}"]
            whole = compose("config", overrides=words, return_hydra_config=True)
            HydraConfig.instance().set_config(whole)
            job = check(OmegaConf.masked_copy(whole, [key for key in whole if key != "hydra"]))
            if job["method"] is not None:
                found[name] = build(job["method"])
    return found
