"""The contract battery: what every compressor must obey, as plain functions that raise AssertionError.

    for law in LAWS:
        law(MyCompressor(ratio=0.01))

A new compressor's own tests, in this repository or another, run the same laws; nothing here needs pytest.
"""

from sidco.testing.alone import (
    accepts_edge_vectors,
    finds_a_threshold,
    is_odd,
    keeps_its_density,
    knows_no_units,
    leaves_its_input_alone,
    loses_nothing,
    repeats_itself,
    survives_the_wire,
)
from sidco.testing.ranks import agrees_on_every_rank, counts_ranks_apart, stops_at_nan
from sidco.testing.tools import Law, dense_of

LAWS: tuple[Law, ...] = (
    leaves_its_input_alone,
    survives_the_wire,
    loses_nothing,
    repeats_itself,
    counts_ranks_apart,
    accepts_edge_vectors,
    finds_a_threshold,
    stops_at_nan,
    is_odd,
    knows_no_units,
    keeps_its_density,
)

__all__ = [
    "LAWS",
    "Law",
    "accepts_edge_vectors",
    "agrees_on_every_rank",
    "counts_ranks_apart",
    "dense_of",
    "finds_a_threshold",
    "is_odd",
    "keeps_its_density",
    "knows_no_units",
    "leaves_its_input_alone",
    "loses_nothing",
    "repeats_itself",
    "stops_at_nan",
    "survives_the_wire",
]
