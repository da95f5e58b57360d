"""The inner loops of `sidco.kernels.cpu`, compiled by numba when first called and cached beside this file.

They run over slices, with a constant number of turns where they can: only then does LLVM vectorise them and check no
index. Each has a serial form and one that runs it over the ranges of several threads.
"""

import math

import numpy as np
from numba import njit, prange, types

from sidco.kernels.reference import FRACTION_BITS, WIDTH

BLOCK = 1 << 16  # floats of one partial sum
PART = 1 << 10  # floats summed in float32

# sums may be reordered, so that they vectorise; NaN and infinity keep their meaning
FAST = {"reassoc", "contract", "nsz", "arcp"}

# numba.set_num_threads takes a lock of the system's each time, 40 us where nothing is cached, and code that calls it is
# not kept on disk. This is what is behind it; it wants a number that numba has, and its threads launched.
set_num_threads = types.ExternalFunction("set_num_threads", types.void(types.intc))


@njit(nogil=True, fastmath=FAST, cache=True)
def sum_range(x, r, scale, floor, first, totals, counts):
    """Partial sums of |x| (or |r + scale x|) - floor where above it, block by block, from block `first` on; a floor
    below zero means: of all, nothing taken off."""
    off = max(floor, np.float32(0.0))
    for start in range(0, x.shape[0], BLOCK):
        total, count = 0.0, 0
        for a in range(start, min(start + BLOCK, x.shape[0]), PART):
            xb = x[a : min(a + PART, x.shape[0])]
            part, hits = np.float32(0.0), np.int32(0)
            if r is None:
                for i in range(xb.shape[0]):
                    e = abs(xb[i]) - off
                    hits += np.int32(e > 0)
                    part += e if e > 0 else np.float32(0.0)
            else:
                rb = r[a : min(a + PART, x.shape[0])]
                for i in range(xb.shape[0]):
                    e = abs(rb[i] + scale * xb[i]) - off
                    hits += np.int32(e > 0)
                    part += e if e > 0 else np.float32(0.0)
            total += part
            count += hits
        totals[first] = total
        counts[first] = count
        first += 1


@njit(nogil=True, parallel=True, fastmath=FAST, cache=True)
def sum_ranges(x, r, scale, floor, bounds, totals, counts):
    set_num_threads(bounds.shape[0] - 1)
    for j in prange(bounds.shape[0] - 1):
        a, b = bounds[j], bounds[j + 1]
        if r is None:
            sum_range(x[a:b], None, scale, floor, a // BLOCK, totals, counts)
        else:
            sum_range(x[a:b], r[a:b], scale, floor, a // BLOCK, totals, counts)


@njit(nogil=True, cache=True)
def sums(x, r, scale, floor, bounds):
    """(how many exceed the floor, the sum of what they exceed it by); `bounds` None: on this thread alone."""
    blocks = -(-x.shape[0] // BLOCK)
    totals, counts = np.empty(blocks), np.empty(blocks, np.int64)
    if bounds is None:
        sum_range(x, r, np.float32(scale), np.float32(floor), 0, totals, counts)
    else:
        sum_ranges(x, r, np.float32(scale), np.float32(floor), bounds, totals, counts)
    return (counts.sum() if floor >= 0 else x.shape[0]), totals.sum()


@njit(nogil=True, cache=True)
def exponential(x, r, scale, first, share, more, bounds):
    """The stages in one call: what lies between two of them takes longer from Python than a stage of a sample."""
    _, total = sums(x, r, scale, -1.0, bounds)
    eta = -total / max(x.shape[0], 1) * math.log(first)
    for _ in range(more):
        count, total = sums(x, r, scale, eta, bounds)
        eta -= total / max(count, 1) * math.log(share)
    return eta


@njit(nogil=True, fastmath=FAST, cache=True)
def count_range(x, r, scale, counts):
    magnitudes = np.empty(PART, np.float32)
    bits = magnitudes.view(np.int32)
    for a in range(0, x.shape[0], PART):
        xb = x[a : min(a + PART, x.shape[0])]
        if r is None:
            for i in range(xb.shape[0]):
                magnitudes[i] = abs(xb[i])
        else:
            rb = r[a : min(a + PART, x.shape[0])]
            for i in range(xb.shape[0]):
                magnitudes[i] = abs(rb[i] + scale * xb[i])
        for i in range(xb.shape[0]):
            counts[bits[i] >> FRACTION_BITS] += 1


@njit(nogil=True, parallel=True, fastmath=FAST, cache=True)
def count_ranges(x, r, scale, bounds, counts):
    set_num_threads(bounds.shape[0] - 1)
    for j in prange(bounds.shape[0] - 1):
        a, b = bounds[j], bounds[j + 1]
        if r is None:
            count_range(x[a:b], None, scale, counts[j])
        else:
            count_range(x[a:b], r[a:b], scale, counts[j])


@njit(nogil=True, cache=True)
def sample_range(x, r, scale, out, first, last):
    width, scale = WIDTH, np.float32(scale)
    blocks = out.shape[0] // width
    for b in range(first, last):
        a = b * (x.shape[0] - width) // max(1, blocks - 1)
        xb, ob = x[a : a + width], out[b * width : (b + 1) * width]
        if r is None:
            for i in range(xb.shape[0]):
                ob[i] = abs(xb[i])
        else:
            rb = r[a : a + width]
            for i in range(xb.shape[0]):
                ob[i] = abs(rb[i] + scale * xb[i])


@njit(nogil=True, parallel=True, cache=True)
def sample_ranges(x, r, scale, out, bounds):
    set_num_threads(bounds.shape[0] - 1)
    for j in prange(bounds.shape[0] - 1):
        sample_range(x, r, scale, out, bounds[j] // WIDTH, bounds[j + 1] // WIDTH)


@njit(nogil=True, cache=True)
def scatter(out, indices, values, alpha):
    right = True
    for i in range(indices.shape[0]):
        place = indices[i]
        if 0 <= place < out.shape[0]:  # a message comes from elsewhere: never write where it says unseen
            out[place] += alpha * values[i]
        else:
            right = False
    return right


@njit(nogil=True, parallel=True, cache=True)
def scatter_ranges(out, indices, values, alpha, bounds):
    set_num_threads(bounds.shape[0] - 1)
    wrong = 0
    for j in prange(bounds.shape[0] - 1):
        a, b = bounds[j], bounds[j + 1]
        wrong += not scatter(out, indices[a:b], values[a:b], alpha)
    return wrong == 0
