"""From a model's component to a component of the library: the routine in the library's terms."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, cast

from cgstate.errors import ConfigError
from cgstate.integrations.model_local.interface import (
    BaseModelLocalCUDAGraphRoutine,
    Descriptor,
    ModelLocalCUDAGraphComponent,
    RuntimeKey,
)
from cgstate.routine import Resolution, Routine
from cgstate.runtime.component import Component, LeasedComponent


class AdaptedRoutine(Routine[..., Any, Descriptor, Any]):
    """A model's routine as `cgstate.Routine`.

    The model's ``capture_context`` surrounds each forward, the library's all of them: so the library's is a stack that is emptied
    and filled anew before each forward, outside the graph.
    """

    def __init__(self, component: ModelLocalCUDAGraphComponent, model: object, device: object) -> None:
        self.component = component
        self.model = model
        self.device = device
        self._round = ExitStack()

    def eager_call(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own."""
        return self.component.routine.eager_call(*args, **kwargs)

    def resolve_runtime(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], available: frozenset[Descriptor]
    ) -> Resolution[Descriptor]:
        """The model's own."""
        return self.component.routine.resolve_runtime(args, kwargs, available)

    def make_lazy_descriptor(self, runtime_key: Hashable) -> Descriptor | None:
        """The model's own."""
        return self.component.routine.make_lazy_descriptor(cast(RuntimeKey, runtime_key))

    def validate_descriptor(self, descriptor: Descriptor) -> None:
        """Refuse what the component says cannot be captured."""
        if not self.component.validate_descriptor(descriptor):
            raise ConfigError(f"{self.component.component_id} says that {descriptor!r} cannot be captured")

    def allocate_buffers(self, descriptor: Descriptor) -> Any:
        """The model's own, on the runner's device."""
        return self.component.routine.allocate_buffers(descriptor, self.device)

    def capture_context(self, descriptor: Descriptor, buffers: Any) -> AbstractContextManager[object]:
        """What is left open by the last forward ends with this."""
        self._round = ExitStack()
        return self._round

    def prepare_for_capture(self, descriptor: Descriptor, buffers: Any) -> None:
        """End the model's context of the forward before, and enter that of the next one."""
        self._round.close()
        self._round.enter_context(self.component.routine.capture_context(descriptor, buffers))

    def forward_for_capture(self, descriptor: Descriptor, buffers: Any) -> Any:
        """The model's own."""
        return self.component.routine.forward_for_capture(buffers)

    def copy_runtime_inputs(self, descriptor: Descriptor, buffers: Any, *args: Any, **kwargs: Any) -> None:
        """The model's own."""
        self.component.routine.copy_runtime_inputs(args, kwargs, buffers)

    def output_after_replay(self, descriptor: Descriptor, buffers: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        """The model's own."""
        return self.component.routine.output_after_replay(args, kwargs, buffers, output)

    def parameters(self) -> Iterable[object]:
        """Those of the whole model, which the component may use."""
        parameters = getattr(self.model, "parameters", None)
        return parameters() if callable(parameters) else ()


class ValidatingRoutine(AdaptedRoutine):
    """The same for a routine that looks at its inputs first: only those pay for the look."""

    def validate_runtime_inputs(self, *args: Any, **kwargs: Any) -> None:
        """The model's own."""
        self.component.routine.validate_runtime_inputs(args, kwargs)


def adapt(
    component: ModelLocalCUDAGraphComponent, descriptors: Sequence[Descriptor], model: object, device: object
) -> Component[..., Any] | LeasedComponent[..., Any]:
    """The library's component that runs a model's component.

    Args:
        component: The model's.
        descriptors: Those of its descriptors that can be captured; at least one.
        model: What its graphs take weights from.
        device: Where its routine makes static buffers.
    """
    inherited = type(component.routine).validate_runtime_inputs is BaseModelLocalCUDAGraphRoutine.validate_runtime_inputs
    routine = (AdaptedRoutine if inherited else ValidatingRoutine)(component, model, device)
    kind = Component if component.clone_output else LeasedComponent
    return kind(
        component.component_id,
        routine,
        descriptors,
        capture_mode=component.capture_mode,
        supported_config_keys=component.supported_config_keys,
        capture_order_key=component.order,
        dependencies=component.dependencies,
        collective=component.collective,
    )
