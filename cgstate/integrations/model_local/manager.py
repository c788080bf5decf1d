"""The runner's manager of a model's components: vLLM-Omni's proposed surface, on top of `cgstate.GraphManager`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Self

from cgstate.backends.base import Backend
from cgstate.backends.choose import choose
from cgstate.errors import ConfigError, IllegalTransition
from cgstate.integrations.model_local import config
from cgstate.integrations.model_local.adapting import adapt
from cgstate.integrations.model_local.interface import (
    WEIGHTS,
    Descriptor,
    ModelLocalCUDAGraphComponent,
    ModelLocalGraphHandle,
    supports_model_local_cudagraph,
)
from cgstate.integrations.model_local.reserve import LazyReserve, lazy_reserve
from cgstate.lifecycle.states import ManagerState
from cgstate.lifecycle.steps import Observer
from cgstate.runtime import config as library
from cgstate.runtime.config import ComponentConfig
from cgstate.runtime.domain import Isolation
from cgstate.runtime.explicit import CaptureReport
from cgstate.runtime.manager import GraphManager
from cgstate.runtime.memory import MemoryEstimate
from cgstate.runtime.preparing import AnyComponent, PrepareReport
from cgstate.runtime.stats import ComponentStats
from cgstate.runtime.vote import RankVote
from cgstate.runtime.witness import Witness

log = logging.getLogger("cgstate")

KV_CACHE = "kv_cache"
SUMMARY_EVERY = 100
"""Calls of a component that a graph answered, between two lines of its counts, while the engine's graph metrics are on."""
DETAIL = 100
"""Missed keys of a component that are counted one by one."""
BACKENDS = {"cuda": "cuda", "cpu": "sim"}
"""The backend for a type of device: without a GPU, models run on the simulator."""


