"""Model shapes whose memory is estimated and then measured: what each allocates, on which device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cgstate import BucketedRoutine, Component
from cgstate.backends.base import Backend

Call = Callable[[Any], Any]
Example = Callable[[int], tuple[Any, ...]]


class Captured(BucketedRoutine[..., Any]):
    """Is captured and never called, so that a size may stand for any shape."""

    def allocate_buffers(self, descriptor: int) -> tuple[Any, ...]:
        """As `Routine.allocate_buffers`."""
        return self.example(descriptor)


@dataclass(frozen=True, slots=True)
class Part:
    """One component of a shape.

    Attributes:
        call: The work, of one tensor.
        example: Its input of a size.
        sizes: One graph each.
    """

    call: Call
    example: Example
    sizes: tuple[int, ...]

    def component(self, name: str, order: Sequence[int] | None = None) -> Component[..., Any]:
        """A component; ``order`` is the order of capture, None: largest first."""
        rank = None if order is None else {size: -place for place, size in enumerate(order)}
        key = None if rank is None else rank.__getitem__
        return Component(name, Captured(self.call, self.example), self.sizes, capture_order_key=key)


@dataclass(frozen=True, slots=True)
class Shape:
    """A model.

    Attributes:
        name: What it is.
        parts: Its components.
        isolation: How far its entries are kept apart.
        nests: Whether each graph's temporaries fit where those of a larger one have been; else no order by size is a good one.
    """

    name: str
    parts: tuple[Part, ...]
    isolation: str = "shared"
    nests: bool = True

    def components(self) -> list[Component[..., Any]]:
        """Fresh components."""
        return [part.component(f"part {number}") for number, part in enumerate(self.parts)]


DOUBLING = tuple(2**power for power in range(13))
WIDE = tuple(8 * 2**power for power in range(9))
LAYERS = 24
DEEP = "a decoder of 24 layers"
CROSSED = "sizes that do not nest"
PAIRS = tuple(10_000 * 128 * high + 128 * (20 - high) for high in range(2, 18))
"""Heights and widths in one number, so that no size is larger than another in both."""


def shapes_on(backend: Backend) -> list[Shape]:
    """The shapes for a backend."""
    if backend.name == "sim":
        mlp, vocoder = _simulated(backend)
        return [Shape("mlp", (mlp,)), Shape("mixture", (mlp, vocoder)), Shape("mlp, a pool each", (mlp,), "per_entry")]
    parts = dict(_real())
    single = [Shape(name, (part,), nests=name != CROSSED) for name, part in parts.items()]
    mixture = Shape("mixture", (parts["mlp"], parts["vocoder"], parts["attention"]))
    return [*single, mixture, Shape("mlp, a pool each", (parts["mlp"],), "per_entry")]


def deep(backend: Backend) -> Shape:
    """A decoder of many layers with the sizes that serving engines capture: what profiling takes is told of it."""
    sizes = (1, 2, 4, *range(8, 257, 8))
    if backend.name == "sim":
        mlp, _ = _simulated(backend)
        return Shape(DEEP, (Part(mlp.call, mlp.example, sizes),))
    parts = dict(_real())

    def layers(x: Any) -> Any:
        for _ in range(LAYERS):
            x = x + parts["attention"].call(x)
            x = x + parts["mlp"].call(x)
        return x

    return Shape(DEEP, (Part(layers, parts["mlp"].example, sizes),))


def _simulated(backend: Any) -> tuple[Part, Part]:
    from cgstate.backends.sim import kernels

    device = backend.sim
    up, down = device.rand(8, 32), device.rand(32, 8)

    def mlp(x: Any) -> Any:
        return kernels.matmul(kernels.tanh(kernels.matmul(x, up)), down)

    def upsample(x: Any) -> Any:
        return kernels.tanh(kernels.matmul(kernels.matmul(kernels.matmul(x, up), down), up))

    def example(size: int) -> tuple[Any, ...]:
        return (device.zeros(size, 8),)

    return Part(mlp, example, DOUBLING[:8]), Part(upsample, example, DOUBLING[2:7])


def _real() -> Iterator[tuple[str, Part]]:
    import torch
    from torch.nn import functional

    options = {"device": "cuda", "dtype": torch.bfloat16}
    width, heads = 1024, 16
    up, down = torch.randn(width, 4 * width, **options), torch.randn(4 * width, width, **options)  # type: ignore[call-overload]
    mix = torch.randn(width, 3 * width, **options)  # type: ignore[call-overload]
    filters = [torch.randn(256 >> step, 128 >> step, 16, **options) for step in range(4)]  # type: ignore[call-overload]

    def rows(size: int) -> tuple[Any, ...]:
        return (torch.zeros(size, width, **options),)  # type: ignore[call-overload]

    def frames(size: int) -> tuple[Any, ...]:
        return (torch.zeros(1, 256, size, **options),)  # type: ignore[call-overload]

    def attention(x: Any) -> Any:
        query, key, value = (x @ mix).view(-1, 3, heads, width // heads).permute(1, 2, 0, 3)
        weights = torch.softmax(query @ key.transpose(1, 2) / 8, dim=-1)
        return (weights @ value).transpose(0, 1).reshape(-1, width)

    def vocoder(x: Any) -> Any:
        for each in filters:
            x = functional.leaky_relu(functional.conv_transpose1d(x, each, stride=4, padding=6))
        return torch.tanh(x.sum(1))

    def tiny(x: Any) -> Any:
        for _ in range(20):
            x = x.sin() + 1
        return x

    def huge(x: Any) -> Any:
        spread = x[:, :1] * torch.ones(1, 1 << 26, **options)  # type: ignore[call-overload]
        return (spread * 2).amax(dim=1, keepdim=True) + x

    def crossed(x: Any) -> Any:
        high, wide = x.shape
        tall = x.sum(1, keepdim=True).expand(high, 8192) * 2
        flat = x.sum(0, keepdim=True).expand(8192, wide) * 2
        return x + tall.sum(1, keepdim=True) + flat.sum(0, keepdim=True)

    def pair(code: int) -> tuple[Any, ...]:
        return (torch.zeros(code // 10_000, code % 10_000, **options),)  # type: ignore[call-overload]

    yield "mlp", Part(lambda x: functional.gelu(x @ up) @ down, rows, DOUBLING)
    yield "attention", Part(attention, rows, WIDE)
    yield "vocoder", Part(vocoder, frames, tuple(4 * size for size in WIDE))
    yield "many tiny graphs", Part(tiny, rows, tuple(range(1, 129)))
    yield "few huge temporaries", Part(huge, rows, (1, 2, 3, 4))
    yield CROSSED, Part(crossed, pair, PAIRS)
