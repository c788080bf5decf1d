"""What a model declares: components, each with a routine that adapts calls to static buffers. No lifecycle is in here.

The names and signatures are those that vLLM-Omni proposes for graphs inside of models, so that a model written for the proposal
runs by importing them from here. What a model may rely on:

- A component is a call site for life. Nobody but the manager decides whether it is answered eagerly or by a graph.
- A routine owns shapes and static buffers, never graphs. ``capture_context`` surrounds each forward of warm-up and capture.
- Descriptors and runtime keys are values: equal ones are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from cgstate.errors import ConfigError, describe
from cgstate.routine import Resolution as ModelLocalRuntimeResolution
from cgstate.runtime.component import CaptureMode
from cgstate.runtime.dependency import checked_names
from cgstate.runtime.leased import LeasedOutput
from cgstate.runtime.record import check_descriptor

if TYPE_CHECKING:
    from cgstate.runtime.preparing import AnyComponent

V = TypeVar("V", bound=Hashable)

__all__ = [
    "BaseModelLocalCUDAGraphRoutine",
    "ModelLocalCUDAGraphComponent",
    "ModelLocalCUDAGraphDescriptor",
    "ModelLocalCaptureMode",
    "ModelLocalGraphHandle",
    "ModelLocalRuntimeKey",
    "ModelLocalRuntimeResolution",
    "SupportsModelLocalCUDAGraph",
    "supports_model_local_cudagraph",
]

ModelLocalCaptureMode = CaptureMode
"""When a component's graphs are captured; the model decides it, no configuration does."""

WEIGHTS = "weights"
"""The dependency that every component has unless it says otherwise."""


@dataclass(frozen=True)  # with slots, calling a subscripted class would fail
class ModelLocalCUDAGraphDescriptor(Generic[V]):
    """Names one graph of a component.

    Attributes:
        variant: What the graph is for, such as a batch size; any hashable value.
    """

    variant: V


@dataclass(frozen=True)  # with slots, calling a subscripted class would fail
class ModelLocalRuntimeKey(Generic[V]):
    """What a call is, before a graph is chosen for it.

    Attributes:
        variant: Everything about the call that a graph would bake in; any hashable value.
    """

    variant: V


Descriptor: TypeAlias = ModelLocalCUDAGraphDescriptor[Any]
RuntimeKey: TypeAlias = ModelLocalRuntimeKey[Any]


class BaseModelLocalCUDAGraphRoutine(ABC):
    """Adapts the calls of one component to the static buffers of its graphs.

    Buffers may be anything; the tensors in tuples, lists, mappings and dataclasses are those whose bytes are counted.
    """

    @abstractmethod
    def eager_call(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own answer, without a graph."""

    def validate_runtime_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a call that neither a graph nor eager could serve, by raising. Host work only."""
        return

    @abstractmethod
    def resolve_runtime(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], available: frozenset[Descriptor]
    ) -> ModelLocalRuntimeResolution[Descriptor]:
        """Say what a call is, and which graph serves it. Host work only.

        Args:
            args: The call's.
            kwargs: The call's.
            available: Descriptors that have a graph now; a snapshot.

        Returns:
            The runtime key, and one of ``available``, or None for a miss.
        """

    def make_lazy_descriptor(self, runtime_key: RuntimeKey) -> Descriptor | None:
        """The descriptor to capture for a missed key, or None to stay eager; unless overridden, one of the key's own variant.

        Every variant then wants a graph of its own: ``max_extra_graphs`` bounds how many there are.
        """
        return ModelLocalCUDAGraphDescriptor(runtime_key.variant)

    @abstractmethod
    def allocate_buffers(self, descriptor: Descriptor, device: Any) -> Any:
        """Make the static buffers of one graph on ``device``, which is what the runner gave the manager."""

    def prepare_for_capture(self, buffers: Any) -> None:
        """Put static state in place, before each forward of warm-up and capture; outside of the graph."""
        return

    @contextmanager
    def capture_context(self, descriptor: Descriptor, buffers: Any) -> Generator[None]:
        """What each forward of warm-up and capture runs inside: `prepare_for_capture`, and `after_capture` however it ends."""
        self.prepare_for_capture(buffers)
        try:
            yield
        finally:
            self.after_capture(buffers)

    @abstractmethod
    def forward_for_capture(self, buffers: Any) -> Any:
        """The work to record, reading only ``buffers`` and the model. Its return value is the graph's static output."""

    def after_capture(self, buffers: Any) -> None:
        """Undo `prepare_for_capture`."""
        return

    @abstractmethod
    def copy_runtime_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], buffers: Any) -> None:
        """Write a call's inputs into the static buffers, on the current stream."""

    @abstractmethod
    def output_after_replay(self, args: tuple[Any, ...], kwargs: dict[str, Any], buffers: Any, captured_output: Any) -> Any:
        """The call's answer as views of the static output."""


