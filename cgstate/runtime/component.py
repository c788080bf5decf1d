"""What a model declares: components, which are its call sites for life.

A component is eager until a manager prepares it, and eager again when the manager is closed or dropped. It belongs to one manager
at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from cgstate.errors import ConfigError, describe
from cgstate.lifecycle.states import ManagerState
from cgstate.routine import Routine
from cgstate.runtime import hotpath
from cgstate.runtime.calling import Caller
from cgstate.runtime.config import OPTIONS
from cgstate.runtime.dependency import checked_names
from cgstate.runtime.leased import LeasedOutput
from cgstate.runtime.record import ComponentRecord, check_descriptor

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D", bound=Hashable)


class CaptureMode(StrEnum):
    """When a component's graphs are captured."""

    PRECAPTURE = auto()
    """All declared descriptors at startup; a miss is eager."""
    PRECAPTURE_LAZY = auto()
    """The same, and a miss may capture up to ``max_extra_graphs`` more."""
    PURE_LAZY = auto()
    """None at startup; declared descriptors, and ``max_extra_graphs`` more, come by misses."""

    @property
    def allows_lazy(self) -> bool:
        """Whether a miss may capture."""
        return self is not CaptureMode.PRECAPTURE


class _Declaration(Generic[P, R]):
    """What the two kinds of components share."""

    _clone: bool

    def __init__(
        self,
        component_id: str,
        routine: Routine[P, R, D, Any],
        descriptors: Iterable[D],
        *,
        capture_mode: CaptureMode = CaptureMode.PRECAPTURE,
        supported_config_keys: Iterable[str] = (),
        capture_order_key: Callable[[D], Any] | None = None,
        dependencies: Iterable[str] = (),
        tolerance: float | None = None,
        overlaps_capture: bool = False,
        collective: bool = False,
        concurrent_leases: bool = True,
        inside: str | None = None,
    ) -> None:
        if not isinstance(component_id, str) or not component_id:
            raise ConfigError(f"a component id must be a non-empty string, not {component_id!r}")
        if inside is not None and (not isinstance(inside, str) or not inside):
            raise ConfigError(f"inside of {component_id} must be the id of a component, not {inside!r}")
        if not isinstance(routine, Routine):
            raise ConfigError(f"the routine of {component_id} must derive from cgstate.Routine, not {type(routine).__name__}")
        if not isinstance(capture_mode, CaptureMode):
            raise ConfigError(f"capture_mode of {component_id} must be a CaptureMode, not {capture_mode!r}")
        for flag, value in {
            "overlaps_capture": overlaps_capture,
            "collective": collective,
            "concurrent_leases": concurrent_leases,
        }.items():
            if not isinstance(value, bool):
                raise ConfigError(f"{flag} of {component_id} must be True or False, not {value!r}")
        if tolerance is not None and (isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not tolerance >= 0):
            raise ConfigError(f"tolerance of {component_id} must be None or a number that is not negative, not {tolerance!r}")
        if capture_order_key is not None and not callable(capture_order_key):
            raise ConfigError(f"capture_order_key of {component_id} must be a function, not {capture_order_key!r}")
        self.component_id = component_id
        self.routine = routine
        self.capture_mode = capture_mode
        self.supported_config_keys = frozenset(checked_names(f"supported_config_keys of {component_id}", supported_config_keys))
        if taken := self.supported_config_keys & OPTIONS:
            raise ConfigError(f"supported_config_keys of {component_id} may not hold {sorted(taken)}: every component has them")
        self.dependencies = checked_names(f"dependencies of {component_id}", dependencies)
        self.tolerance = tolerance
        self.overlaps_capture = overlaps_capture
        self.collective = collective
        self.concurrent_leases = concurrent_leases
        self.inside = inside
        self.capture_order_key = capture_order_key
        self.descriptors: tuple[D, ...] = _ordered(component_id, _listed(component_id, descriptors), capture_order_key)
        self.caller: Caller | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.component_id!r} {self.state}>"

    @property
    def state(self) -> str:
        """The lifecycle state; EAGER while no manager has it."""
        return self.caller.record.state.value if self.caller is not None and self.attached else "EAGER"

    @property
    def is_bound(self) -> bool:
        """Whether calls may be answered by graphs now."""
        return self.state in ("BOUND", "REPLAYING")

    @property
    def available_descriptors(self) -> frozenset[Hashable]:
        """Descriptors that are bound now; a snapshot."""
        return self.caller.record.available if self.caller is not None and self.attached else frozenset()

    def claim(self, by: object) -> bool:
        """Keep it for ``by``, which is about to prepare it; False if somebody else is, or a manager has it. For the manager.

        Managers of two devices share no lock: a dict gives the first one its place at once.
        """
        return vars(self).setdefault("_claimed", by) is by and not self.attached

    def unclaim(self, by: object) -> None:
        """Keep it no longer for ``by``, if it was. For the manager."""
        if vars(self).get("_claimed") is by:
            del vars(self)["_claimed"]

    def attach(self, record: ComponentRecord) -> None:
        """Answer by the runtime from now on. For the manager."""
        self.caller = Caller(record, self.routine, clone=self._clone)

    def detach(self) -> None:
        """Be eager again. For the manager."""
        self.caller = None

    @property
    def attached(self) -> bool:
        """Whether a manager that is not closed has the component."""
        return self.caller is not None and self.caller.record.manager.state is not ManagerState.CLOSED

    def eagerly(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """Answer without a manager."""
        answer = cast("Routine[..., R, Any, Any]", self.routine).eager_call(*args, **kwargs)
        return answer if self._clone else LeasedOutput.own(answer)


class Component(_Declaration[P, R]):
    """A named call site that answers with outputs of its own.

    Args:
        component_id: Stable, unique within a manager.
        routine: What it runs; the component has its signature.
        descriptors: One graph each.
        capture_mode: When they are captured.
        supported_config_keys: Keys of its own that the manager's configuration may hold for it.
        capture_order_key: Orders descriptors by size, largest captured first; needed where they cannot be compared.
        dependencies: Names of foreign memory that its graphs bake in, for `GraphManager.invalidate` and `GraphManager.suspend`.
        tolerance: Largest allowed difference to the unpadded eager call; None where outputs must be equal.
        overlaps_capture: Its calls may run while another thread captures: it draws no random numbers, never synchronises the
            device.
        collective: It runs collectives, so that ranks have to agree on captures and evictions; an estimate runs the same of its
            graphs on every rank.
        concurrent_leases: Whether one of its graphs may be leased twice at once.
        inside: Id of the component in whose eager breaks its graphs replay: they share its pool and capture stream, so that they
            use the blocks that its graphs have freed. Nothing of its graphs may be live across a break then.

    Raises:
        ConfigError: any of these is wrong; nothing was done.
    """

    _clone = True

    if TYPE_CHECKING:  # one frame less on the hot path, with the routine's own signature

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """What eager would return, by a graph where one serves."""
            ...

    else:
        __call__ = hotpath.call


class LeasedComponent(_Declaration[P, R]):
    """A `Component` that hands out static outputs under a lease, without a copy."""

    _clone = False

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> LeasedOutput[R]:
            """What eager would return, wrapped; read or copy it before the next replay of its pool."""
            ...

    else:
        __call__ = hotpath.call


def _listed(component_id: str, descriptors: Iterable[D]) -> list[D]:
    if isinstance(descriptors, str) or not isinstance(descriptors, Iterable):
        raise ConfigError(f"descriptors of {component_id} must be a sequence, not {descriptors!r}")
    return list(descriptors)


def _ordered(component_id: str, descriptors: Sequence[D], key: Callable[[D], Any] | None) -> tuple[D, ...]:
    """Largest first (facts P4, P6: later graphs then fit into freed blocks)."""
    if not descriptors:
        raise ConfigError(f"{component_id} declares no descriptors; without any it could only be eager")
    for descriptor in descriptors:
        check_descriptor(component_id, descriptor)
    try:
        different = len(set(descriptors))
    except Exception as error:  # of one compared with another
        raise ConfigError(f"descriptors of {component_id} cannot be compared: {describe(error)}") from error
    if different != len(descriptors):
        raise ConfigError(f"descriptors of {component_id} are not unique: {list(descriptors)!r}")
    try:
        return tuple(sorted(descriptors, key=key, reverse=True))  # type: ignore[type-var, arg-type]
    except TypeError:
        raise ConfigError(f"descriptors of {component_id} cannot be ordered; give it a capture_order_key") from None
    except Exception as error:
        raise ConfigError(f"capture_order_key of {component_id} raised {describe(error)}") from error
