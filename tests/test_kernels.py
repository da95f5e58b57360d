"""Every module of sidco.kernels does the same: the checks of kernel_checks.py over each, and what is special of one."""

import json
import os
import subprocess
import sys
import warnings

import kernel_checks
import pytest
import torch
from conftest import ROOT
from kernel_checks import CASES, EXTRA, INTERPRETED, VECTORS, noise

from sidco import kernels
from sidco.kernels import cpu, reference

TIMEOUT_S = 600
on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: torch.cuda.is_available() is false"),
]


def marked(marks):
    def mark(test):
        for each in marks:
            test = each(test)
        return test

    return mark


def meant_for_cpu(case):
    """float32 is what it is chosen for; a gradient in half precision meets it beside a float32 residual."""
    check, name = case.split("-")
    return VECTORS[name][0].dtype == torch.float32 or check == "accumulate_take"


@pytest.fixture(scope="module")
def interpreted():
    """What the GPU's kernels did on the CPU, by case: all in one process, as Triton's interpreter has to be chosen
    before they are made.
    """
    pytest.importorskip("triton", reason="this build of torch comes without Triton")
    done = subprocess.run(
        [sys.executable, kernel_checks.__file__],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture
def gpu():
    return pytest.importorskip("sidco.kernels.gpu", reason="this build of torch comes without Triton")


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Triton's compiler, without what it remembers."""
    found = pytest.importorskip("triton.compiler", reason="this build of torch comes without Triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("TRITON_INTERPRET is set: kernels are not compiled")
    from triton import knobs

    try:
        _ = knobs.nvidia.ptxas.path
    except (AttributeError, RuntimeError) as error:
        pytest.skip(f"no assembler for CUDA: {error}")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return found


@pytest.fixture
def threads():
    """`torch.set_num_threads`, undone afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", CASES)
def test_reference(case):
    kernel_checks.run(case, reference, "cpu")


@pytest.mark.parametrize("case", [case for case in CASES if meant_for_cpu(case)])
def test_cpu(case):
    kernel_checks.run(case, cpu, "cpu")


@pytest.mark.parametrize("case", INTERPRETED)
def test_gpu_interpreted(interpreted, case):
    assert not interpreted[case], interpreted[case]


@marked(on_gpu)
@pytest.mark.parametrize("case", [*CASES, *EXTRA])
def test_gpu_compiled(gpu, case):
    kernel_checks.run(case, gpu, "cuda")


@marked(on_gpu)
@pytest.mark.parametrize("case", CASES)
def test_reference_on_a_gpu(case):
    kernel_checks.run(case, reference, "cuda")


def test_reference_compares_half_precision_in_float32():
    kernel_checks.half_meets_a_threshold_it_has_not(reference, "cpu")


@pytest.mark.parametrize("module", [reference, cpu], ids=["reference", "cpu"])
def test_bits_do_not_depend_on_the_number_of_threads(module, threads):
    x, residual = noise(300_000), noise(300_000, seed=1)
    threshold, found = torch.tensor(2.0), []
    for count in (1, 2):
        threads(count)
        left = residual.clone()
        found.append(
            [
                *module.moments(x, None, frozenset())[:2],
                *module.moments(x, threshold, frozenset(), residual, 0.37)[:2],
                *module.moments(x, threshold, kernel_checks.ALL, residual, 0.37),
                module.exponential(x, 0.25, 0.1, 3, residual, 0.37),
                *module.take(x, threshold, 0),
                *module.accumulate_take_(left, x, 0.37, threshold, 0),
                left,
                module.sampled(x, residual, 0.37, 6400),
            ]
        )
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
    kernel_checks.assert_taken(module.take(x, threshold, 0), x, x.abs() > threshold)


@pytest.mark.parametrize("module", [reference, cpu], ids=["reference", "cpu"])
@pytest.mark.parametrize("place", [-1, 10, 2**31 - 1])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_an_index_out_of_range_is_an_error(module, place, kind):
    with pytest.raises(IndexError):
        module.scatter_add_(torch.zeros(20)[:10], torch.tensor([3, place], dtype=kind), torch.ones(2), 1.0)


def test_the_device_chooses():
    assert kernels.of(noise(10)) is cpu
    assert kernels.of(noise(10).half()) is kernels.of(noise(10)[::2]) is kernels.of(noise(0)) is reference
    code = "import sys, sidco.presets; assert 'triton' not in sys.modules, 'a machine may not have it'"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


def test_without_triton_a_gpu_has_the_reference(monkeypatch):
    monkeypatch.setitem(sys.modules, "sidco.kernels.gpu", None)  # which makes its import fail
    monkeypatch.delattr(kernels, "gpu", raising=False)
    assert kernels._of_a_gpu.__wrapped__() is reference


@marked(on_gpu)
def test_the_device_chooses_triton(gpu):
    assert kernels.of(noise(10).cuda()) is gpu
    assert kernels.of(noise(10).cuda().double()) is kernels.of(noise(10).cuda()[::2]) is reference


@marked(on_gpu)
def test_the_host_waits_once_and_only_where_a_message_is_allocated(gpu):
    x, residual, eta = noise(70_001).cuda(), noise(70_001, seed=1).cuda(), torch.tensor(2.0, device="cuda")
    places, values = torch.arange(10, device="cuda"), torch.ones(10, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        gpu.moments(x, eta, kernel_checks.ALL, residual, 0.5)
        gpu.sampled(x, residual, 0.5, 640)
        gpu.scatter_add_(residual, places, values, 0.5)
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            gpu.accumulate_take_(residual, x, 0.5, eta, 0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([warning for warning in said if "synchroniz" in str(warning.message)]) == 1


@marked(on_gpu)
def test_a_vector_of_more_than_two_billion(gpu):
    n = 2**31 + 5
    if torch.cuda.mem_get_info()[0] < 4 * n:
        pytest.skip(f"{4 * n >> 30} GiB of GPU memory are not free")
    x = torch.zeros(n, dtype=torch.float16, device="cuda")
    x[[7, n - 1]] = torch.tensor([2.0, -3.0], dtype=x.dtype, device="cuda")
    values, indices = gpu.take(x, torch.tensor(1.0, device="cuda"), 0)
    assert (values.tolist(), indices.tolist(), indices.dtype) == ([2.0, -3.0], [7, n - 1], torch.int64)
    count, total, *_ = gpu.moments(x, torch.tensor(1.0, device="cuda"), set())
    assert (float(count), float(total)) == (2, 3)
    gpu.scatter_add_(x, indices, values.float(), -1.0)
    assert not x[[7, n - 1]].any()


LITERALS = {"None": None, "1": 1}  # of what Triton makes constants at a launch
ANY_SUM = {"SQUARES": True, "LOGS": True, "MAXIMUM": True, "SIGNED": True, "TILE": 4096}
NO_SUM = {"SQUARES": False, "LOGS": False, "MAXIMUM": False, "SIGNED": False, "TILE": 4096}
COMPILED = [  # kernel, types of its arguments or one of LITERALS, constants
    ("_sum_tiles", "*fp32 None None *fp64 i32 fp32", NO_SUM),
    ("_sum_tiles", "*fp32 *fp32 *fp64 *fp64 i64 fp32", {**NO_SUM, "SQUARES": True, "MAXIMUM": True, "SIGNED": True}),
    ("_sum_tiles", "*bf16 *fp32 *fp32 *fp64 i32 fp32", ANY_SUM),
    ("_sum_tiles", "*fp32 None *fp32 *fp64 1 fp32", NO_SUM),
    ("_sum_partials", "*fp64 *fp64 i32 i32", {"MAXIMUM": 4, "TILE": 4096}),
    ("_sum_partials", "*fp64 *fp64 1 i32", {"MAXIMUM": 4, "TILE": 4096}),
    ("_count_tiles", "*fp32 None *fp32 *i32 i32 fp32", {"TILE": 1024}),
    ("_count_tiles", "*fp32 *fp16 *fp32 *i32 i64 fp32", {"TILE": 1024}),
    ("_count_tiles", "*bf16 None *fp32 *i32 i32 fp32", {"TILE": 1024}),
    ("_emit_tiles", "*fp32 *fp32 *i32 *i64 *fp32 *i32 i32", {"ZERO": True, "TILE": 1024}),
    ("_emit_tiles", "*bf16 *fp32 *i32 *i64 *bf16 *i64 i64", {"ZERO": False, "TILE": 1024}),
    ("_emit_tiles", "*fp32 *fp32 *i32 *i64 *fp32 *i32 1", {"ZERO": True, "TILE": 1024}),
    ("_sample", "*fp32 None *fp32 i32 i32 fp32", {"WIDTH": 64, "TILE": 1024}),
    ("_sample", "*fp16 *fp32 *fp32 i64 i32 fp32", {"WIDTH": 64, "TILE": 1024}),
    ("_scatter", "*fp32 *i32 *fp32 fp32 i32 i32", {"TILE": 1024}),
    ("_scatter", "*fp32 *i64 *fp32 fp32 1 1", {"TILE": 1024}),
    ("_scatter", "*fp16 *i64 *fp16 fp32 i64 i32", {"TILE": 1024}),
]


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize(
    ("name", "types", "constants"), COMPILED, ids=lambda part: part if isinstance(part, str) else ""
)
def test_gpu_compiles_without_a_gpu(gpu, compiler, name, types, constants, architecture):
    from triton.backends.compiler import GPUTarget

    kernel, kinds = getattr(gpu, name), [*types.split(), *["constexpr"] * len(constants)]
    arguments = dict(zip(kernel.arg_names, kinds, strict=True))
    signature = {a: "constexpr" if kind in LITERALS else kind for a, kind in arguments.items()}
    literals = {a: LITERALS[kind] for a, kind in arguments.items() if kind in LITERALS}
    # one of each: addresses that a load of 16 bytes can start at, and odd ones
    even = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(kinds) if kind[0] == "*" and architecture == 90}
    source = compiler.ASTSource(kernel, signature, constexprs=literals | constants, attrs=even)
    compiled = compiler.compile(source, target=GPUTarget("cuda", architecture, 32))
    assert compiled.asm["cubin"]
    if not constants.get("LOGS"):  # in there it is libdevice's way with the digits, after denormals were scaled up
        assert ".ftz" not in compiled.asm["ptx"], "denormals would be flushed: counts differ from the CPU's"


def test_every_kernel_is_compiled(gpu):
    launched = {name for name, value in vars(gpu).items() if hasattr(value, "arg_names")} - {"_places", "_load"}
    assert launched == {name for name, _, _ in COMPILED}
