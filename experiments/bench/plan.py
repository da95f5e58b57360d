"""What is measured: vectors, ratios, compressors, and how often. The presets."""

from dataclasses import dataclass, replace

from experiments.bench.vectors import HUGE, Vector, randn

RATIOS = (0.1, 0.01, 0.001)
RESNET50 = 25_557_032
COMPARED = (  # where memory is short
    "topk", "sidco_e", "sidco_e_exact", "sidco_gp", "sidco_p", "dgc", "redsync", "gaussiank",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A vector and what is tried on it."""

    vector: Vector
    ratios: tuple[float, ...] = RATIOS
    compressors: tuple[str, ...] | None = None  # names of yaml files; None: all
    alone: bool = True  # also without the memory (error feedback, momentum) that jobs give them


@dataclass(frozen=True)
class Plan:
    """Cases, and how often each compressor is called at a vector and a ratio."""

    cases: tuple[Case, ...]
    warmup: int = 50  # calls before the first timed one: stage controllers settle, residuals fill
    # of a compressor without a controller, after which its warm-up is cut short (not below 5 calls)
    warmup_seconds: float = 1.0
    rounds: int = 21  # in each, every compressor is timed once
    round_seconds: float = 10.0  # after which no further round begins (not below 10 rounds)


def normal(*sizes: int) -> tuple[Case, ...]:
    """Normal noise of these lengths; huge ones for fewer compressors."""
    return tuple(Case(randn(n), compressors=COMPARED, alone=False) if n >= HUGE else Case(randn(n)) for n in sizes)


MEGABYTES = (1 << 18, 1 << 20, 10 << 18, 100 << 18)  # floats of 1, 4, 10 and 100 MiB
(GIGABYTE,) = normal(1 << 28)
PATIENT = Plan((), warmup_seconds=10.0, rounds=31, round_seconds=90.0)

PRESETS = {
    "standard": Plan((*normal(*MEGABYTES), replace(GIGABYTE, ratios=(0.001,)))),
    "full": replace(PATIENT, cases=(*normal(*MEGABYTES), GIGABYTE)),
    "resnet50": replace(PATIENT, cases=normal(RESNET50)),
    "quick": Plan(
        (Case(randn(1 << 12), (0.01,)), Case(randn(1 << 14), (0.1, 0.01), COMPARED, alone=False)), warmup=5, rounds=5
    ),
}
