"""The artifact of the micro-benchmark, on rows that were made up: no time in here was measured."""

import pandas as pd
import pytest
from fabricated import write_job

from experiments import report
from experiments.artifacts import microbench
from experiments.artifacts.microbench import MICROBENCH, measured

SLOWER = {"add_": 0.5, "topk": 20, "dgc": 2, "gaussiank": 5, "sidco_e": 1, "sidco_gp": 1.5}  # than SIDCo-E
FACTS = {
    "hardware": "2x Abacus", "threads": 2, "torch_version": "2.9", "commit": "abc123", "uncommitted_changes": False,
    "code_fingerprint": "new", "origin": "measured", "rounds": 11,
}  # fmt: skip


def bench(folder, device="cpu", *, exponent=1.0, khat=1.1, name=None):
    """bench.csv of a run: noise of two lengths, and captured gradients of 1000 floats."""
    found = []
    for numel, captured in ((1000, True), (1 << 20, False), (1 << 24, False)):
        for ratio in (0.1, 0.001):
            for compressor, slower in SLOWER.items():
                ms = 1e-5 * numel**exponent * slower
                middle = {"compress_ms": ms, "times_add": 2 * slower, "speedup_topk": 20 / slower}
                found.append({
                    "vector": f"{'captured' if captured else 'randn'} {numel:,}", "numel": numel, "captured": captured,
                    "rotation": "8 vectors", "device": device, "ratio": ratio, "cache": "cold", "as_jobs": True,
                    "compressor": compressor, "khat_over_k": None if compressor == "add_" else khat,
                    **{f"{key}_{part}": factor * value for key, value in middle.items()
                       for part, factor in (("p20", 0.9), ("median", 1.0), ("p80", 1.1))},
                    **FACTS,
                })  # fmt: skip
    path = folder / "bench" / (name or device) / "bench.csv"
    path.parent.mkdir(parents=True)
    hot = {**found[0], "cache": "hot"}
    alone = {**found[0], "as_jobs": False}
    pd.DataFrame([*found, hot, alone]).to_csv(path, index=False)


@pytest.fixture
def folder(tmp_path):
    """A folder of runs whose bench was on gradients of a benchmark of 1000 parameters."""
    write_job(tmp_path / "bench", "none", [5.0] * 4, summary={"name_benchmark": "resnet"})
    return tmp_path


def test_rows_are_cold_ones_with_the_memory_of_jobs_and_know_their_model(folder):
    bench(folder)
    table = measured(folder)
    assert len(table) == 3 * 2 * len(SLOWER)
    assert dict(zip(table["numel"], table["model"], strict=True)) == {
        1000: "resnet", 1 << 20: "normal noise", 1 << 24: "normal noise",
    }  # fmt: skip
    assert table["floats_per_second"].iloc[1] == pytest.approx(1000 / (1e-3 * 1e-5 * 1000 * 20))
    assert len(measured(folder / "bench")) == len(table), "the folder of the bench has a report of its own"


def test_claims_are_tried_on_each_device(folder):
    bench(folder)
    found = {sentence: verdict.state for sentence, verdict in microbench.claims(measured(folder)).items()}
    assert found == {
        "SIDCo-E compresses faster than Topk on the CPU": "holds",
        "SIDCo-E compresses faster than DGC on the CPU": "holds",
        "SIDCo-E's mean k̂/k lies within 0.8 and 1.25 on the CPU": "holds",
        "SIDCo-E's cost is linear in d on the CPU": "holds",
        "SIDCo-E compresses faster than Topk on the GPU": "no data",
        "SIDCo-E compresses faster than DGC on the GPU": "no data",
        "SIDCo-E's mean k̂/k lies within 0.8 and 1.25 on the GPU": "no data",
        "SIDCo-E's cost is linear in d on the GPU": "no data",
    }
    verdict = microbench.claims(measured(folder))["SIDCo-E compresses faster than DGC on the CPU"]
    assert (len(verdict.cells), verdict.cells[0].figure) == (6, "2.00x")
    assert verdict.cells[0].where == "resnet, 1,000 floats, ratio 0.1"


def test_claims_fail(folder):
    bench(folder, exponent=1.2, khat=1.3)
    table = measured(folder)
    slow = table["compressor"].eq("sidco_e")
    table.loc[slow, ["compress_ms_p20", "compress_ms_median", "compress_ms_p80"]] *= 2.2  # a little slower than DGC
    found = microbench.claims(table)
    assert found["SIDCo-E compresses faster than Topk on the CPU"].state == "holds"
    verdict = found["SIDCo-E compresses faster than DGC on the CPU"]
    assert (verdict.state, verdict.cells[0].figure) == ("fails", "0.91x (within the spread of the calls)")
    assert found["SIDCo-E's mean k̂/k lies within 0.8 and 1.25 on the CPU"].state == "fails"
    verdict = found["SIDCo-E's cost is linear in d on the CPU"]
    assert (verdict.state, verdict.cells[0].figure) == ("fails", "d^1.20 from 2 lengths")


def test_the_report_of_a_folder_shows_its_bench_and_says_which_device_is_missing(folder):
    write_job(folder, "none", [5.0] * 4)
    bench(folder)
    report.write(folder)
    text = (folder / "REPORT.md").read_text()
    assert "### CPU (cpu): resnet, 1,000 floats" in text
    assert "- **GPU**: no data; on a machine that has one, `make artifact-microbench DEVICE=cuda` measures it" in text
    assert "| sidco_e | 0.1 | 0.01 (0.009–0.011) | 20 (18–22) | 2.00 (1.80–2.20) | 1.10 | 100 | measured |" in text
    assert {"microbench_cpu.png", "microbench_cpu_size.png"} <= {path.name for path in (folder / "figures").iterdir()}


def test_two_devices_have_a_table_each(folder):
    bench(folder)
    bench(folder, "cuda", exponent=0.9)
    table = measured(folder)
    assert microbench.claims(table)["SIDCo-E compresses faster than Topk on the GPU"].state == "holds"
    assert table.groupby("run")["device"].unique().explode().to_dict() == {"cpu": "cpu", "cuda": "cuda"}
    assert microbench._missing(table) == ""


def test_without_a_bench_there_is_no_part(tmp_path):
    assert MICROBENCH.part(pd.DataFrame(), tmp_path) is None
