"""The hooks of an engine's worker, in the engine's own order. Duck-typed: vLLM's `Worker` has them with either of its runners.

=============================== ===========================================================================================
the engine calls                and then
=============================== ===========================================================================================
``load_model``                  the components of the loaded model are prepared
``determine_available_memory``  what their graphs will take is kept free, once, whether or not the runner profiles graphs
``compile_or_warm_up_model``    graphs are captured, where the runner captures its own (``capture_model``)
``sleep``                       calls are refused, and every graph goes, before memory does
``wake_up``                     calls are answered again when all memory is back, and graphs are captured anew
``shutdown``                    every graph goes, for good
=============================== ===========================================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from cgstate.errors import CaptureFailed, describe
from cgstate.integrations.model_local.interface import WEIGHTS
from cgstate.integrations.model_local.manager import KV_CACHE, ModelLocalCUDAGraphManager
from cgstate.lifecycle.states import FailureKind, ManagerState

log = logging.getLogger("cgstate")

MEMORY = frozenset({WEIGHTS, KV_CACHE})
"""What an engine takes away while it sleeps, as it calls it when it wakes up."""


class ModelLocalWorkerMixin:
    """Put it before the engine's worker class: ``class MyWorker(ModelLocalWorkerMixin, Worker)``.

    The worker must have ``vllm_config``, ``device`` and ``model_runner`` by the time ``load_model`` is called; the runner must have
    ``capture_model``, and the model as ``get_model()`` or ``model``.

    Attributes:
        model_local: The manager; None until the model is loaded.
    """

    model_local: ModelLocalCUDAGraphManager | None = None
    _model_local_asleep: frozenset[str] = frozenset()
    _model_local_rearm = False
    _model_local_reserved = False
    _model_local_runner: Any = None

    # What the engine's worker has, for the type checker.
    vllm_config: Any
    device: Any
    model_runner: Any

    def make_model_local_manager(self) -> ModelLocalCUDAGraphManager:
        """The manager of a worker; override it to give one other arguments."""
        return ModelLocalCUDAGraphManager(vllm_config=self.vllm_config, device=self.device)

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        """Load, then prepare the model's components.

        Raises:
            ConfigError: components or configuration are wrong.
        """
        answer = super().load_model(*args, **kwargs)  # type: ignore[misc]  # the engine's worker comes after in the order of classes
        if self.model_local is not None:
            self.model_local.close()
        manager = self.model_local = self.make_model_local_manager()
        manager.prepare(_model_of(self.model_runner))
        self._follow(self.model_runner)
        return answer

    def determine_available_memory(self, *args: Any, **kwargs: Any) -> Any:
        """What the engine says, less what the components' graphs will take, unless the engine has counted that already.

        Where the user has fixed the size of the KV cache, it stays as it is.
        """
        self._model_local_reserved = False
        available = super().determine_available_memory(*args, **kwargs)  # type: ignore[misc]
        fixed = getattr(getattr(self.vllm_config, "cache_config", None), "kv_cache_memory_bytes", None)
        if self._model_local_reserved or fixed:
            return available
        return available - self._reserve()

    def sleep(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse calls, give every graph back, then let the engine take memory away.

        If the engine fails to, calls stay refused until `wake_up`.

        Raises:
            LeaseOutstanding: this thread is inside a call.
        """
        manager = self.model_local
        if manager is not None:
            if not self._model_local_asleep:
                manager.graphs.suspend(*MEMORY)
                self._model_local_asleep = MEMORY
                self._model_local_rearm = manager.graphs.state is ManagerState.SERVING
            manager.clear()
        return super().sleep(*args, **kwargs)  # type: ignore[misc]

    def wake_up(self, tags: Iterable[str] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Let the engine bring memory back; once all of it is there, capture again what was captured before.

        If that fails, components answer eagerly, and the failure is logged.

        Raises:
            CaptureFailed: the device was lost.
        """
        answer = super().wake_up(tags, *args, **kwargs)  # type: ignore[misc]
        manager = self.model_local
        back = self._model_local_asleep if tags is None else self._model_local_asleep & frozenset(tags)
        if manager is None or not back:
            return answer
        manager.graphs.resume(*sorted(back))
        self._model_local_asleep -= back
        if self._model_local_rearm and not self._model_local_asleep:
            try:
                manager.capture_and_bind(progress=False)
            except CaptureFailed as failure:
                if failure.kind == FailureKind.DEVICE:
                    raise
                log.exception("model-local graphs: capturing after wake_up failed; components answer eagerly")
        return answer

    def shutdown(self, *args: Any, **kwargs: Any) -> Any:
        """Let every graph go, then shut the engine down, whatever the first has raised."""
        try:
            if self.model_local is not None:
                _close(self.model_local)
        finally:
            answer = super().shutdown(*args, **kwargs)  # type: ignore[misc]
        return answer

    def model_local_metrics(self) -> dict[str, dict[str, object]]:
        """Counts by component, for ``collective_rpc``; empty where the engine's graph metrics are off."""
        return {} if self.model_local is None else self.model_local.metrics()

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _reserve(self) -> int:
        """Bytes to keep free for graphs."""
        self._model_local_reserved = True
        return 0 if self.model_local is None else self.model_local.profile_memory()

    def _capture(self) -> int:
        """Bytes that graphs hold."""
        return 0 if self.model_local is None else self.model_local.capture_and_bind()

    def _follow(self, runner: Any) -> None:
        """Profile and capture right after the runner does: before the engine seeds generators and watches for late compiling."""
        if self._model_local_runner is runner:
            return  # the model was loaded anew
        self._model_local_runner = runner
        runner.capture_model = _then(runner.capture_model, self._capture)
        if profile := getattr(runner, "profile_cudagraph_memory", None):
            runner.profile_cudagraph_memory = _then(profile, self._reserve)


def _then(runners: Callable[..., int], ours: Callable[[], int]) -> Callable[..., int]:
    """The runner's bytes and ours."""

    def both(*args: Any, **kwargs: Any) -> int:
        held = runners(*args, **kwargs)
        if kwargs.get("profile_only"):
            return held  # a runner that profiles by capturing, and drops what it captured
        return held + ours()

    return both


def _model_of(runner: Any) -> object:
    """The model itself; a runner that has no door to it may have put something around it."""
    if callable(get := getattr(runner, "get_model", None)):
        return get()
    model = runner.model
    while callable(unwrap := getattr(type(model), "unwrap", None)):
        model = unwrap(model)
    return model


def _close(manager: ModelLocalCUDAGraphManager) -> None:
    """Close, twice: the second call goes on with what the first could not give back, and is nothing where that is nothing."""
    for _ in range(2):
        try:
            manager.close()
        except Exception as error:
            log.warning("model-local graphs: closing failed; going on: %s", describe(error))
