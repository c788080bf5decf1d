"""Workers and runners in the shapes that vLLM gives them, without vLLM. They note what is called, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from cgstate.backends.base import Backend
from cgstate.integrations.model_local import ModelLocalCUDAGraphManager, ModelLocalWorkerMixin
from tests.integrations.model_local.helpers import engine

KV_CACHE = 1 << 24
OWN_GRAPHS = 1000
OWN_ESTIMATE = 2000


class Wrapper:
    """What the V1 runner may put around its model: attributes are passed on, the model itself is behind ``unwrap``."""

    def __init__(self, model: object) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def unwrap(self) -> object:
        return self.model


class V1Runner:
    """Keeps its model wrapped; profiles its graphs itself."""

    def __init__(self, make: Callable[[], Any], events: list[str]) -> None:
        self.make = make
        self.events = events

    def load_model(self, load_dummy_weights: bool = False) -> None:
        self.model = Wrapper(self.make())

    def get_model(self) -> Any:
        return self.model.unwrap()

    def profile_cudagraph_memory(self) -> int:
        self.events.append("profile")
        return OWN_ESTIMATE

    def capture_model(self) -> int:
        self.events.append("capture")
        return OWN_GRAPHS

    def shutdown(self) -> None:
        self.events.append("runner shutdown")


class V2Runner(V1Runner):
    """Keeps its model as it is; may capture for a profile alone."""

    def load_model(self, load_dummy_weights: bool = False, *args: Any, **kwargs: Any) -> None:
        self.model = self.make()

    def get_model(self) -> Any:
        return self.model

    def profile_cudagraph_memory(self) -> int:
        self.events.append("profile")
        self.capture_model(profile_only=True)
        return OWN_ESTIMATE

    def capture_model(self, *, profile_only: bool = False) -> int:
        self.events.append("profiling capture" if profile_only else "capture")
        return OWN_GRAPHS


class BareRunner:
    """An older or a foreign one: no door to its model, no profile of graphs."""

    def __init__(self, make: Callable[[], Any], events: list[str]) -> None:
        self.make = make
        self.events = events

    def load_model(self, load_dummy_weights: bool = False) -> None:
        self.model = Wrapper(Wrapper(self.make()))

    def capture_model(self) -> int:
        self.events.append("capture")
        return OWN_GRAPHS

    def shutdown(self) -> None:
        self.events.append("runner shutdown")


class EngineWorker:
    """Calls its runner in the order that vLLM's worker does."""

    def __init__(self, runner: Any, raw: Any, events: list[str], *, fixed: int | None = None, graphs: bool = True) -> None:
        self.vllm_config = engine(raw, metrics=True)
        self.vllm_config.cache_config = SimpleNamespace(kv_cache_memory_bytes=fixed)
        self.device = "cpu"
        self.model_runner = runner
        self.events = events
        self.graphs = graphs
        self.held = 0
        self.fail: str | None = None

    def _note(self, event: str) -> None:
        self.events.append(event)
        if self.fail == event:
            raise RuntimeError(f"{event} failed")

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        self._note("load")
        self.model_runner.load_model(load_dummy_weights=load_dummy_weights)

    def determine_available_memory(self) -> int:
        self._note("available")
        if fixed := self.vllm_config.cache_config.kv_cache_memory_bytes:
            return int(fixed)
        profile = getattr(self.model_runner, "profile_cudagraph_memory", None) if self.graphs else None
        return KV_CACHE - (profile() if profile is not None else 0)

    def compile_or_warm_up_model(self) -> float:
        self._note("warm up")
        self.held = self.model_runner.capture_model()
        self._note("seed")
        return 1.5

    def sleep(self, level: int = 1) -> None:
        self._note(f"sleep {level}")

    def wake_up(self, tags: list[str] | None = None) -> None:
        self._note(f"wake {tags}")

    def shutdown(self) -> None:
        self._note("shutdown")
        self.model_runner.shutdown()


class Worker(ModelLocalWorkerMixin, EngineWorker):
    """The same with model-local graphs, on a backend of the test's."""

    backend: Backend

    def make_model_local_manager(self) -> ModelLocalCUDAGraphManager:
        return ModelLocalCUDAGraphManager(vllm_config=self.vllm_config, device=self.device, backend=self.backend, check=True)


RUNNERS: Sequence[Callable[..., Any]] = (V1Runner, V2Runner, BareRunner)


def worker(make: Callable[[], Any], raw: Any, backend: Backend, runner: Callable[..., Any] = V1Runner, **keys: Any) -> Worker:
    """A worker whose runner loads what ``make`` makes."""
    events: list[str] = []
    made = Worker(runner(make, events), raw, events, **keys)
    made.backend = backend
    return made
