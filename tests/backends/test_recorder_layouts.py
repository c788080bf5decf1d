"""What is promised of results before anything runs: shape, strides and type are those of eager, also where nothing was asked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cgstate.backends.sim import SimBackend, SimDevice, captured  # noqa: E402
from cgstate.backends.sim.recorder import promise  # noqa: E402

ASKED = torch.ones(2, 3, 1, 5)
OTHERS = {
    "larger": torch.ones(4, 6, 2, 5),
    "fewer dimensions": torch.ones(7),
    "transposed": torch.ones(5, 3).t(),
    "with gaps": torch.ones(4, 8)[:, ::2],
    "channels last": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a number": torch.ones(()),
    "nothing": torch.ones(0, 3),
    "integers": torch.ones(3, 4, dtype=torch.int64),
    "half": torch.ones(3, 4, dtype=torch.bfloat16),
}
WORKS: dict[str, Callable[[Any], Any]] = {
    "gelu": lambda x: torch.nn.functional.gelu(x * 1.0),
    "square root": torch.sqrt,
    "comparison": lambda x: x > 1,
    "with a float": lambda x: x * 0.5,
    "with an integer": lambda x: x * 2,
    "with itself": lambda x: x + x,
    "with a row": lambda x: x + (x[..., :1] if x.dim() else 1),
    "dense clone": lambda x: x.clone(memory_format=torch.contiguous_format),
    "channels last clone": lambda x: x.clone(memory_format=torch.channels_last) if x.dim() == 4 else x.clone(),
    "softmax": lambda x: torch.softmax(x, -1, dtype=torch.float32) if x.dim() else x.exp(),
    "layer norm": lambda x: torch.native_layer_norm(x * 1.0, x.shape[-1:], None, None, 1e-5) if x.dim() else x.exp(),
}


def layouts(made: Any) -> list[tuple[Any, ...]]:
    tensors = made if isinstance(made, tuple) else (made,)
    return [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promise, "_answers", {})
    monkeypatch.setattr(promise, "_dtypes", {})


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_results_lie_as_eager_makes_them_whatever_was_asked_before(other: Any, work: Callable[[Any], Any]) -> None:
    device = SimDevice()
    backend = SimBackend(device)
    asked = ASKED.to(other.dtype)
    right = [work(asked), work(other)]
    for value, expected in zip((asked, other), right, strict=True):
        placed = backend.place(value)
        graph, made = captured(device, partial(work, placed), device.new_stream())
        assert layouts(made) == layouts(expected)
        graph.replay()
        device.synchronize()  # the kernel would refuse results that lie in another way
        graph.destroy()


def test_a_point_wise_operation_is_asked_about_its_type_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimDevice()
    backend = SimBackend(device)
    asked: list[str] = []
    right = promise._ask

    def ask(overload: Any, *rest: Any) -> Any:
        asked.append(overload.name)
        return right(overload, *rest)

    monkeypatch.setattr(promise, "_ask", ask)
    for rows in range(1, 5):
        x = backend.place(torch.ones(rows, 4))
        captured(device, partial(torch.tanh, x), device.new_stream())
    assert asked == ["aten::tanh"]
    y = backend.place(torch.ones(4, 4, dtype=torch.float64))
    captured(device, lambda: torch.tanh(y), device.new_stream())
    assert asked == ["aten::tanh"] * 2
