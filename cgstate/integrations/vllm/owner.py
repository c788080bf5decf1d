"""What one of vLLM's managers has of ours: a graph manager that records into vLLM's own pool, and what keeps that pool open."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch

from cgstate.backends.base import Backend, CaptureErrorMode
from cgstate.errors import describe
from cgstate.lifecycle.states import ManagerState
from cgstate.runtime.domain import Isolation
from cgstate.runtime.manager import GraphManager
from cgstate.runtime.witness import Witness

MODE = CaptureErrorMode.global_
"""What ``torch.cuda.graph`` captures in where nothing is said, and so vLLM."""

_numbers = itertools.count(1)


class Owner:
    """Records into the pool of one manager of vLLM's; as a `session.Source`, for its graphs that will be replayed.

    Attributes:
        component: Id of the component whose entries its graphs are.
        manager: The graph manager; None before the first capture.
        pool: Id of the pool that it records into.
    """

    def __init__(self, kind: str, device: Any, backend: Callable[[Any], Backend], *, check: bool, recorder: Witness | None) -> None:
        self.component = f"{kind}-{next(_numbers)}"
        self.manager: GraphManager | None = None
        self._device = device
        self._backend_of = backend
        self._check = check
        self._recorder = recorder
        self.pool: Any = None
        self._anchor: Anchor | None = None

    @cached_property
    def backend(self) -> Backend:
        """The device. Made on first use: a manager that captures nothing needs none."""
        return self._backend_of(self._device)

    def open(self, pool: Any, stream: Any) -> GraphManager:
        """As `session.Source.open`. Another pool than the last time is another manager: no graph may be left in the first."""
        if self.manager is not None and self.pool != pool:
            self.manager.close()
            self.manager = None
            self._drop_anchor()
        self.pool = pool
        if self._anchor is None:
            self._anchor = Anchor(pool, stream, self._device)
        if self.manager is None:
            self.manager = GraphManager(
                self.backend,
                pool=pool,
                isolation=Isolation.foreign,
                capture_error_mode=MODE,
                check=self._check,
                observer=self._recorder,
            )
        self.manager.forget_failures()  # whoever calls `capture` again means it
        return self.manager

    def around(self, descriptor: Hashable, pool: Any) -> AbstractContextManager[object]:
        """As `session.Source.around`."""
        return nullcontext()

    def failed(self, error: BaseException) -> None:
        """A capture was undone: let go of the pool, unless earlier graphs of ours live there, or the device is lost (fact F7)."""
        if self.manager is not None and self.manager.state in (ManagerState.SERVING, ManagerState.POISONED):
            return
        try:
            self._let_go()
        except Exception as problem:
            error.add_note(f"letting go of vLLM's pool afterwards raised {describe(problem)}")

    def release(self) -> None:
        """Retire every graph and give back what the pool returns; the next capture starts anew.

        Raises:
            LeaseOutstanding: somebody holds a lease on a graph; nothing was changed.
            ManagerPoisoned: the device is lost.
        """
        if self.manager is None or self.manager.state in (ManagerState.NEW, ManagerState.PREPARED):
            return
        self.manager.release(timeout=0)
        self._let_go()

    def _let_go(self) -> None:
        """Give the pool's bytes back, unless something is alive in it: vLLM's other graphs, or what vLLM keeps of a capture.

        A pool without graphs of which memory is in use can neither be given back nor captured into (fact P1).
        """
        if self._anchor is not None and not any(segment.live for segment in self.backend.adopt_pool(self.pool).segments()):
            self._drop_anchor()
        self.backend.flush()

    def _drop_anchor(self) -> None:
        anchor, self._anchor = self._anchor, None
        if anchor is not None:
            anchor.drop()


class Anchor:
    """A graph of one memset, which keeps vLLM's pool open while graphs of ours come and go there (facts P1, P3).

    It is captured by torch's own means, which open a pool again that was emptied before.
    """

    def __init__(self, pool: Any, stream: Any, device: Any) -> None:
        self._cell = torch.zeros(1, device=device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, stream=stream):
            self._cell.zero_()

    def drop(self) -> None:
        """Let go of the pool."""
        self._graph.reset()
