"""The micro-benchmark of compressors: `python -m experiments.bench`. One process, no network, no training."""