class ModelLocalGraphHandle:
    """What stands behind a managed component: it hides graphs, buffers and policy, and tells only which descriptors have a graph.

    Made by the manager, which ends it.
    """

    __slots__ = ("_managed",)

    def __init__(self, managed: AnyComponent) -> None:
        self._managed = managed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._managed.component_id!r} {self.state}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What eager would return, by a graph where one serves."""
        return self._managed(*args, **kwargs)

    @property
    def call(self) -> Callable[..., Any]:
        """The same as calling the handle, with one frame less."""
        return self._managed

    @property
    def attached(self) -> bool:
        """Whether the manager that made it still answers."""
        return self._managed.attached

    @property
    def state(self) -> str:
        """The component's lifecycle state."""
        return self._managed.state

    @property
    def is_bound(self) -> bool:
        """Whether calls may be answered by graphs now."""
        return self._managed.is_bound

    @property
    def available_descriptors(self) -> frozenset[Descriptor]:
        """Descriptors that have a graph now; a snapshot."""
        return cast("frozenset[Descriptor]", self._managed.available_descriptors)


class ModelLocalCUDAGraphComponent:
    """A model's call site: eager until a manager prepares it, and eager again when that manager is closed.

    Args:
        component_id: Stable, unique within a model; the name in the deploy file.
        routine: What it runs.
        descriptors: One graph each; a component without any stays eager.
        clone_output: Whether answers are copies. If not, they are `cgstate.LeasedOutput`s, which expire instead of changing.
        supported_config_keys: Keys of its own that the deploy file may hold; the model reads them itself.
        capture_order_key: Orders descriptors by size, largest captured first; their variants compare themselves by default.
        capture_mode: When graphs are captured.
        dependencies: Names of the memory that its graphs bake in and that the engine may take away, e.g. while it sleeps:
            ``weights``, ``kv_cache``.
        collective: It runs collectives, so that all ranks have to agree on captures and evictions.

    Raises:
        ConfigError: any of these is wrong.
    """

    def __init__(
        self,
        component_id: str,
        routine: BaseModelLocalCUDAGraphRoutine,
        descriptors: Sequence[Descriptor],
        clone_output: bool = True,
        *,
        supported_config_keys: Iterable[str] = frozenset(),
        capture_order_key: Callable[[Descriptor], Any] | None = None,
        capture_mode: CaptureMode | str = CaptureMode.PRECAPTURE,
        dependencies: Iterable[str] = (WEIGHTS,),
        collective: bool = False,
    ) -> None:
        if not isinstance(component_id, str) or not component_id:
            raise ConfigError(f"a component id must be a non-empty string, not {component_id!r}")
        if not isinstance(routine, BaseModelLocalCUDAGraphRoutine):
            raise ConfigError(
                f"the routine of {component_id} must derive from BaseModelLocalCUDAGraphRoutine, not be a {type(routine).__name__}"
            )
        for flag, value in {"clone_output": clone_output, "collective": collective}.items():
            if not isinstance(value, bool):
                raise ConfigError(f"{flag} of {component_id} must be True or False, not {value!r}")
        if capture_order_key is not None and not callable(capture_order_key):
            raise ConfigError(f"capture_order_key of {component_id} must be a function, not {capture_order_key!r}")
        self.component_id = component_id
        self.routine = routine
        self.descriptors = _checked_descriptors(component_id, descriptors)
        self.clone_output = clone_output
        self.supported_config_keys = frozenset(checked_names(f"supported_config_keys of {component_id}", supported_config_keys))
        self.capture_mode = _checked_mode(component_id, capture_mode)
        self.dependencies = checked_names(f"dependencies of {component_id}", dependencies)
        self.collective = collective
        self.capture_order_key = capture_order_key
        self.capture_descriptors = self._largest_first()
        self.handle: ModelLocalGraphHandle | None = None
        self._delegate: Callable[..., Any] = routine.eager_call if clone_output else self._eager_lease

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.component_id!r} {'EAGER' if self.handle is None else self.handle.state}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What eager would return, by a graph where one serves."""
        return self._delegate(*args, **kwargs)

    def validate_descriptor(self, descriptor: Descriptor) -> bool:
        """Whether a descriptor can be captured at all; cheap and stable. Declared ones that cannot are left out."""
        return True

    @property
    def is_graph_bound(self) -> bool:
        """Whether calls may be answered by graphs now."""
        return self.handle is not None and self.handle.is_bound

    @property
    def available_descriptors(self) -> frozenset[Descriptor]:
        """Descriptors that have a graph now; a snapshot."""
        return frozenset() if self.handle is None else self.handle.available_descriptors

    def bind_handle(self, handle: ModelLocalGraphHandle) -> None:
        """Let a manager answer from now on. For the manager.

        Raises:
            ConfigError: another manager does.
        """
        if self.handle is not None and self.handle.attached:
            raise ConfigError(f"{self.component_id} belongs to another manager; close that one first")
        self.handle = handle
        self._delegate = handle.call

    def restore_eager(self) -> None:
        """Be eager again. For the manager."""
        self.handle = None
        self._delegate = self.routine.eager_call if self.clone_output else self._eager_lease

    def _eager_lease(self, *args: Any, **kwargs: Any) -> LeasedOutput[object]:
        return LeasedOutput.own(self.routine.eager_call(*args, **kwargs))

    def order(self, descriptor: Descriptor) -> Any:
        """What descriptors are compared by."""
        return descriptor.variant if self.capture_order_key is None else self.capture_order_key(descriptor)

    def _largest_first(self) -> tuple[Descriptor, ...]:
        try:
            return tuple(sorted(self.descriptors, key=self.order, reverse=True))
        except TypeError:
            raise ConfigError(f"descriptors of {self.component_id} cannot be ordered; give it a capture_order_key") from None
        except Exception as error:
            raise ConfigError(f"capture_order_key of {self.component_id} raised {describe(error)}") from error


@runtime_checkable
class SupportsModelLocalCUDAGraph(Protocol):
    """A model that declares components."""

    supports_model_local_cudagraph: bool

    def get_model_local_cudagraph_components(self) -> Sequence[ModelLocalCUDAGraphComponent]:
        """All of them, active or not."""
        ...


def supports_model_local_cudagraph(model: object) -> bool:
    """Whether a model declares components: it says so, and has the method."""
    says = getattr(model, "supports_model_local_cudagraph", False) is True
    return says and callable(getattr(model, "get_model_local_cudagraph_components", None))


def _checked_mode(component_id: str, mode: object) -> CaptureMode:
    try:
        return CaptureMode(mode)  # type: ignore[arg-type]  # an enum looks any value up
    except ValueError:
        allowed = [each.value for each in CaptureMode]
        raise ConfigError(f"capture_mode of {component_id} must be one of {allowed}, not {mode!r}") from None


def _checked_descriptors(component_id: str, descriptors: object) -> tuple[Descriptor, ...]:
    if isinstance(descriptors, str) or not isinstance(descriptors, Iterable):
        raise ConfigError(f"descriptors of {component_id} must be a sequence, not {descriptors!r}")
    listed = tuple(descriptors)
    for descriptor in listed:
        if not isinstance(descriptor, ModelLocalCUDAGraphDescriptor):
            raise ConfigError(f"descriptors of {component_id} must be ModelLocalCUDAGraphDescriptors, not {descriptor!r}")
        check_descriptor(component_id, descriptor)
    if len(set(listed)) != len(listed):
        raise ConfigError(f"descriptors of {component_id} are not unique: {list(listed)!r}")
    return listed
