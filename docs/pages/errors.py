"""Writes docs/errors.md: every error of cgstate, what causes it and what cures it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import NamedTuple

from cgstate import errors
from cgstate.errors import CGStateError
from cgstate.trace.errors import TraceError


class Advice(NamedTuple):
    """What a reader of a traceback wants to know."""

    cause: str
    cure: str


ADVICE: dict[type[CGStateError], Advice] = {
    errors.IllegalTransition: Advice(
        "A call asked a state machine for an event that its table does not allow now, e.g. `profile_memory()` of a manager that "
        "serves. The message names machine, entity, state, event, and the condition that said no.",
        "Make the named condition true, then call again. Nothing was changed, so nothing has to be repaired. Where `capture_begin` "
        "is refused for want of *not blocked by an earlier failure*: mend what made the entry's capture fail, then "
        "`manager.forget_failures()`.",
    ),
    errors.NotResident: Advice(
        "A component or an entry was called while memory that it depends on is suspended (`suspend`, or inside `mutating`).",
        "`manager.resume(...)` the dependencies that the message lists. Eager calls need the memory as well, and are refused.",
    ),
    errors.StaleBinding: Advice(
        "An entry was replayed under a lease after memory whose address its graph has baked in was replaced; or a call brought "
        "another tensor where the routine has a pinned input; or a pinned tensor is another view of its memory: of other shape, "
        "strides or dtype, or conjugated; or the memory moved during the capture.",
        "Capture anew: `manager.capture_and_bind()`. For a pinned input, pass the tensor that was captured, or do not pin it.",
    ),
    errors.CaptureActive: Advice(
        "A capture is open on this stream or this device, and the call would break it: a replay on a capturing stream, or an "
        "operation of the manager inside a capture body or a component call. Or a profile is open in this thread, and a capture "
        "for another manager of the device would be real and missing in the estimate; the message names it.",
        "Move the call out of the body, or wait until the capture has ended; capture for other managers after the profile.",
    ),
    errors.LiveAcrossBreak: Advice(
        "Graphs that share a pool would replay inside an eager break while a tensor of the outer graph, made in that pool, is live "
        "across the break: the inner graph may overwrite it.",
        "Keep what crosses the break in static buffers outside the pool, or leave `inside=` out so that the pools differ.",
    ),
    errors.PoolRetired: Advice(
        "A capture asked for a memory pool that was retired. CUDA refuses to open such a pool again (fact P1).",
        "Capture into a live pool. For a pool of the host engine's: keep a graph of your own in it as long as the manager uses it.",
    ),
    errors.LeaseOutstanding: Advice(
        "`close`, `release`, `suspend` or `mutating` found leases: this thread holds one, or other threads outlasted the timeout.",
        "Release leased outputs and leave `with entry.lease()` blocks, then call again.",
    ),
    errors.ReleasePending: Advice(
        "`close` has destroyed every graph, and the driver has not let go in time of what a library has retained in them (NCCL "
        "does): a callback of somebody's may hang. Until then memory that such a callback uses must not be freed.",
        "Call `close` again, with a longer timeout.",
    ),
    errors.ManagerClosed: Advice(
        "A closed manager was asked to do something; `stats` and `memory` still answer, and components answer eagerly.",
        "Make a new manager.",
    ),
    errors.ManagerPoisoned: Advice(
        "The device context is lost, e.g. by a device-side assertion or an illegal address (fact F7).",
        "End the process. Look for the first error in the log: the one that says POISONED names the manager.",
    ),
    errors.ConfigError: Advice(
        "An argument or a configuration is wrong: an unknown component or key, a wrong type, a negative number, a descriptor that "
        "is compared by address. It is raised before any device work.",
        "The message names the value and what is allowed there. It is also a `ValueError`.",
    ),
    errors.WrongThread: Advice(
        "The manager was made with `owner_thread=True`, and another thread called it.",
        "Call from the thread that made the manager, or leave `owner_thread` out: managers are thread-safe.",
    ),
    errors.Reentered: Advice(
        "A signal handler or a finalizer called cgstate while the same thread was inside of it, where things may be half done.",
        "Let the handler set a flag, or raise, and call from the program. An interrupt that raises is safe "
        "wherever it comes; where it comes in an observer, it is raised once the operation is over.",
    ),
    errors.OutputExpired: Advice(
        "A leased output was read after another replay of its pool, or after its lease had ended, when its memory may hold "
        "something else; or after its entry was evicted under the lease.",
        "Take or `copy()` it before, or use a `Component`, which clones.",
    ),
    errors.BudgetExceeded: Advice(
        "A graph does not fit `budget_bytes`. It is the cause of a `CaptureFailed` of kind BUDGET.",
        "Raise the budget (`set_budget`), evict something, or capture less. If it alone exceeds the budget, only the former.",
    ),
    errors.TableError: Advice(
        "A transition table was edited and is wrong: a dead row, an undeclared overlap, an unreachable state, an unknown variable.",
        "Correct the table. Users of the library never see this error.",
    ),
    errors.InvariantViolation: Advice(
        "`GraphManager(check=True)` found an invariant broken. That is a defect of cgstate, or of a backend of your own.",
        "Record a trace of the run and report it with the message, which names invariant and witness.",
    ),
    errors.CaptureFailed: Advice(
        "A capture failed; its cause is the `__cause__`. `kind` says which: REJECTED (cannot be captured), USER "
        "(the routine raised), OOM, FOREIGN (another thread broke it), BUDGET, DEVICE (context lost).",
        "USER: mend the routine. OOM and BUDGET: make room. FOREIGN: try again. REJECTED: change the routine, then "
        "`forget_failures()`. DEVICE: end the process. Whatever the capture had touched was put back already; `cleanup` lists what "
        "could not be.",
    ),
    TraceError: Advice(
        "A trace cannot be read, is cut off, was edited, or was recorded with other tables than those of this version.",
        "Close the recorder, so that the file gets its last line; read a trace with the version that recorded it.",
    ),
}
"""Of every error that a user of the library can meet."""


def page() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "<!-- Generated by python -m docs.pages; do not edit. -->"
    yield "# Errors"
    yield ""
    yield "Every error of cgstate derives from `cgstate.CGStateError`. An error of a routine, or of the device, is passed through"
    yield "unchanged. A *refusal*, `IllegalTransition` and what derives from it, has changed nothing: cure the condition that it"
    yield "names and call again."
    yield ""
    yield "| error | in one sentence |"
    yield "|---|---|"
    for error in ADVICE:
        yield f"| [`{error.__name__}`](#{error.__name__.lower()}) | {_sentence(error)} |"
    for error, advice in ADVICE.items():
        yield ""
        yield f"## {error.__name__}"
        yield ""
        yield f"{_sentence(error)} *A kind of {', '.join(_parents(error))}.*"
        yield ""
        yield f"**Cause.** {advice.cause}"
        yield ""
        yield f"**Cure.** {advice.cure}"


def _sentence(error: type[CGStateError]) -> str:
    """The first sentence of its docstring."""
    text = " ".join((inspect.getdoc(error) or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".").replace("``", "`") + "."


def _parents(error: type[CGStateError]) -> Iterator[str]:
    for parent in error.__bases__:
        name = parent.__name__
        yield f"[`{name}`](#{name.lower()})" if parent in ADVICE else f"`{name}`"
