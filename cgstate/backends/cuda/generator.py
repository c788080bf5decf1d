"""The default random number generator of a device: its mark, its state, and whether a failed capture left it in capture mode.

Its state is read and set on the host and never waits for the device. An invalidated capture leaves it in capture mode, so that
every draw on the device raises (fact F2); the one thing that leads out is the end of a capture.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch

from cgstate.backends.undo import UndoLog

_cells: dict[int, torch.Tensor] = {}
_registered: set[int] = set()


def mark(index: int) -> Hashable:
    """Its whole state: seed and offset."""
    return bytes(_of(index).get_state().tolist())  # `get_offset` would refuse inside a capture


def keep(index: int, undo: UndoLog) -> None:
    """Register in ``undo`` what gives the generator the state that it has now."""
    generator = _of(index)
    state = generator.get_state()
    undo.always("restore the generator", lambda: _set(generator, state))


def stuck(index: int) -> bool:
    """Whether drawing a number raises since the generator believes in a capture that is not open here. Its state is left alone."""
    generator = _of(index)
    state = generator.get_state()
    try:
        cell(index).uniform_()
    except RuntimeError as error:
        if "Offset increment outside graph capture" not in str(error):
            raise
        return True
    finally:
        _set(generator, state)
    return False


def cell(index: int) -> torch.Tensor:
    """One element on the device, made once, to have something to work on that allocates nothing."""
    found = _cells.get(index)
    if found is None:
        with torch.inference_mode(False), torch.no_grad():
            found = _cells.setdefault(index, torch.zeros(1, device=torch.device("cuda", index)))
    return found


def register(index: int) -> None:
    """Keep the generator's device state allocated from now on.

    torch allocates it with the first graph of the process and frees it with the last, on whichever stream captures just then. That
    would show up as bytes that the first capture leaves behind. Does nothing in a release where a graph needs no such state.
    """
    if index in _registered or not hasattr(torch.cuda.CUDAGraph, "register_generator_state"):
        return
    _registered.add(index)
    with torch.cuda.device(index), torch.inference_mode(False):
        holder = torch.cuda.CUDAGraph()
        try:
            holder.register_generator_state(_of(index))
        except RuntimeError:
            return
    _holders.append(holder)


_holders: list[torch.cuda.CUDAGraph] = []


def _of(index: int) -> torch.Generator:
    return torch.cuda.default_generators[index]


def _set(generator: torch.Generator, state: torch.Tensor) -> None:
    generator.set_state(state)
