"""What a configuration may say: names and types. Unknown keys and wrong types are refused while it is composed."""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING


@dataclass
class Training:
    batch_per_rank: int = MISSING
    clip_norm: float | None = None  # of the averaged gradient, in the 2-norm
    momentum: float = 0.0  # the recipe's, wherever it is applied: by the optimizer, or by feedback=momentum
    steps: int = 20  # timed
    excluded_steps: int = 4  # before them: DDP rebuilds its buckets, caches warm up
    compute_only_steps: int = 5  # after them, under no_sync: what a step costs without any exchange
    local_clip: bool = False  # each rank's gradient is clipped by the compressor, and the average is not
    checkpoint_every: int | None = None  # steps; a job that was killed goes on from its last checkpoint
    valid_batches: int = 5  # of the validation set, for a quality beside the speed; 0: none
    evaluate_every: int | None = None  # steps; the quality on the way is kept, its seconds are not counted
    target: float | None = None  # of the task's metric: the time it takes to get there is a column of its own
    step_space: bool = False  # memories hold learning rate * gradient, so they outlive a change of the rate
    autocast: bool = False  # bfloat16 where torch's autocast thinks fit
    channels_last: bool = False
    epochs: float | None = None  # instead of steps, excluded ones included; the two `_every` then count epochs too
    time_cap_s: float | None = None  # training ends there, by rank 0's seconds of steps; all ranks agree
    decay_1d: bool = True  # weight decay is also for biases and normalisation
    capture_steps: Any = "${capture.steps}"  # set there


@dataclass
class Capture:
    steps: list[int] = field(default_factory=list)  # from 0: rank 0's gradient is kept, for `experiments.bench`


@dataclass
class Network:
    shaped: bool = False
    rate: str | None = None
    burst_kib: int | None = None
    cluster: bool = False  # real nodes, each running the same command
    port: int | None = None


@dataclass
class Workers:
    world_size: int = 2
    virtual: bool = False  # all workers in one process, in lockstep: for accuracy, never for timing
    threads: int | None = None  # of each rank; null: the cores shared out evenly
    timeout_s: int = 300  # of one collective
    job_timeout_s: int = 3600  # of the job


@dataclass
class Config:
    ratio: Any = 0.01  # checked here, where the message can name the range; a string such as 1/1000 is refused
    seed: int = 1
    model: Any = MISSING
    dataset: Any = MISSING
    task: Any = MISSING
    optimizer: Any = MISSING
    schedule: Any = MISSING
    compressor: Any = None
    wire: Any = None
    feedback: Any = None
    method: Any = None
    plan: Any = MISSING
    logger: Any = None
    network: Network = field(default_factory=Network)
    workers: Workers = field(default_factory=Workers)
    training: Training = field(default_factory=Training)
    capture: Capture = field(default_factory=Capture)
    names: dict[str, Any] = field(default_factory=dict)
    output: str = MISSING
    fail_fast: bool = False  # of a sweep: leave out what follows a failed job
    slots: int | None = None  # of this node, one a rank, for jobs at the same time; null: one job after the other


ConfigStore.instance().store("schema", Config)
