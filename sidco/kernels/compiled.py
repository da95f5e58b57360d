"""The inner loops of `sidco.kernels.cpu`, compiled by numba when first called and cached beside this file.

They run over slices, with a constant number of turns where they can: only then does LLVM vectorise them and check no
index. Each has a serial form and one that runs it over the ranges of several threads.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

from sidco.kernels.reference import FRACTION_BITS, WIDTH

ROW = 128  # floats looked at together: most rows of a sparse selection hold nothing and are left at once
LANES = 16  # floats whose hits are one bit mask
FEW = 6  # hits in a row, below which masks pay; above, every value is written and the place moves on or not
BLOCK = 1 << 16  # floats of one partial sum
PART = 1 << 10  # floats summed in float32

# sums may be reordered, so that they vectorise; NaN and infinity keep their meaning
FAST = {"reassoc", "contract", "nsz", "arcp"}

# numba.set_num_threads takes a lock of the system's each time, 40 us where nothing is cached, and code that calls it is
# not kept on disk. This is what is behind it; it wants a number that numba has, and its threads launched.
set_num_threads = types.ExternalFunction("set_num_threads", types.void(types.intc))


@intrinsic
def lowest_bit(_context: Any, _mask: Any) -> Any:
    """The place of the lowest bit that is set: one instruction that numba has no name for."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint32(types.uint32), generate


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
    eta = -total / x.shape[0] * math.log(first)
    for _ in range(more):
        count, total = sums(x, r, scale, eta, bounds)
        eta -= total / max(count, 1) * math.log(share)
    return eta


@njit(nogil=True, fastmath=FAST, cache=True, inline="always")
def count_row(rb, xb, scale, eta):
    hits = np.int32(0)
    if xb is None:
        for i in range(ROW):
            hits += np.int32(abs(rb[i]) > eta)
    else:
        for i in range(ROW):
            v = rb[i] + scale * xb[i]
            rb[i] = v
            hits += np.int32(abs(v) > eta)
    return hits


@njit(nogil=True, cache=True)
def emit_few(rb, eta, zero, base, values, indices):
    p = 0
    for lane in range(0, ROW, LANES):
        part = rb[lane : lane + LANES]
        mask = np.uint32(0)
        for i in range(LANES):
            mask |= np.uint32(abs(part[i]) > eta) << np.uint32(i)
        while mask != 0:
            i = lowest_bit(mask)  # pyright: ignore[reportCallIssue] - an intrinsic gets its context from numba
            values[p] = part[i]
            indices[p] = base + lane + i
            if zero:
                part[i] = 0
            p += 1
            mask &= mask - np.uint32(1)


@njit(nogil=True, cache=True)
def emit_many(rb, eta, zero, base, values, indices):
    p = 0
    for i in range(ROW):  # no branch to guess wrong; one place past the last hit is written, and is not read
        v = rb[i]
        values[p] = v
        indices[p] = base + i
        p += np.int64(abs(v) > eta)
    if zero:
        for i in range(ROW):
            v = rb[i]
            rb[i] = np.float32(0.0) if abs(v) > eta else v


@njit(nogil=True, fastmath=FAST, cache=True)
def take_range(r, x, scale, eta, zero, start, end, values, indices):
    """Rows from `start` until `end` or until the room ends: (coordinates found, where it stopped)."""
    p, room = 0, values.shape[0]
    whole = start + (end - start) // ROW * ROW
    for a in range(start, whole, ROW):
        if p + ROW + 1 > room:
            return p, a
        rb = r[a : a + ROW]
        hits = count_row(rb, None, scale, eta) if x is None else count_row(rb, x[a : a + ROW], scale, eta)
        if hits:
            if hits < FEW:
                emit_few(rb, eta, zero, a, values[p:], indices[p:])
            else:
                emit_many(rb, eta, zero, a, values[p:], indices[p:])
            p += hits
    if p + ROW + 1 > room:
        return p, whole
    for i in range(whole, end):
        if x is not None:
            r[i] = r[i] + scale * x[i]
        if abs(r[i]) > eta:
            values[p] = r[i]
            indices[p] = i
            if zero:
                r[i] = 0
            p += 1
    return p, end


@njit(nogil=True, cache=True)
def close_gaps(values, indices, room, found):
    """Move together what lies from every `room`-th place on: how many they are."""
    p = found[0]
    for j in range(1, found.shape[0]):
        for i in range(j * room, j * room + found[j]):
            values[p] = values[i]
            indices[p] = indices[i]
            p += 1
    return p


@njit(nogil=True, parallel=True, fastmath=FAST, cache=True)
def take_ranges(r, x, scale, eta, zero, ranges, values, indices):
    set_num_threads(ranges.shape[1])
    starts, ends, found = ranges[0], ranges[1], ranges[2]
    room = values.shape[0] // starts.shape[0]
    for j in prange(starts.shape[0]):
        mine = slice(j * room, (j + 1) * room)
        found[j], starts[j] = take_range(r, x, scale, eta, zero, starts[j], ends[j], values[mine], indices[mine])


@njit(nogil=True, cache=True)
def take(r, x, scale, eta, zero, ranges, values, indices, many):
    """(how many were found, moved together; whether all is done). Columns of `ranges` (3, threads): where a range goes
    on and where it ends, how many it found: each has an equal share of the room. `many` None: there is one.
    """
    scale, eta = np.float32(scale), np.float32(eta)
    starts, ends, found = ranges[0], ranges[1], ranges[2]
    if many is None:
        found[0], starts[0] = take_range(r, x, scale, eta, zero, starts[0], ends[0], values, indices)
    else:
        take_ranges(r, x, scale, eta, zero, ranges, values, indices)
    whole = True
    for j in range(starts.shape[0]):
        whole &= starts[j] == ends[j]
    return close_gaps(values, indices, values.shape[0] // starts.shape[0], found), whole


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
def sample(x, r, scale, out):
    width, scale = WIDTH, np.float32(scale)
    blocks = out.shape[0] // width
    for b in range(blocks):
        a = b * (x.shape[0] - width) // max(1, blocks - 1)
        xb, ob = x[a : a + width], out[b * width : (b + 1) * width]
        if r is None:
            for i in range(xb.shape[0]):
                ob[i] = abs(xb[i])
        else:
            rb = r[a : a + width]
            for i in range(xb.shape[0]):
                ob[i] = abs(rb[i] + scale * xb[i])


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
