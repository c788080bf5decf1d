"""Live mode: faults have stopped. Now every component must answer by a graph where it has one, and everything must come to rest."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from cgstate.lifecycle.invariants import unsettled_in
from cgstate.lifecycle.states import ManagerState
from cgstate.testing.stateful.errors import Violated

if TYPE_CHECKING:
    from cgstate.testing.stateful.play import Play

__all__ = ["live"]


def live(play: Play) -> None:
    """Bring a run to its end, whatever was done so far.

    Raises:
        Violated: something does not answer, does not settle, or leaves bytes behind.
    """
    from cgstate.testing.stateful.steps import (
        Call,
        CaptureAll,
        Close,
        ForgetFailures,
        GiveBack,
        GiveUp,
        Prepare,
        Resume,
        SetBudget,
    )

    play.stop_faults()
    if play.transaction is not None:
        play.take(GiveUp())
    while play.held:
        play.take(GiveBack())
    if play.manager is None:
        play.see_end()
        return
    _notice_loss(play)
    if play.model.open:
        if play.model.manager is ManagerState.NEW:
            play.take(Prepare())
        for name in sorted(play.model.suspended):
            play.take(Resume(name))
        play.take(SetBudget(0))
        play.take(ForgetFailures())
        play.idle()
        play.take(CaptureAll())
        for name, subject in play.subjects.items():
            for sample in range(len(subject.samples)):
                play.take(Call(name, sample))
                while play.held:
                    play.take(GiveBack())
        _rest(play)
    if play.model.manager is not ManagerState.CLOSED:
        play.take(Close())
    play.see_end()


def _notice_loss(play: Play) -> None:
    """A device that was lost and nobody has noticed: the next call tells."""
    if not play.lost or play.model.manager in (ManagerState.POISONED, ManagerState.CLOSED):
        return
    play.books.notice(play.backend.lost() or RuntimeError("the device should be lost, and is not"))
    play.world = play.look()
    play.model.adopt(play.world)


def _rest(play: Play) -> None:
    play.idle()
    gc.collect(0)
    play.of_manager().reclaim(flush=True)
    left = "; ".join(map(str, unsettled_in(play.look())))
    if left:
        raise Violated(f"with nothing left to wait for, {left}")
