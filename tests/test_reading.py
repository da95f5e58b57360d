"""Whose rows a notebook shows: one's own, or the committed reference."""

from functools import partial

import pandas as pd
import pytest
from fabricated import NO_LINK, write_job

from experiments.artifacts.speedup import SPEEDUP
from experiments.publish import publish
from experiments.reading import NothingToRead, estimates, own_or_reference
from experiments.results import read

LONG = 136  # steps, recorded from the fifth on: 140 of training


@pytest.fixture
def job(tmp_path):
    return partial(write_job, tmp_path / "mine" / "quick")


@pytest.fixture
def sweep(job, tmp_path):
    job("none", [100, 100, 100])
    job("topk", [50, 50, 50], ratio=0.01)
    job("sidco_e", [40, 40, 80], ratio=0.01, khat=(2.0, 1.5, 1.0))
    return tmp_path / "mine" / "quick"


@pytest.fixture
def long(tmp_path):
    """Jobs as `experiment=estimation` makes them, and one that is too short."""
    folder = tmp_path / "long" / "quick"
    job = partial(write_job, folder, ratio=0.01, network="virtual", world_size=1, **NO_LINK)
    for name, khat in (("sidco_e", (0.5, 1.5)), ("dgc", (1.25,))):
        job(name, [1.0] * LONG, khat=khat, summary={"metric_value": None})
    job("gaussiank", [1.0] * 3)
    return folder


@pytest.fixture
def reference(sweep, tmp_path):
    """That sweep, published."""
    publish(sweep, reference=tmp_path / "reference")
    return tmp_path / "reference"


def test_ones_own_rows_come_first(sweep, reference):
    reading = own_or_reference(sweep, reference=reference)
    assert (len(reading.runs), reading.folder, reading.own) == (3, sweep, True)
    assert str(reading).splitlines() == [
        "3 rows, your own runs: mine/quick", "hardware: 2x Abacus; torch 2.9", "commit: abc123",
        "origin: measured; seeds: 1",
    ]  # fmt: skip


def test_of_references_the_newest_is_read(reference, tmp_path):
    other = tmp_path / "other" / "quick"
    write_job(other, "none", [70, 70, 70], hardware="1x Loom", finished=9.0)
    publish(other, reference=reference)
    reading = own_or_reference(tmp_path / "nowhere" / "quick", reference=reference)
    assert (reading.own, reading.folder) == (False, reference / "1x-loom" / "quick")
    assert str(reading).startswith("1 rows, the committed reference, for there are no runs of your own: 1x-loom/quick")


def test_a_published_table_is_the_same_table(sweep, reference, tmp_path):
    reading = own_or_reference(tmp_path / "nowhere" / "quick", SPEEDUP.select, reference)
    pd.testing.assert_frame_equal(SPEEDUP.draw(reading.runs), SPEEDUP.draw(read(sweep)), check_dtype=False)


def test_what_looks_like_a_number_stays_text(reference, tmp_path):
    runs = own_or_reference(tmp_path / "nowhere" / "quick", reference=reference).runs
    assert set(runs["torch_version"]) == {"2.9"}


def test_rows_of_another_kind_are_no_rows(sweep, reference, tmp_path):
    own = tmp_path / "another" / "quick"
    write_job(own, "topk", [50], ratio=0.1, network="virtual", **NO_LINK)
    assert not own_or_reference(own, SPEEDUP.select, reference).own
    assert own_or_reference(own, reference=reference).own


def test_changes_that_no_commit_holds_are_told(job, sweep):
    job("bf16", [50], uncommitted_changes=True)
    assert "commit: abc123, WITH UNCOMMITTED CHANGES" in str(own_or_reference(sweep))


def test_estimates_are_of_long_runs_where_there_are_some(long, sweep, tmp_path):
    assert set(estimates(read(sweep))["name_compressor"]) == {"topk", "sidco_e"}
    assert set(estimates(read(long))["name_compressor"]) == {"dgc", "sidco_e"}


def test_steps_are_those_timed(sweep):
    steps = own_or_reference(sweep, lambda runs: runs[runs["name_compressor"] == "sidco_e"]).steps()
    assert steps[["step", "khat_over_k", "stages"]].to_numpy().tolist() == [[4, 2.0, 0], [5, 1.5, 1], [6, 1.0, 2]]
    dense = own_or_reference(sweep, lambda runs: runs[runs["name_compressor"] == "none"]).steps()
    assert dense[["khat_over_k", "stages"]].isna().all(axis=None)


def test_of_a_reference_the_published_steps(long, tmp_path):
    own = own_or_reference(long, estimates).steps()
    publish(long, reference=tmp_path / "published")
    reading = own_or_reference(tmp_path / "nowhere" / "quick", estimates, tmp_path / "published")
    found, expected = (steps.sort_values(["job", "step"], ignore_index=True) for steps in (reading.steps(), own))
    assert len(found) == 2 * LONG
    pd.testing.assert_frame_equal(found, expected[list(found)], check_dtype=False)


def test_a_reference_without_steps_has_none(reference, tmp_path):
    assert own_or_reference(tmp_path / "nowhere" / "quick", estimates, reference).steps().empty


def test_nothing_to_read_says_what_to_do(reference, tmp_path):
    nowhere = tmp_path / "nowhere" / "quick"
    with pytest.raises(NothingToRead, match=r"there is: none\), got neither; run `make reproduce-table PROFILE=quick`"):
        own_or_reference(nowhere, reference=tmp_path / "empty")
    with pytest.raises(NothingToRead, match=r"there is: quick\)"):
        own_or_reference(tmp_path / "paper", reference=reference)
    with pytest.raises(NothingToRead, match="has no row of the kind looked for"):
        own_or_reference(nowhere, lambda runs: runs[:0], reference)
    (path,) = reference.glob("*/quick/runs.csv")
    pd.read_csv(path).drop(columns="setting").to_csv(path, index=False)
    with pytest.raises(NothingToRead, match=r"quick/runs.csv was published by older code: expected the columns set"):
        own_or_reference(nowhere, reference=reference)
