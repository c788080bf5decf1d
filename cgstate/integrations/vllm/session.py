"""One call of a manager's ``capture``: every whole graph that vLLM captures in it is recorded by cgstate.

vLLM's own loop runs as it is, in its order, with its warm-up, its progress bar, its offloader and its registration of pools. Only
the ``with torch.cuda.graph(...)`` that it opens for a descriptor is ours. Which one that is, is told by what comes before it: the
graphs that a forward function captures inside itself, piecewise ones, are left to torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import torch

from cgstate.backends.base import Backend
from cgstate.runtime.entry import Entry
from cgstate.runtime.manager import GraphManager
from cgstate.runtime.transaction import Transaction


class Source(Protocol):
    """Where a session's graphs are recorded: to be replayed, or to be measured."""

    @property
    def backend(self) -> Backend:
        """The device."""
        ...

    @property
    def component(self) -> str:
        """Id of the component that the graphs belong to."""
        ...

    def open(self, pool: Any, stream: Any) -> GraphManager:
        """The manager that records into ``pool``. Called before the first graph of a session."""
        ...

    def around(self, descriptor: Hashable, pool: Any) -> AbstractContextManager[object]:
        """What each recording runs inside."""
        ...


class Session:
    """The graphs of one call of ``capture``. A context manager: they are bound when it ends, or, if it raises, all dropped."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._thread = threading.get_ident()
        self._ending = ExitStack()
        self._manager: GraphManager | None = None
        self._transaction: Transaction | None = None
        self._next: Hashable = None
        self._random: dict[Hashable, bool] = {}
        self._captured: list[tuple[object, Entry]] = []
        self._torch_graph: Any = None

    def __enter__(self) -> Session:
        self._torch_graph = torch.cuda.graph
        torch.cuda.graph = self._open  # type: ignore[misc, assignment]  # who captures looks it up when it does
        self._ending.callback(self._give_back)
        return self

    def __exit__(self, *error: Any) -> None:
        self._ending.__exit__(*error)

    def _give_back(self) -> None:
        torch.cuda.graph = self._torch_graph  # type: ignore[misc]

    # -- what is captured next ----------------------------------------------------------------------------------------

    def following(self, create_forward_fn: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
        """The factory of forward functions, watched: after it was asked for a captured FULL one, that graph comes next."""

        def create(desc: Any, warmup: bool) -> Callable[..., Any]:
            forward = create_forward_fn(desc, warmup=warmup)
            if desc.cg_mode.name != "FULL":
                return forward
            if warmup:
                return self._watched(desc, forward)
            self.expect(desc)
            return forward

        return create

    def expect(self, descriptor: Hashable) -> None:
        """The next graph that this thread captures by ``torch.cuda.graph`` is that of ``descriptor``."""
        self._next = descriptor

    def _watched(self, descriptor: Hashable, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A warm-up that tells whether the work draws random numbers: inside the capture it cannot be told."""

        def warm_up(*args: Any) -> Any:
            mark = self._source.backend.generator_mark()
            result = forward(*args)
            self._random[descriptor] = self._source.backend.generator_mark() != mark
            return result

        return warm_up

    # -- capturing ----------------------------------------------------------------------------------------------------

    def _open(self, cuda_graph: Any, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        """In place of ``torch.cuda.graph`` while the session lasts."""
        if self._next is None or threading.get_ident() != self._thread:
            graph: AbstractContextManager[Any] = self._torch_graph(cuda_graph, *args, **kwargs)
            return graph
        descriptor, self._next = self._next, None
        return self._record(descriptor, cuda_graph, *args, **kwargs)

    @contextmanager
    def _record(self, descriptor: Hashable, cuda_graph: Any, pool: Any = None, stream: Any = None) -> Iterator[None]:
        source = self._source
        stream = stream if stream is not None else self._default_stream()
        if self._transaction is None:
            self._manager = source.open(pool, stream)
            self._transaction = self._ending.enter_context(self._manager.transaction())
        assert self._manager is not None
        entry = self._manager.entry(source.component, descriptor)
        with source.around(descriptor, pool):
            source.backend.flush()  # as `torch.cuda.graph` does: a capture cannot use what the allocator caches outside its pool
            with self._transaction.recording(entry, stream=stream, uses_random=self._random.pop(descriptor, False)):
                yield
        self._captured.append((cuda_graph, entry))

    def _default_stream(self) -> Any:
        """The stream that ``torch.cuda.graph`` captures on where none is given."""
        if self._torch_graph.default_capture_stream is None:
            self._torch_graph.default_capture_stream = torch.cuda.Stream()
        return self._torch_graph.default_capture_stream

    def entry_of(self, cuda_graph: object) -> Entry | None:
        """The entry that was recorded instead of a graph object of vLLM's; None if that was none of ours."""
        return next((entry for graph, entry in self._captured if graph is cuda_graph), None)
