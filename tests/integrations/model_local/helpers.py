"""A small model with two components on a simulated device of its own, and managers that check their invariants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from cgstate.backends.sim import SimBackend, SimDevice, SimTensor, kernels
from cgstate.integrations.model_local import (
    BaseModelLocalCUDAGraphRoutine,
    ModelLocalCaptureMode,
    ModelLocalCUDAGraphComponent,
    ModelLocalCUDAGraphDescriptor,
    ModelLocalCUDAGraphManager,
    ModelLocalRuntimeKey,
    ModelLocalRuntimeResolution,
)

WIDTH = 4
Size = ModelLocalCUDAGraphDescriptor[int]


def sizes(*variants: int) -> list[Size]:
    return [ModelLocalCUDAGraphDescriptor(variant) for variant in variants]


@dataclass(slots=True)
class Static:
    value: SimTensor


class Routine(BaseModelLocalCUDAGraphRoutine):
    """A pure function of one tensor, padded along its first dimension. Notes what is asked of it.

    Attributes:
        exact: Whether only a graph of the very size serves a call.
    """

    def __init__(self, dev: SimDevice) -> None:
        self.dev = dev
        self.weight = dev.rand(WIDTH, WIDTH)
        self.exact = False
        self.eager_calls = 0
        self.captured: list[int] = []
        self.asked: list[object] = []

    def net(self, x: SimTensor) -> SimTensor:
        hidden = kernels.tanh(kernels.matmul(x, self.weight))
        return kernels.add(kernels.matmul(hidden, self.weight), kernels.scale(hidden, 0.5))

    def eager_call(self, value: SimTensor) -> SimTensor:
        self.eager_calls += 1
        return self.net(value)

    def resolve_runtime(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], available: frozenset[Size]
    ) -> ModelLocalRuntimeResolution[Size]:
        size = args[0].shape[0]
        fits = [each for each in available if each.variant == size or (each.variant > size and not self.exact)]
        return ModelLocalRuntimeResolution(ModelLocalRuntimeKey(size), min(fits, key=lambda each: each.variant, default=None))

    def allocate_buffers(self, descriptor: Size, device: Any) -> Static:
        self.asked.append(device)
        return Static(self.dev.zeros(descriptor.variant, WIDTH))

    def forward_for_capture(self, buffers: Static) -> SimTensor:
        self.captured.append(buffers.value.shape[0])
        return self.net(buffers.value)

    def copy_runtime_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], buffers: Static) -> None:
        size = args[0].shape[0]
        buffers.value.zero_()
        buffers.value.narrow(0, 0, size).copy_(args[0])

    def output_after_replay(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], buffers: Static, captured_output: Any
    ) -> SimTensor:
        answer: SimTensor = captured_output.narrow(0, 0, args[0].shape[0])
        return answer


class Model:
    """A model with two components, ``first`` and ``second``, and the device that it is on."""

    supports_model_local_cudagraph = True

    def __init__(self, **keys: Any) -> None:
        self.dev = SimDevice()
        self.backend = SimBackend(self.dev)
        self.routines = {name: Routine(self.dev) for name in ("first", "second")}
        self.first = self.component("first", **{"descriptors": sizes(2, 4), **keys})
        self.second = self.component("second", descriptors=sizes(8))
        self.components: Any = (self.first, self.second)

    def component(self, name: str, *, descriptors: list[Size], routine: Routine | None = None, **keys: Any) -> Any:
        return ModelLocalCUDAGraphComponent(name, routine or self.routines[name], descriptors, **keys)

    def get_model_local_cudagraph_components(self) -> Any:
        return self.components

    def input(self, size: int, value: float = 1.0) -> SimTensor:
        return self.dev.tensor([[value + row + column / 8 for column in range(WIDTH)] for row in range(size)])

    def right(self, name: str, size: int, value: float = 1.0) -> bool:
        """Whether a component answers a call as its function does, bit for bit."""
        x = self.input(size, value)
        answer = {"first": self.first, "second": self.second}[name](x)
        return bool(answer.tolist() == self.routines[name].net(x).tolist())

    def manager(self, raw: Any = None, **keys: Any) -> ModelLocalCUDAGraphManager:
        config = {"first": {}, "second": {}} if raw is None else raw
        return ModelLocalCUDAGraphManager(
            vllm_config=engine(config), device="cpu", **{"backend": self.backend, "check": True, **keys}
        )

    def serving(self, raw: Any = None, **keys: Any) -> ModelLocalCUDAGraphManager:
        """A manager that has captured the model's components."""
        manager = self.manager(raw, **keys)
        manager.prepare(self)
        manager.capture_and_bind(progress=False)
        return manager


def lazy(**keys: Any) -> Model:
    """A model whose first component may capture lazily."""
    return Model(capture_mode=ModelLocalCaptureMode.PRECAPTURE_LAZY, **keys)


def engine(raw: Any = None, *, metrics: bool = False, eager: bool = False, additional: Any = None, warmups: int = 0) -> Any:
    """As much of an engine's configuration as is read."""
    return SimpleNamespace(
        model_config=SimpleNamespace(model_local_cudagraph=raw, enforce_eager=eager),
        additional_config={} if additional is None else additional,
        compilation_config=SimpleNamespace(cudagraph_num_of_warmups=warmups),
        observability_config=SimpleNamespace(cudagraph_metrics=metrics),
    )


def variants(component: ModelLocalCUDAGraphComponent) -> list[int]:
    """What has a graph now."""
    return sorted(descriptor.variant for descriptor in component.available_descriptors)


def counts(manager: ModelLocalCUDAGraphManager, name: str = "first") -> dict[str, int]:
    """Eager answers by reason."""
    return {str(reason): number for reason, number in manager.graphs.stats().components[name].fallbacks.items()}
