"""The adapter: which of vLLM's methods are replaced, and by what.

Everything is set on vLLM's own classes in place, so that its subclasses (the model's manager, the speculators') have it as well,
and is put back by `uninstall`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any
from weakref import WeakSet

from cgstate.backends.base import Backend
from cgstate.integrations.vllm.observe import Wrappers
from cgstate.integrations.vllm.options import Options, parse
from cgstate.integrations.vllm.owner import MODE, Owner
from cgstate.integrations.vllm.probe import Seams
from cgstate.integrations.vllm.profiling import ProfileRun
from cgstate.integrations.vllm.session import Session
from cgstate.runtime.manager import GraphManager
from cgstate.runtime.memory import MemoryEstimate
from cgstate.trace.sinks import FileRecorder, record

MARK = "_cgstate_owner"
"""Attribute under which a manager of vLLM's has what belongs to it."""

SESSION = "_cgstate_session"
"""Attribute under which an encoder manager of vLLM's has the session in which it captures, while it does."""

ABSENT = object()
"""Stands for an attribute that vLLM did not have."""


class Adapter:
    """Puts vLLM's managers on cgstate.

    Attributes:
        wrappers: vLLM's piecewise and breakable graphs.
        owners: What belongs to each manager that is alive.
        estimate: The last estimate of FULL graphs that vLLM was given; None before its first profiling.
    """

    def __init__(self, seams: Seams, backend: Callable[[Any], Backend]) -> None:
        self.wrappers = Wrappers(seams)
        self.owners: WeakSet[Owner] = WeakSet()
        self.estimate: MemoryEstimate | None = None
        self._seams = seams
        self._backend_of = backend
        self._run: ProfileRun | None = None
        self._recorders: dict[Path, FileRecorder] = {}
        self._before: list[tuple[Any, str, object]] = []

    # -- in and out ---------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Replace what is replaced."""
        seams = self._seams
        manager, encoder = seams.manager, seams.encoder
        self._replace(manager, "__init__", self._constructor(manager.__init__))
        self._replace(manager, "capture", self._capture(manager.capture))
        self._replace(manager, "release_graphs", self._release(vars(manager).get("release_graphs", _drop_graphs)))
        self._replace(encoder, "capture", self._encoder_capture(encoder.capture))
        self._replace(encoder, "_capture_budget_graph", self._encoder_graph(encoder._capture_budget_graph))
        self._replace(encoder, "clear", self._encoder_clear(encoder.clear))
        for wrapper in (seams.piecewise, seams.breakable):
            self._replace(wrapper, "clear_graphs", self.wrappers.counting(wrapper.clear_graphs))
        if seams.features.profiles:
            profile = self._profile(seams.utils.profile_cudagraph_memory)
            self._replace(seams.utils, "profile_cudagraph_memory", profile)
            runner = sys.modules.get("vllm.v1.worker.gpu.model_runner")  # has taken the function by another name if it is there
            if hasattr(runner, "_profile_cudagraph_memory"):
                self._replace(runner, "_profile_cudagraph_memory", profile)

    def uninstall(self) -> None:
        """Put everything back. Graphs that were captured go on to be replayed, and end with their managers."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self.close_traces()

    def close_traces(self) -> None:
        """End the files: what is recorded later is lost."""
        while self._recorders:
            self._recorders.popitem()[1].close()

    def _replace(self, owner: Any, name: str, value: object) -> None:
        self._before.append((owner, name, vars(owner).get(name, ABSENT)))
        setattr(owner, name, value)

    # -- vLLM's manager -----------------------------------------------------------------------------------------------

    def _constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def __init__(host: Any, *args: Any, **kwargs: Any) -> None:
            original(host, *args, **kwargs)
            self._adopt(host)

        return __init__

    def _capture(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def capture(host: Any, create_forward_fn: Any, *args: Any, **kwargs: Any) -> Any:
            owner = self._owner_of(host)
            if owner is None:
                return original(host, create_forward_fn, *args, **kwargs)
            if self._run is not None:
                return self._capture_to_measure(
                    host, owner, self._run, lambda create: original(host, create, *args, **kwargs), create_forward_fn
                )
            graphs, flag, wrappers = set(host.graphs), host._graphs_captured, self.wrappers.snapshot()
            session = Session(owner)
            try:
                with session:
                    result = original(host, session.following(create_forward_fn), *args, **kwargs)
            except BaseException as error:
                _keep(host.graphs, graphs)
                host._graphs_captured = flag
                self.wrappers.restore(wrappers)
                owner.failed(error)
                raise
            for descriptor, graph in host.graphs.items():
                host.graphs[descriptor] = session.entry_of(graph) or graph
            return result

        return capture

    def _capture_to_measure(self, host: Any, owner: Owner, run: ProfileRun, capture: Callable[[Any], Any], create: Any) -> Any:
        """A capture while vLLM profiles: nothing of it may be replayed, so dispatch must not offer it either."""
        run.begin(owner.component)
        graphs, flag = set(host.graphs), host._graphs_captured
        session = Session(run)
        try:
            with session:
                return capture(session.following(create))
        finally:
            _keep(host.graphs, graphs)
            host._graphs_captured = flag

    def _release(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        @wraps(original)
        def release_graphs(host: Any) -> None:
            """Retire the captured graphs, so that a later ``capture`` can make them anew."""
            owner = self._owner_of(host)
            if owner is not None:
                owner.release()  # first: if it refuses, the graphs are still there
            original(host)

        return release_graphs

    # -- vLLM's encoder manager ---------------------------------------------------------------------------------------

    def _encoder_capture(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def capture(host: Any, *args: Any, **kwargs: Any) -> Any:
            owner = self._owner_of(host)
            if owner is None or self._run is not None:  # vLLM measures all of them, in a pool of their own
                return original(host, *args, **kwargs)
            before = {path: set(graphs) for path, graphs in host.budget_graphs.items()}
            pool = host.graph_pool
            session = Session(owner)
            setattr(host, SESSION, session)
            try:
                with session:
                    result = original(host, *args, **kwargs)
            except BaseException as error:
                for path, graphs in host.budget_graphs.items():
                    _keep(graphs, before.get(path, set()))
                host.graph_pool = pool
                owner.failed(error)
                raise
            finally:
                delattr(host, SESSION)
            for graphs in host.budget_graphs.values():
                for metadata in graphs.values():
                    metadata.graph = session.entry_of(metadata.graph) or metadata.graph
            return result

        return capture

    def _encoder_graph(self, original: Callable[..., Any]) -> Callable[..., Any]:
        bound = signature(original).bind

        @wraps(original)
        def _capture_budget_graph(host: Any, *args: Any, **kwargs: Any) -> Any:
            session = vars(host).get(SESSION)
            if session is not None:
                arguments = bound(host, *args, **kwargs)
                arguments.apply_defaults()
                said = list(arguments.arguments.items())[1:]
                session.expect(", ".join(f"{name}={value!r}" for name, value in said))
            return original(host, *args, **kwargs)

        return _capture_budget_graph

    def _encoder_clear(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        @wraps(original)
        def clear(host: Any) -> None:
            owner = self._owner_of(host)
            if owner is not None:
                owner.release()
            original(host)

        return clear

    # -- profiling ----------------------------------------------------------------------------------------------------

    def _profile(self, original: Callable[[Any], int]) -> Callable[[Any], int]:
        @wraps(original)
        def profile_cudagraph_memory(runner: Any) -> int:
            if not self._options(runner).enabled:
                return original(runner)
            utils, platform = self._seams.utils, self._seams.utils.current_platform
            with self.measuring(runner.device) as run:
                extrapolate = run.extrapolating(lambda: _full_descriptors(runner.cudagraph_manager))
                with (
                    _replaced(platform, "graph_pool_handle", run.new_pool(platform.graph_pool_handle)),
                    _replaced(utils, "_extrapolate_full_graph_memory", extrapolate),
                ):
                    taken = original(runner)
            self.estimate = run.estimate
            return taken

        return profile_cudagraph_memory

    @contextmanager
    def measuring(self, device: Any) -> Iterator[ProfileRun]:
        """What vLLM's managers capture in the block is measured, and nothing of it is left."""
        with GraphManager(self._backend_of(device), capture_error_mode=MODE) as manager:
            manager.prepare([])
            with manager.profile() as profile:
                self._run = run = ProfileRun(manager, profile)
                try:
                    yield run
                finally:
                    self._run = None

    # -- belongings ---------------------------------------------------------------------------------------------------

    def _adopt(self, host: Any) -> Owner | None:
        """Give one of vLLM's managers what belongs to it; None where the engine's options say no."""
        options = self._options(host)
        owner: Owner | None = None
        if options.enabled:
            recorder = self._recorder(options)
            owner = Owner(type(host).__name__, host.device, self._backend_of, check=options.check, recorder=recorder)
            self.owners.add(owner)
        setattr(host, MARK, owner)
        return owner

    def _owner_of(self, host: Any) -> Owner | None:
        owner: Owner | None = vars(host).get(MARK, ABSENT)
        return self._adopt(host) if owner is ABSENT else owner  # it may be older than the adapter

    def _options(self, host: Any) -> Options:
        return parse(getattr(host.vllm_config, "additional_config", None))

    def _recorder(self, options: Options) -> FileRecorder | None:
        """The trace of this process, made on first use; engines of several ranks are given the same name."""
        if options.trace is None:
            return None
        given = Path(options.trace)
        path = given.with_name(f"{given.stem}.{os.getpid()}{given.suffix}")
        if path not in self._recorders:
            self._recorders[path] = record(path)
        return self._recorders[path]


def _drop_graphs(host: Any) -> None:
    """What ``release_graphs`` does in a vLLM that has none."""
    host.graphs.clear()
    host._graphs_captured = False
    if host.breakable_cg_runner is not None:
        host.breakable_cg_runner.clear_graphs()


def _full_descriptors(host: Any) -> list[Any]:
    return [desc for descs in host._capture_descs.values() for desc in descs if desc.cg_mode.name == "FULL"]


def _keep(graphs: dict[Any, Any], keys: set[Any]) -> None:
    for key in set(graphs) - keys:
        del graphs[key]


@contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Set an attribute for the block; one that ``owner`` only inherits, or makes up when asked, is taken away again."""
    before = vars(owner).get(name, ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
