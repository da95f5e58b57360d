"""What every module of sidco.kernels is held to: oracles of plain float64 sums and boolean masks.

Where scale is 1 a selection is exact, so modules that agree with the oracle agree with each other, bit for bit.

    TRITON_INTERPRET=1 python tests/kernel_checks.py

runs all of it over the GPU's kernels on CPU tensors and prints, as JSON, what went wrong by case. The variable must be
set before Triton is imported: hence a process of its own.
"""

import json
import math
import traceback

import torch

ALL = {"squares", "logs", "maximum", "signed"}
SCALES = (1.0, 0.37)
TINY = 2.0**-149  # float32's smallest number


def noise(n, seed=0):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def spike(n):
    x = torch.zeros(n)
    x[n // 2] = -3.0
    return x


# by name: CPU tensor, and how many of its first values are cut off, which leaves it at an odd address
VECTORS = {str(n): (noise(n), 0) for n in (0, 1, 5, 127, 128, 129, 1000, 9001, 70001)}
VECTORS |= {
    "unaligned": (noise(1001), 1),
    "zeros": (torch.zeros(300), 0),
    "constant": (torch.full((5000,), 0.1), 0),
    "spike": (spike(2050), 0),
    "denormal": (noise(1000) * 1e-40, 0),
    "huge": (noise(1000) * 1e30, 0),
    "half": (noise(1500).half(), 0),
    "bfloat16": (noise(1500).bfloat16(), 0),
    "unaligned half": (noise(1300).half(), 3),
}


def fresh(name, device):
    whole, cut = VECTORS[name]
    return whole.to(device, copy=True)[cut:]


def largest(x):
    return float(x.abs().max()) if len(x) else 0.0


def memory_for(x):
    """A residual of its size and magnitude; every other one at an odd address."""
    n = x.numel()
    return (noise(n + 1, seed=1) * (largest(x) or 1.0)).to(x.device)[n % 2 : n + n % 2]


def summed(x, residual, scale):
    """(n,) float64 on the CPU: as float32 has it where that is one addition, and without rounding otherwise."""
    x = x.float().cpu()
    if residual is None:
        return x.double()
    return (residual.cpu() + x).double() if scale == 1 else residual.cpu().double() + scale * x.double()


def thresholds(v, exact=True):
    """Zero, some value that some exceed, more than any, infinity; where rounding cannot decide also two of its own."""
    a = v.abs().float()
    mean, most = float(a.double().sum()) / max(len(a), 1), largest(a)
    found = [0.0, 0.7 * mean, min(2 * most + TINY, 3e38), math.inf]
    return found + [float(a.median()), most] * (exact and len(a) > 0)


def close(found, expected, terms):
    """To 1e-6 of what was added up, and to float32's last place, which a denormal has few of."""
    return abs(float(found) - float(expected)) <= 1e-6 * float(terms.abs().sum()) + TINY * len(terms)


def assert_moments(found, v, above, sums):
    assert all(part.dtype == torch.float64 and part.dim() == 0 for part in found)
    count, total, squares, logs, maximum, signed = found
    hit = torch.ones_like(v, dtype=torch.bool) if above is None else v.abs() > above.double().cpu()
    a = v[hit].abs() - (0 if above is None else above.double().cpu())
    assert int(count) == int(hit.sum())
    assert close(total, a.sum(), a)
    if not sums:
        assert all(math.isnan(float(part)) for part in found[2:]), "nobody asked for these"
        return
    assert close(squares, a.square().sum(), a.square())
    ln = a[a > 0].log()
    assert abs(float(logs) - float(ln.sum())) <= 1e-6 * float(
        ln.abs().sum() + len(ln)
    )  # a itself is rounded: ln near 1
    assert close(maximum, largest(a), torch.tensor([largest(v)]))
    assert close(signed, v[hit].sum(), v[hit])


def moments(kernels, name, device):
    x = fresh(name, device)
    for residual, scale in [(None, 1.0), *((memory_for(x), scale) for scale in SCALES)]:
        v = summed(x, residual, scale)
        floors = [torch.tensor(t, device=device) for t in thresholds(v, exact=scale == 1)]
        for above in (None, *floors):
            assert_moments(kernels.moments(x, above, ALL, residual, scale), v, above, ALL)
        for above in (None, floors[1]):
            assert_moments(kernels.moments(x, above, frozenset(), residual, scale), v, above, frozenset())
    some = kernels.moments(x, None, {"maximum"})
    assert [math.isnan(float(part)) for part in some[2:]] == [True, True, False, True]
    again = kernels.moments(x, None, {"maximum"})
    assert [float(part) for part in some[:2]] == [float(part) for part in again[:2]]


def exponential(kernels, name, device):
    x = fresh(name, device)
    for residual, scale in [(None, 1.0), *((memory_for(x), scale) for scale in SCALES)]:
        a = summed(x, residual, scale).abs()
        for more in (0, 1, 3):
            expected = -float(a.mean()) * math.log(0.25) if len(a) else 0.0
            for _ in range(more):
                exceeding = a[a > torch.tensor(expected).float()] - expected
                expected -= float(exceeding.mean()) * math.log(0.3) if len(exceeding) else 0.0
            found = kernels.exponential(x, 0.25, 0.3, more, residual, scale)
            assert (found.dim(), found.dtype, found.device) == (0, torch.float64, x.device)
            assert abs(float(found) - expected) <= 1e-5 * expected + TINY


def assert_taken(found, v, mask, exact=True):
    values, indices = found[0].cpu(), found[1].cpu()
    assert indices.dtype in (torch.int32, torch.int64)
    assert torch.equal(indices.long(), mask.nonzero().squeeze(1))
    if exact:
        assert torch.equal(values, v[mask])
    else:
        torch.testing.assert_close(values, v[mask], rtol=1e-6, atol=1e-6 * largest(v) + TINY)


def guesses(mask):
    """`expected` too low, right and too high."""
    return [0, int(mask.sum()), 2 * len(mask)]


def take(kernels, name, device):
    v = fresh(name, "cpu")
    for number in thresholds(v):
        threshold = torch.tensor(number).to(v.dtype).float()  # one that half precision has: see the test of others
        mask = v.float().abs() > threshold
        for expected, zero in zip(guesses(mask), (False, True, True), strict=True):
            x = fresh(name, device)
            assert_taken(kernels.take(x, threshold.to(device), expected, zero=zero), v, mask)
            assert torch.equal(x.cpu(), v.masked_fill(mask & zero, 0))


def accumulate_take(kernels, name, device):
    x = fresh(name, device)
    for scale in SCALES:
        v = summed(x, memory_for(x), scale)
        for i, number in enumerate(thresholds(v, exact=scale == 1)):
            threshold, residual = torch.tensor(number), memory_for(x)
            mask = v.abs() > threshold.double()
            found = kernels.accumulate_take_(residual, x, scale, threshold.to(device), guesses(mask)[i % 3])
            assert found[0].dtype == residual.dtype == torch.float32
            assert_taken(found, v.float(), mask, exact=scale == 1)
            assert not residual.cpu()[mask].any()
            left = v.float().masked_fill(mask, 0)
            assert_taken((residual, torch.arange(len(v))), left, torch.ones_like(mask), exact=scale == 1)
    assert torch.equal(x.cpu(), fresh(name, "cpu")), "x was written to"


def sampled(kernels, name, device):
    x = fresh(name, device)
    n, width = x.numel(), 64
    for size in {width, min(n // width, 20) * width, n // width * width} - {0}:
        blocks = size // width
        starts = [b * (n - width) // max(1, blocks - 1) for b in range(blocks)] if n >= width else []
        places = [start + i for start in starts for i in range(width)]
        for residual, scale in [(None, 1.0), *((memory_for(x), scale) for scale in SCALES)]:
            if n < size:
                continue
            v = summed(x, residual, scale).abs().float()[places]
            found = kernels.sampled(x, residual, scale, size)
            assert found.dtype == torch.float32
            assert_taken((found, torch.arange(size)), v, torch.ones(size, dtype=torch.bool), exact=scale == 1)


def histogram(kernels, name, device):
    x = fresh(name, device)
    for residual, scale in ((None, 1.0), (memory_for(x), 1.0)):
        v = summed(x, residual, scale).abs().float().cpu()
        expected = torch.zeros(1 << 16, dtype=torch.int64)
        for upper in (v.view(torch.int32) >> 15).tolist():
            expected[upper] += 1
        assert torch.equal(kernels.histogram(x, residual, scale).cpu(), expected)


def scatter_add(kernels, name, device):
    kind, n = fresh(name, "cpu").dtype, fresh(name, "cpu").numel()
    for places in (torch.arange(n)[::3], torch.arange(0), torch.arange(n)[n // 2 :].flip(0)):
        values = noise(len(places), seed=2)
        for alpha, index in ((1.0, torch.int32), (1 / 3, torch.int64), (-1.0, torch.int32)):
            out = noise(n + 1, seed=3).to(kind).to(device)[1:]
            expected = out.cpu().double()
            expected[places] += alpha * values.double()
            kernels.scatter_add_(out, places.to(index).to(device), values.to(device), alpha)
            eps = 4 * torch.finfo(kind).eps
            torch.testing.assert_close(out.cpu().double(), expected, rtol=eps, atol=eps)


def half_meets_a_threshold_it_has_not(kernels, device):
    """A threshold is float32 and is compared in float32: the moments of a selection are those of what is selected."""
    for kind in (torch.float16, torch.bfloat16):
        x = torch.tensor([0.1, -0.2, 0.0]).to(kind).to(device)
        between = torch.nextafter(x[0].float(), torch.zeros((), device=device))  # rounds to x[0], which exceeds it
        assert kernels.take(x, between, 0)[1].tolist() == [0, 1], kind
        assert int(kernels.moments(x, between, set())[0]) == 2, kind


def gpu_passes_over_what_is_out_of_range(gpu, device):
    guard = torch.zeros(12, device=device)
    out = guard[4:8]
    for index in (torch.int32, torch.int64):
        places = torch.tensor([-1, 0, 3, 4, -4, 2**31 - 1], dtype=index, device=device)
        gpu.scatter_add_(out, places, torch.ones(6, device=device), 1.0)
    assert guard.tolist() == [0, 0, 0, 0, 2, 0, 0, 2, 0, 0, 0, 0]


def gpu_adds_up_more_partial_sums_than_a_tile(gpu, device):
    """As many belong to 40 million floats, which the interpreter would take an hour for."""
    fields, tiles = len(gpu.FIELDS), 2 * gpu.SUM_TILE + 1001
    partials = noise(fields * tiles).double().abs().view(fields, tiles)
    out = torch.full((fields,), torch.nan, dtype=torch.float64, device=device)
    gpu._sum_partials[(fields,)](partials.to(device), out, tiles, 0b11011, gpu.FIELDS.index("maximum"), gpu.SUM_TILE)
    expected = partials.sum(1)
    expected[4] = partials[4].max()
    torch.testing.assert_close(out[[0, 1, 3, 4]].cpu(), expected[[0, 1, 3, 4]], rtol=1e-14, atol=0)
    assert out[[2, 5]].isnan().all(), "nobody asked for these"


CHECKS = {
    check.__name__: check for check in (moments, exponential, take, accumulate_take, sampled, histogram, scatter_add)
}
ONLY_GPU = (gpu_passes_over_what_is_out_of_range, gpu_adds_up_more_partial_sums_than_a_tile)
EXTRA = {check.__name__: check for check in (half_meets_a_threshold_it_has_not, *ONLY_GPU)}
CASES = [f"{check}-{name}" for check in CHECKS for name in VECTORS]
INTERPRETED = [case for case in (*CASES, *EXTRA) if not case.endswith("-70001")]  # an interpreter is slow


def run(case, kernels, device):
    """One of `CASES` or of `EXTRA`."""
    if case in EXTRA:
        EXTRA[case](kernels, device)
    else:
        check, name = case.split("-")
        CHECKS[check](kernels, name, device)


def main():
    from sidco.kernels import gpu

    found = {}
    for case in INTERPRETED:
        try:
            run(case, gpu, "cpu")
            found[case] = ""
        except Exception:
            found[case] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
