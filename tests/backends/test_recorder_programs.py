"""Random small programs of torch: captured and replayed with fresh inputs, each equals its eager run bit for bit.

A program is a list of steps. Each takes tensors made so far by number, so that any list of numbers is a program: a step whose
operands do not fit does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cgstate.backends.sim import Drawn
from tests.backends.torch_captures import Bench, equal

pytestmark = pytest.mark.torch

Step = tuple[int, int, int, int]


def _matrix(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1) if x.dim() else x.reshape(1, 1)


OPERATIONS: list[Callable[[Tensor, Tensor, int], Tensor | tuple[Tensor, ...]]] = [
    lambda x, y, n: x + y,
    lambda x, y, n: x * (n + 0.5),
    lambda x, y, n: x - y.mean(),
    lambda x, y, n: torch.tanh(x),
    lambda x, y, n: torch.nn.functional.gelu(x),
    lambda x, y, n: x.softmax(-1),
    lambda x, y, n: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    lambda x, y, n: _matrix(x) @ _matrix(y).t(),
    lambda x, y, n: x.sum(n % max(1, x.dim()), keepdim=True),
    lambda x, y, n: x.amax(-1),
    lambda x, y, n: x.cumsum(0),
    lambda x, y, n: x.transpose(0, -1),
    lambda x, y, n: x[n % x.shape[0] :],
    lambda x, y, n: x[..., ::2],
    lambda x, y, n: x.unsqueeze(n % (x.dim() + 1)),
    lambda x, y, n: x.reshape(-1),
    lambda x, y, n: x.expand(2, *x.shape),
    lambda x, y, n: torch.cat([x, x * 2], n % max(1, x.dim())),
    lambda x, y, n: torch.stack([x, x + 1]),
    lambda x, y, n: x.chunk(2, -1),
    lambda x, y, n: x.add_(1),
    lambda x, y, n: x.mul_(y),
    lambda x, y, n: x.copy_(y),
    lambda x, y, n: x.narrow(0, 0, 1).zero_(),
    lambda x, y, n: x.clamp_(-1, 1).clone(),
    lambda x, y, n: x.index_select(0, torch.arange(x.shape[0] - 1, -1, -1)),
    lambda x, y, n: torch.where(x > 0, x, torch.zeros_like(x)),
    lambda x, y, n: x.masked_fill(x < 0, 0.25 * n),
    lambda x, y, n: x.sort(-1).values,
    lambda x, y, n: x.to(torch.float64).to(torch.float32),
    lambda x, y, n: torch.nn.functional.dropout(x, 0.5),
    lambda x, y, n: x + torch.rand(x.shape[-1:]),
]

SMALL = 4096
"""Elements that a tensor of a program may have."""


def run(steps: list[Step], inputs: list[Tensor]) -> list[Tensor]:
    """Every tensor that the program makes or changes, inputs first."""
    made = list(inputs)
    for operation, first, second, number in steps:
        x, y = made[first % len(made)], made[second % len(made)]
        try:
            result = OPERATIONS[operation](x, y, number)
        except (RuntimeError, IndexError, ZeroDivisionError):
            continue  # operands that do not fit: in a capture as in eager
        made += [part for part in (result if isinstance(result, tuple) else (result,)) if part.numel() <= SMALL]
    return made


steps = st.lists(
    st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 30), st.integers(0, 30), st.integers(0, 5)),
    min_size=1,
    max_size=14,
)


@given(steps=steps, inference=st.booleans(), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_replay_equals_eager(steps: list[Step], inference: bool, seed: int) -> None:
    bench = Bench(schedule=Drawn(Random(seed)))
    generator = torch.Generator().manual_seed(seed)

    def fresh() -> list[Tensor]:
        return [torch.randn(shape, generator=generator) for shape in ((4, 6), (4, 6), (6,))]

    with torch.inference_mode(inference), torch.no_grad():
        static = [bench.backend.place(value) for value in fresh()]
        graph, outputs = bench.capture(lambda: run(steps, static))
        for replay in range(2):
            inputs = fresh()
            for place, value in zip(static, inputs, strict=True):
                place.copy_(value)
            torch.manual_seed(replay)
            graph.replay()
            bench.sim.synchronize()
            torch.manual_seed(replay)
            assert equal(outputs, run(steps, inputs))


def test_the_programs_use_every_operation() -> None:
    static = [torch.ones(4, 6), torch.ones(4, 6), torch.ones(6)]
    fits = [index for index in range(len(OPERATIONS)) if len(run([(index, 0, 1, 1)], static)) > len(static)]
    assert fits == list(range(len(OPERATIONS)))
