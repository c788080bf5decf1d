"""Kernels: what a small model needs, in pure Python, exactly the same eagerly and in a replay.

For users and tests. Every function queues (or records) its kernels on the current stream and returns a new tensor. Sums run in a
fixed order that more rows, or more terms that are zero, do not change: a padded call equals the unpadded one bit for bit where
the padding is zeros or masked. Second operands are broadcast along leading dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from operator import add as _plus
from operator import mul as _times

from cgstate.backends.sim.errors import DEVICE_ASSERT, DeviceFault
from cgstate.backends.sim.tensor import Shape, SimTensor

Values = list[float]


def add(a: SimTensor, b: SimTensor) -> SimTensor:
    """``a + b``."""
    return _binary("add", _plus, a, b)


def mul(a: SimTensor, b: SimTensor) -> SimTensor:
    """``a * b``, element by element."""
    return _binary("mul", _times, a, b)


def scale(x: SimTensor, factor: float) -> SimTensor:
    """``x * factor``; the factor is baked in."""
    return _one("scale", lambda values: ([v * factor for v in values],), (x,), x.shape)


def relu(x: SimTensor) -> SimTensor:
    """``max(x, 0)``."""
    return _one("relu", _relu, (x,), x.shape)


def tanh(x: SimTensor) -> SimTensor:
    """The hyperbolic tangent."""
    return _one("tanh", lambda values: (list(map(math.tanh, values)),), (x,), x.shape)


def masked_fill(x: SimTensor, mask: SimTensor, value: float) -> SimTensor:
    """``x``, with ``value`` wherever ``mask`` is not zero."""
    return _binary("masked_fill", lambda v, m: value if m else v, x, mask)


def transpose(x: SimTensor) -> SimTensor:
    """The transpose of a matrix, in memory of its own; `SimTensor.t` is the view."""
    return x.t().clone()


def softmax(x: SimTensor) -> SimTensor:
    """Softmax over the last dimension."""
    return _one("softmax", partial(_softmax, x.shape[-1]), (x,), x.shape)


def embedding(ids: SimTensor, table: SimTensor) -> SimTensor:
    """The rows of ``table`` that ``ids`` names. An id out of range is a device-side assert (fact F7)."""
    rows, width = table.shape
    return _one("embedding", partial(_embedding, rows, width), (ids, table), (*ids.shape, width))


def conv_transpose1d(x: SimTensor, weight: SimTensor, stride: int) -> SimTensor:
    """Transposed convolution of ``x[C, T]`` by ``weight[C, Cout, K]``: ``[Cout, (T - 1) * stride + K]``."""
    channels, frames = x.shape
    if weight.shape[0] != channels:
        raise ValueError(f"conv_transpose1d of {channels} channels by a weight of shape {weight.shape}")
    _, out_channels, taps = weight.shape
    if frames < 1 or stride < 1:
        raise ValueError(f"conv_transpose1d of {frames} frames with stride {stride}")
    length = (frames - 1) * stride + taps
    kernel = partial(_conv_transpose1d, channels, frames, out_channels, taps, stride)
    return _one("conv_transpose1d", kernel, (x, weight), (out_channels, length))


def matmul(a: SimTensor, b: SimTensor) -> SimTensor:
    """The product of two matrices, in two kernels: partial sums go through the library's workspace (facts W1, W2, F8).

    A product whose partial sums do not fit the workspace is computed in one, with the same result.
    """
    (rows, inner), (inner_b, columns) = a.shape, b.shape
    if inner != inner_b:
        raise ValueError(f"matmul of shapes {a.shape} and {b.shape}")
    device = a.storage.device
    halves = device.library.workspace().halves(rows * columns)
    partial_sums = partial(_matmul_partial, rows, inner, columns)
    if halves is None:
        return _one("matmul", lambda x, y: _matmul_reduce(*partial_sums(x, y)), (a, b), (rows, columns))
    device.launch("matmul_partial", partial_sums, (a, b), halves)
    return _one("matmul_reduce", _matmul_reduce, halves, (rows, columns))


def _one(name: str, kernel: Callable[..., tuple[Values]], inputs: tuple[SimTensor, ...], shape: Shape) -> SimTensor:
    device = inputs[0].storage.device
    out = SimTensor.empty(device, shape)
    device.launch(name, kernel, inputs, (out,))
    return out


def _binary(name: str, of: Callable[[float, float], float], a: SimTensor, b: SimTensor) -> SimTensor:
    if a.shape[len(a.shape) - len(b.shape) :] != b.shape:
        raise ValueError(f"{name} of shapes {a.shape} and {b.shape}")

    def kernel(left: Values, right: Values) -> tuple[Values]:
        times = len(left) // len(right) if right else 0
        return (list(map(of, left, right if times == 1 else right * times)),)

    return _one(name, kernel, (a, b), a.shape)


def _relu(values: Values) -> tuple[Values]:
    return ([v if v > 0.0 else 0.0 for v in values],)


def _softmax(width: int, values: Values) -> tuple[Values]:
    out: Values = []
    for start in range(0, len(values), max(1, width)):
        row = values[start : start + width]
        top = max(row)
        powers = [math.exp(v - top) for v in row]
        total = sum(powers)
        out += [p / total for p in powers]
    return (out,)


def _embedding(rows: int, width: int, ids: Values, table: Values) -> tuple[Values]:
    out: Values = []
    for value in ids:
        if not 0 <= value < rows:
            raise DeviceFault(DEVICE_ASSERT)
        row = int(value)
        out += table[row * width : (row + 1) * width]
    return (out,)


def _conv_transpose1d(
    channels: int, frames: int, out_channels: int, taps: int, stride: int, x: Values, weight: Values
) -> tuple[Values]:
    length = (frames - 1) * stride + taps
    out: Values = []
    inputs = [x[c * frames : (c + 1) * frames] for c in range(channels)]
    for o in range(out_channels):
        row = [0.0] * length
        for k in range(taps):
            places = slice(k, k + (frames - 1) * stride + 1, stride)
            sums = row[places]
            for c, values in enumerate(inputs):
                factor = weight[(c * out_channels + o) * taps + k]
                sums = [s + factor * v for s, v in zip(sums, values, strict=True)]
            row[places] = sums
        out += row
    return (out,)


def _matmul_partial(rows: int, inner: int, columns: int, a: Values, b: Values) -> tuple[Values, Values]:
    # Every other term each, not one half each: a longer sum that ends in zeros then adds up the same way.
    evens = [b[c :: 2 * columns] for c in range(columns)]
    odds = [b[columns + c :: 2 * columns] for c in range(columns)]
    first: Values = []
    second: Values = []
    for r in range(rows):
        row = a[r * inner : (r + 1) * inner]
        even, odd = row[::2], row[1::2]
        first += [sum(map(_times, even, column), 0.0) for column in evens]
        second += [sum(map(_times, odd, column), 0.0) for column in odds]
    return first, second


def _matmul_reduce(first: Values, second: Values) -> tuple[Values]:
    return (list(map(_plus, first, second)),)