class ModelLocalCUDAGraphManager:
    """Owns the graphs of one model's components, for a runner.

    The order is the engine's: `prepare` once the model is loaded, `profile_memory` before the KV cache is sized, `capture_and_bind`
    at the end of warm-up, `clear` whenever the graphs have to go, `close` at shutdown. After `clear` it can be prepared again, with
    the same model or another one, or simply capture again.

    Args:
        vllm_config: The engine's configuration, or anything with the same attributes. Read are ``model_config`` with
            ``model_local_cudagraph`` and ``enforce_eager``, ``additional_config``, ``compilation_config.cudagraph_num_of_warmups``
            and ``observability_config.cudagraph_metrics``; those that are missing say nothing.
        device: The runner's; handed to the routines, which make static buffers on it. On ``cuda`` graphs are the GPU's, on ``cpu``
            the simulator's.
        backend: Another backend than the device's.
        isolation: How far graphs are kept apart where the configuration says nothing: with ``per_component``, each component has
            one pool and one capture stream, for startup and lazy captures alike, and they can be evicted apart.
        pool: The engine's own graph pool, for components whose isolation is ``foreign``.
        vote: Asked before collective components capture or evict; see `cgstate.RankVote`.
        check: Check every invariant after each operation; for tests, slow.
        observer: Told of every transition, such as a recorder of `cgstate.trace`.

    Raises:
        ConfigError: the configuration is given twice, or the device is unknown or not here.
    """

    def __init__(
        self,
        *,
        vllm_config: object,
        device: object,
        backend: str | Backend | None = None,
        isolation: Isolation | str = Isolation.per_component,
        pool: object = None,
        vote: RankVote | None = None,
        check: bool = False,
        observer: Observer | Witness | None = None,
    ) -> None:
        self.device = device
        self.metrics_enabled = _asked(vllm_config, "observability_config", "cudagraph_metrics")
        self.enforce_eager = _asked(vllm_config, "model_config", "enforce_eager")
        self._path, self._raw = config.find(vllm_config)
        self._backend = choose(backend if backend is not None else _backend_for(device))
        self._isolation = isolation
        self._pool = pool
        self._vote = vote
        self._check = check
        self._observer = observer
        self._warmups = max(3, int(getattr(getattr(vllm_config, "compilation_config", None), "cudagraph_num_of_warmups", 0) or 0))
        self._components: tuple[ModelLocalCUDAGraphComponent, ...] = ()
        self._active: tuple[AnyComponent, ...] = ()
        self._options: Mapping[str, ComponentConfig] = {}
        self._estimate: MemoryEstimate | None = None
        self._reserve: LazyReserve | None = None
        self._report: CaptureReport | None = None
        self._graphs = self._fresh()  # which refuses what is no isolation
        self._default = Isolation(isolation)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def graphs(self) -> GraphManager:
        """The manager behind this one, for what a runner asks rarely: evicting, invalidating, memory, statistics."""
        return self._graphs

    @property
    def components(self) -> tuple[ModelLocalCUDAGraphComponent, ...]:
        """All components of the prepared model."""
        return self._components

    @property
    def estimate(self) -> MemoryEstimate | None:
        """What `profile_memory` found; None before."""
        return self._estimate

    @property
    def reserve(self) -> LazyReserve | None:
        """What `profile_memory` keeps free for lazy graphs; None before."""
        return self._reserve

    @property
    def report(self) -> CaptureReport | None:
        """What `capture_and_bind` did last; None before."""
        return self._report

    # -- the lifecycle ------------------------------------------------------------------------------------------------

    def prepare(self, model: object) -> PrepareReport:
        """Take a model's components, before any device work. Those that the configuration does not name stay eager.

        A model that was prepared before is let go, unless its graphs are bound.

        Raises:
            ConfigError: components or configuration are wrong. Components stay eager.
            IllegalTransition: graphs are bound: `clear` first. Or closed.
        """
        if self._graphs.state not in (ManagerState.NEW, ManagerState.PREPARED):
            self._graphs.prepare([])  # which refuses, and says why
        components = _declared(model)
        for component in components:
            if component.handle is not None and component.handle.attached and component not in self._components:
                raise ConfigError(f"{component.component_id} belongs to another manager; close that one first")
        configured = config.parse(self._path, self._raw, components, self._default)
        if self.enforce_eager and configured:
            log.warning("%s names %s, and enforce_eager is set: no graphs are captured", self._path, sorted(configured))
            configured = {}
        adapted = self._adapt(components, configured, model)
        if self._graphs.state is ManagerState.PREPARED:
            self._let_go()
            self._graphs = self._fresh()
        active = {name: configured[name] for name in adapted}
        own = {component.component_id: component.supported_config_keys for component in components}
        try:
            options = library.parse(active, own, self._default)
            report = self._graphs.prepare(list(adapted.values()), active)
        except ConfigError as error:
            raise ConfigError(f"{self._path}: {error}") from error
        self._components = components
        self._active = tuple(adapted.values())
        self._options = options
        for component in components:
            if component.component_id in adapted:
                component.bind_handle(ModelLocalGraphHandle(adapted[component.component_id]))
        eager = tuple(component.component_id for component in components if component.component_id not in adapted)
        log.info("model-local graphs: %s will be captured, %s stay eager", list(report.active), list(eager))
        return PrepareReport(report.active, eager, report.uncovered)

    def profile_memory(self) -> int:
        """Bytes to keep free for graphs: the estimate's upper bound, the driver's share, and the reserve for lazy graphs.

        Measured by throwaway captures, of which nothing is left. `estimate` and `reserve` have the parts.

        Raises:
            IllegalTransition: not prepared, or bound already.
            CaptureFailed: the device was lost, or of none of the graphs could the static inputs be made.
        """
        with _inference():
            estimate = self._estimate = self._graphs.profile_memory()
            reserve = self._reserve = lazy_reserve(self._graphs, self._active, self._options, estimate.samples)
        if reserve.untold:
            log.warning("model-local graphs: nothing can be reserved for lazy graphs of %s", list(reserve.untold))
        if not estimate.trusted:
            log.warning("model-local graphs: the memory estimate may be wrong: %s", "; ".join(estimate.distrust))
        log.info(
            "model-local graphs: %d bytes at most for %d graphs, %d for the driver, %d for lazy graphs",
            estimate.upper,
            estimate.graphs,
            estimate.driver,
            reserve.total,
        )
        return estimate.upper + estimate.driver + reserve.total

    def capture_and_bind(self, *, progress: bool | None = None) -> int:
        """Capture every declared graph that is not bound, then bind all of them, or none.

        Returns:
            Bytes that all graphs hold now.

        Raises:
            CaptureFailed: one failed; every component is as before, and this may be called again.
            IllegalTransition: not prepared, or something else refuses; nothing was changed.
        """
        if self._graphs.state is ManagerState.NEW:
            raise IllegalTransition("manager", "model-local graphs", ManagerState.NEW, "capture_and_bind", "a prepared model")
        self._graphs.forget_failures()  # asked for by name: what was rejected before may be tried again
        with _inference():
            report = self._report = self._graphs.capture_and_bind(progress=progress)
        log.info("model-local graphs: %s bound in %.2f s, %d bytes", dict(report.bound), report.seconds, report.memory.total)
        if report.comparison is not None:
            log.info("model-local graphs: %s", report.comparison)
        return report.memory.total

    def clear(self, timeout: float | None = None) -> None:
        """Retire every graph and give the bytes back; components answer eagerly, and `capture_and_bind` may be called again.

        Waits for replays in flight. Nothing happens where no graph is bound.

        Args:
            timeout: Seconds to wait for calls of other threads; None waits for ever.

        Raises:
            LeaseOutstanding: this thread is inside a call, or others outlasted ``timeout``. Nothing was changed.
        """
        if self._graphs.state is ManagerState.SERVING:
            self._graphs.release(timeout)
            self._log_metrics()

    def close(self, timeout: float | None = None) -> None:
        """`clear` for good. A graph whose destruction fails is logged, and the others still go. Idempotent.

        Raises:
            LeaseOutstanding: as `clear`; graphs serve on.
        """
        self._let_go(timeout)

    # -- looking ------------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, dict[str, object]]:
        """Counts by component, in plain values; empty where the engine's graph metrics are off."""
        if not self.metrics_enabled:
            return {}
        return {name: _plain(stats) for name, stats in self._graphs.stats().components.items()}

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _fresh(self) -> GraphManager:
        return GraphManager(
            self._backend,
            isolation=self._isolation,
            pool=self._pool,
            vote=self._vote,
            check=self._check,
            observer=self._observer,
            dependencies=(WEIGHTS, KV_CACHE),
            warmup_rounds=self._warmups,
            stats_detail=DETAIL,
            summary_every=SUMMARY_EVERY if self.metrics_enabled else 0,
        )

    def _let_go(self, timeout: float | None = None) -> None:
        """Close the graphs behind, and make the components eager, even if giving bytes back fails."""
        try:
            self._graphs.close(timeout)
        finally:
            if self._graphs.state is ManagerState.CLOSED:
                for component in self._components:
                    component.restore_eager()
                self._components, self._active, self._options = (), (), {}

    def _adapt(
        self,
        components: Sequence[ModelLocalCUDAGraphComponent],
        configured: Mapping[str, object],
        model: object,
    ) -> dict[str, AnyComponent]:
        """The library's components for those that are configured and have something to capture."""
        adapted: dict[str, AnyComponent] = {}
        for component in components:
            name = component.component_id
            if name not in configured:
                continue
            valid = [descriptor for descriptor in component.capture_descriptors if component.validate_descriptor(descriptor)]
            self._say_what_is_left_out(component, valid)
            if valid:
                adapted[name] = adapt(component, valid, model, self.device)
        return adapted

    def _say_what_is_left_out(self, component: ModelLocalCUDAGraphComponent, valid: Sequence[Descriptor]) -> None:
        rejected = [descriptor.variant for descriptor in component.descriptors if descriptor not in valid]
        if rejected:
            log.warning("%s says that %r cannot be captured: such calls stay eager", component.component_id, rejected)
        if not valid:
            log.warning("%s has no descriptor that can be captured, and stays eager", component.component_id)

    def _log_metrics(self) -> None:
        for name, stats in self._graphs.stats().components.items() if self.metrics_enabled else ():
            log.info("model-local graphs: %s: %s", name, stats.summary())


