"""The handle of a recorded graph."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import torch

from cgstate.backends.cuda.quiet import quiet

if TYPE_CHECKING:
    from cgstate.backends.cuda.capture import Capture


class CudaGraph:
    """A graph, recorded or still being recorded.

    Attributes:
        torch_graph: torch's object; None when destroyed.
        replay: As `base.Graph.replay`; torch's own method, without the wrapper around it.
        capture: The capture that records it; None when that is over.
    """

    replay: Callable[[], None]

    def __init__(self) -> None:
        graph = torch.cuda.CUDAGraph()
        self.capture: Capture | None = None
        self.replay = super(torch.cuda.CUDAGraph, graph).replay
        self.torch_graph: torch.cuda.CUDAGraph | None = graph

    def destroy(self) -> None:
        """As `base.Graph.destroy`. Waits for the end of a capture of ours, rather than break it."""
        graph, self.torch_graph = self.torch_graph, None
        if graph is not None:
            self.replay = _replay_destroyed
            self.capture = None
            quiet.when_quiet(partial(_reset, graph))

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and hasattr(self, "torch_graph"):  # a default, since globals may be gone then
            self.destroy()


def _reset(graph: torch.cuda.CUDAGraph) -> None:
    with suppress(Warning):  # a lost device is only warned of here, but a filter may raise that
        graph.reset()


def _replay_destroyed() -> None:
    raise RuntimeError("replay of a graph that was destroyed")
