"""Draws a program, and plays one on a bench."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cgstate.testing.fidelity.bench import Bench
from cgstate.testing.fidelity.programs import draw_device, draw_runtime
from cgstate.testing.fidelity.programs.device import DeviceMachine
from cgstate.testing.fidelity.programs.machine import CLEAN, Machine
from cgstate.testing.fidelity.programs.program import Layer, Outcome, Program, Step
from cgstate.testing.fidelity.programs.runtime import RuntimeMachine

_MACHINES: dict[Layer, Callable[[Bench[Any]], Machine[Any]]] = {Layer.device: DeviceMachine, Layer.runtime: RuntimeMachine}
_DRAWERS: dict[Layer, Callable[[int], tuple[Step, ...]]] = {
    Layer.device: draw_device.draw_steps,
    Layer.runtime: draw_runtime.draw_steps,
}


def draw(layer: Layer, seed: int) -> Program:
    """The program of a seed; the same on every machine, for as long as the generator is not changed."""
    return Program(layer, seed, _DRAWERS[layer](seed))


def draw_many(count: int, first_seed: int = 0) -> Iterator[Program]:
    """``count`` programs, of the layers in turn."""
    layers = tuple(Layer)
    for index in range(count):
        yield draw(layers[index % len(layers)], first_seed + index // len(layers))


def play(program: Program, bench: Bench[Any]) -> Outcome:
    """Play a program on a bench that nothing else runs on. The bench is as before, if the outcome `is_clean`."""
    machine = _MACHINES[program.layer](bench)
    seen = [machine.do(step) for step in program.steps]
    return Outcome(program, (*seen, machine.end()))


def is_clean(outcome: Outcome) -> bool:
    """Whether the program left nothing behind, so that another one may be played on the same bench."""
    return outcome.seen[-1] == CLEAN