def _declared(model: object) -> tuple[ModelLocalCUDAGraphComponent, ...]:
    """A model's components; none where it declares none.

    Raises:
        ConfigError: what it declares are no components, or two have one id.
    """
    if not supports_model_local_cudagraph(model):
        return ()
    kind = type(model).__name__
    declared = model.get_model_local_cudagraph_components()  # type: ignore[attr-defined]  # as asked just before
    if not isinstance(declared, Sequence):
        raise ConfigError(f"get_model_local_cudagraph_components() of {kind} must return a sequence, not {declared!r}")
    names: set[str] = set()
    for component in declared:
        if not isinstance(component, ModelLocalCUDAGraphComponent):
            raise ConfigError(f"get_model_local_cudagraph_components() of {kind} must return components, not {component!r}")
        if component.component_id in names:
            raise ConfigError(f"get_model_local_cudagraph_components() of {kind} returns {component.component_id!r} twice")
        names.add(component.component_id)
    return tuple(declared)


def _backend_for(device: object) -> str:
    kind = str(device).partition(":")[0]
    if kind not in BACKENDS:
        raise ConfigError(f"device must be one of {sorted(BACKENDS)}, not {device!r}")
    return BACKENDS[kind]


def _asked(vllm_config: object, part: str, flag: str) -> bool:
    """Whether a flag of the engine's configuration is set; not, where there is no such flag."""
    return bool(getattr(getattr(vllm_config, part, None), flag, False))


def _inference() -> AbstractContextManager[object]:
    """What serving runs in, where torch is in use."""
    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else torch.inference_mode()


def _plain(stats: ComponentStats) -> dict[str, object]:
    return {
        "calls": stats.calls,
        "hits": stats.hits,
        "captures": stats.captures,
        "evictions": stats.evictions,
        "fallbacks": {str(reason): count for reason, count in stats.fallbacks.items()},
        "failures": {str(kind): count for kind, count in stats.failures.items()},
    }
