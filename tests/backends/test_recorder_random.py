"""Graphs that draw random numbers: from torch's own generator, in the order in which the host launches them."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.sim.errors import SimGeneratorError
from cgstate.backends.undo import UndoLog
from tests.backends.torch_captures import Bench, equal

pytestmark = pytest.mark.torch


def test_replays_draw_what_eager_would() -> None:
    bench = Bench()
    x = bench.backend.place(torch.ones(8))

    def body(x: torch.Tensor) -> object:
        noisy = nn.functional.dropout(x, 0.5) + torch.randn(8) + torch.rand_like(x)
        return noisy, torch.randint(0, 9, (3,)), torch.randperm(4), torch.multinomial(x, 2), x.clone().normal_()

    graph, outputs = bench.capture(lambda: body(x))
    torch.manual_seed(3)
    eager = [body(torch.ones(8)) for _ in range(2)]
    torch.manual_seed(3)
    for expected in eager:
        graph.replay()
        assert equal(outputs, expected)


def test_a_capture_draws_nothing() -> None:
    bench = Bench()
    before = bench.backend.generator_mark()
    graph, _ = bench.capture(lambda: torch.rand(4))
    assert bench.backend.generator_mark() == before
    graph.replay()
    assert bench.backend.generator_mark() != before


def test_eager_draws_between_replays_keep_their_place() -> None:
    bench = Bench()
    graph, a = bench.capture(lambda: torch.rand(2))
    torch.manual_seed(1)
    expected = [torch.rand(2).tolist() for _ in range(3)]
    torch.manual_seed(1)
    graph.replay()
    between = torch.rand(2).tolist()  # the replay was launched before, so it has drawn before
    first = a.tolist()
    graph.replay()
    assert [first, between, a.tolist()] == expected


def test_attention_without_dropout_draws_nothing() -> None:
    bench = Bench()
    q = bench.backend.place(torch.randn(1, 2, 4, 8))
    graph, _ = bench.capture(lambda: nn.functional.scaled_dot_product_attention(q, q, q))
    before = bench.backend.generator_mark()
    graph.replay()
    assert bench.backend.generator_mark() == before


def test_the_undo_log_puts_torchs_generator_back() -> None:
    bench = Bench()
    undo = UndoLog()
    bench.backend.keep_generator(undo)
    before = bench.backend.footprint()
    torch.rand(5)
    assert bench.backend.footprint() != before
    undo.fail()
    assert not undo.errors
    assert bench.backend.footprint() == before


def test_drawing_meanwhile_in_another_thread_is_refused() -> None:
    bench = Bench()
    drawing, _ = bench.capture(lambda: torch.rand(2))
    x = bench.backend.place(torch.zeros(2))
    undo = UndoLog()
    graph = bench.backend.open_capture(bench.sim.new_pool(), bench.stream, CaptureErrorMode.thread_local, undo)
    errors: list[BaseException] = []

    def meanwhile() -> None:
        for act in (drawing.replay, x.normal_):
            try:
                act()
            except SimGeneratorError as error:
                errors.append(error)

    thread = threading.Thread(target=meanwhile)
    thread.start()
    thread.join()
    bench.backend.close_capture(graph)
    undo.succeed()
    assert len(errors) == 2  # fact S2
    assert x.tolist() == [0.0, 0.0]
