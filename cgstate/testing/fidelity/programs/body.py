"""What runs inside a capture: a list of operations on registers, and the ways in which it may fail.

An operation is a JSON list: its name, then its arguments. Register ``x`` is the static input; ``out`` is what the body returns, and
``random`` the numbers that it drew, if it did. All tensors hold one value everywhere, so a replay's result is one number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from cgstate.backends.base import Stream
from cgstate.runtime.failure import clear_frames
from cgstate.testing.fidelity.bench import Bench
from cgstate.testing.fidelity.programs.machine import TOO_MUCH, BodyError, Machine
from cgstate.testing.fidelity.programs.program import Json

T = TypeVar("T")

FAILURES = ("raise", "item", "too much", "nested", "unjoined", "sync elsewhere", "item elsewhere", "draw elsewhere", "reset")
"""Operations that fail, or that only the mode of the capture decides about."""


class Body(Generic[T]):
    """A body that can be run, eagerly or inside a capture. ``reset`` resets a graph by name.

    Attributes:
        noted: What other threads met while it ran.
    """

    def __init__(self, machine: Machine[T], operations: Sequence[Json], x: T, reset: Callable[[str], None]) -> None:
        self.noted: list[Json] = []
        self._machine = machine
        self._operations = operations
        self._x = x
        self._reset = reset

    def __call__(self) -> dict[str, T]:
        """Run it; ``out`` and, if it drew, ``random``."""
        registers = {"x": self._x}
        try:
            for operation in self._operations:
                self._run(operation, registers)
            if not self._machine.bench.backend.capturing():
                self._machine.bench.synchronize()  # streams that were forked to must not get memory back that is in use
            return {name: registers[name] for name in ("out", "random") if name in registers}
        finally:
            registers.clear()  # a traceback must not keep what the body had

    def _run(self, operation: Json, registers: dict[str, T]) -> None:
        machine, bench = self._machine, self._machine.bench
        match operation:
            case ["full", str(out), int() | float() as units, int(value)]:
                registers[out] = bench.full(units, value)
            case ["add", str(out), str(source), int(value)]:
                registers[out] = bench.add(registers[source], value)
            case ["add_", str(target), int(value)]:
                bench.add_(registers[target], value)
            case ["sum_", str(target), str(source)]:
                bench.sum_(registers[target], registers[source])
            case ["copy_", str(target), str(source)]:
                bench.copy_(registers[target], registers[source])
            case ["product", str(out), str(source)]:
                registers[out] = bench.product(registers[source])
            case ["draw"]:
                registers["random"] = machine.draw()
            case ["free", str(name)]:
                del registers[name]
            case ["fork", str(side), str(out), str(source), int(value)]:
                main = bench.backend.current_stream()
                self._fork(main, machine.streams[side], out, source, value, registers)
                main.wait(machine.streams[side].record())
            case ["unjoined", str(side)]:
                self._fork(bench.backend.current_stream(), machine.streams[side], "side", "x", 1, registers)
            case ["flush"]:
                bench.flush()
            case ["raise"]:
                raise BodyError
            case ["item"]:
                bench.item(registers["x"])
            case ["too much"]:
                bench.full(TOO_MUCH, 0)
            case ["nested", str(stream)]:
                bench.capture(bench.graph(), lambda: bench.add_(self._x, 1), stream=machine.streams[stream])
            case ["sync elsewhere"]:
                self._elsewhere(bench, bench.synchronize)
            case ["item elsewhere"]:
                self._elsewhere(bench, lambda: bench.item(self._x))
            case ["draw elsewhere"]:
                self._elsewhere(bench, machine.draw)
            case ["reset", str(graph)]:
                self._reset(graph)
            case _:
                raise AssertionError(f"no such operation: {operation}")

    def _fork(self, main: Stream, side: Stream, out: str, source: str, value: int, registers: dict[str, T]) -> None:
        side.wait(main.record())
        with self._machine.bench.on(side):
            registers[out] = self._machine.bench.add(registers[source], value)

    def _elsewhere(self, bench: Bench[T], act: Callable[[], object]) -> None:
        """Let another thread do it, and wait for that thread; what it meets is noted and is no error of the body."""

        def run() -> None:
            try:
                act()
            except Exception as error:
                self.noted.append(str(bench.error_name(error)))
                clear_frames(error)
            else:
                self.noted.append("done")

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()


def has(operations: Sequence[Json], *names: str) -> bool:
    """Whether a body does any of these."""
    return any(isinstance(operation, list) and operation[0] in names for operation in operations)
