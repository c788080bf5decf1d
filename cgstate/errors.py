"""Every error that cgstate raises, in one tree.

A *refusal* (`IllegalTransition` and below) says that a state machine did not allow an event. It names machine, entity, state,
event and guard, it changed nothing, and the same call works once the named condition is cured.

Ground floor: this module imports nothing from the package, and every room may import it.
"""

from __future__ import annotations

__all__ = [
    "BudgetExceeded",
    "CGStateError",
    "CaptureActive",
    "CaptureFailed",
    "ConfigError",
    "IllegalTransition",
    "InvariantViolation",
    "LeaseOutstanding",
    "LiveAcrossBreak",
    "ManagerClosed",
    "ManagerPoisoned",
    "NotResident",
    "OutputExpired",
    "PoolRetired",
    "Reentered",
    "ReleasePending",
    "StaleBinding",
    "TableError",
    "WrongThread",
]


def describe(error: BaseException) -> str:
    """``error`` as text, also where its own ``__str__`` raises."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception as problem:
        return f"{name} (asking for its text raises {type(problem).__name__})"


class CGStateError(Exception):
    """Base of every error raised by cgstate itself; an error of a routine or of the device is passed through unchanged."""


class IllegalTransition(CGStateError):
    """A machine refused an event. Nothing was changed.

    Attributes:
        machine: Which table refused: ``entry``, ``component``, ``pool`` or ``manager``.
        entity: The name of the refused object, e.g. ``decoder[64]``.
        state: Its state at the time.
        event: The event that was asked for.
        guard: The condition that said no; empty when the table has no row for this event in this state.
    """

    def __init__(self, machine: str, entity: str, state: str, event: str, guard: str = "") -> None:
        super().__init__(machine, entity, state, event, guard)
        self.machine = machine
        self.entity = entity
        self.state = state
        self.event = event
        self.guard = guard

    def __str__(self) -> str:
        reason = f"it needs: {self.guard}" if self.guard else f"no such event in state {self.state}"
        return f"{self.machine} {self.entity} is {self.state} and refuses {self.event}: {reason}"


class NotResident(IllegalTransition):
    """Memory that the graph depends on is suspended. Resume it, then call again.

    Attributes:
        missing: Names of the suspended dependencies, where they are known.
    """

    def __init__(self, machine: str, entity: str, state: str, event: str, guard: str = "", missing: tuple[str, ...] = ()) -> None:
        super().__init__(machine, entity, state, event, guard)
        self.missing = missing

    def __str__(self) -> str:
        return super().__str__() + (f"; suspended: {', '.join(self.missing)}" if self.missing else "")


class StaleBinding(IllegalTransition):
    """Memory whose address the graph has baked in was replaced. Capture the entry again."""


class CaptureActive(IllegalTransition):
    """A capture is open on this stream or device, and the asked-for act would break it. End the capture first."""


class LiveAcrossBreak(IllegalTransition):
    """Graphs of the same pool would replay inside an eager break across which a tensor of the outer graph is live.

    Keep what crosses the break in memory outside the pool (static buffers) and let go of the rest, or do not share the pool.
    """


class PoolRetired(IllegalTransition):
    """A retired memory pool was asked to record. Its id is never opened again (fact P1); capture into a live pool."""


class LeaseOutstanding(IllegalTransition):
    """Leases are still held. Release them, then call again."""


class ManagerClosed(IllegalTransition):
    """The manager was closed. Make a new one."""


class ManagerPoisoned(IllegalTransition):
    """The device context is lost (fact F7); nothing on it can be trusted again in this process."""


class ConfigError(CGStateError, ValueError):
    """An argument or a configuration is wrong. Raised before any device work."""


class WrongThread(CGStateError):
    """A manager made with ``owner_thread=True`` was called from another thread."""


class ReleasePending(CGStateError):
    """A closed manager's graphs are destroyed, and the driver has not let go of what they retained. Call `close` again."""


class Reentered(CGStateError):
    """cgstate was called by a signal handler or a finalizer that broke in on cgstate, in the same thread. Nothing was changed."""


class OutputExpired(CGStateError):
    """A leased output was read after its memory was handed to another replay, or after its lease ended."""


class BudgetExceeded(CGStateError):
    """A graph does not fit the manager's byte budget. The cause of a `CaptureFailed` of kind BUDGET.

    Attributes:
        entity: The entry's name, e.g. ``decoder[64]``; or what set of graphs, where an estimate said that it would not fit.
        need: Bytes that the graph took, or is known to take at least.
        have: Bytes that are held without it.
        budget: Bytes that may be held.
    """

    def __init__(self, entity: str, need: int, have: int, budget: int) -> None:
        super().__init__(entity, need, have, budget)
        self.entity = entity
        self.need = need
        self.have = have
        self.budget = budget

    def __str__(self) -> str:
        if self.need > self.budget:
            return f"{self.entity} alone needs {self.need} bytes, more than the whole budget of {self.budget}"
        return f"{self.entity} needs {self.need} bytes, and {self.have} of the budget of {self.budget} are held"


class TableError(CGStateError):
    """A transition table is wrong: a dead row, an undeclared overlap, an unreachable state, an unknown variable."""


class InvariantViolation(CGStateError):
    """``check=True`` found an invariant broken. This is a defect of cgstate; the message names the invariant and the witness."""


class CaptureFailed(CGStateError):
    """A capture failed and everything it had touched was put back. The first error is the ``__cause__``.

    Attributes:
        kind: The failure kind (a `cgstate.FailureKind`), which says when a retry makes sense.
        component: Id of the component.
        descriptor: The descriptor whose capture failed.
        cleanup: What went wrong while putting things back, as ``(step, error)``; empty in the normal case.
    """

    def __init__(
        self,
        kind: str,
        component: str,
        descriptor: object,
        cleanup: tuple[tuple[str, BaseException], ...] = (),
    ) -> None:
        super().__init__(kind, component, descriptor, cleanup)
        self.kind = kind
        self.component = component
        self.descriptor = descriptor
        self.cleanup = cleanup

    def __str__(self) -> str:
        text = f"capture of {self.component}[{self.descriptor!r}] failed ({self.kind})"
        if self.__cause__ is not None:
            text += f": {describe(self.__cause__)}"
        for step, error in self.cleanup:
            text += f"\n  while undoing, '{step}' raised {describe(error)}"
        return text
