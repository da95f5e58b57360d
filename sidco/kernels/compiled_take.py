"""The inner loops of a selection, like those of `sidco.kernels.compiled`: by rows, most of which hold no hit."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

from sidco.kernels.compiled import FAST, set_num_threads

ROW = 128  # floats looked at together: most rows of a sparse selection hold nothing and are left at once
LANES = 16  # floats whose hits are one bit mask
FEW = 6  # hits in a row, below which masks pay; above, every value is written and the place moves on or not


@intrinsic
def lowest_bit(_context: Any, _mask: Any) -> Any:
    """The place of the lowest bit that is set: one instruction that numba has no name for."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint32(types.uint32), generate


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
