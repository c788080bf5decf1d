"""The undo log of a capture: every step is tried, the first error wins, cleanup never masks it."""

from __future__ import annotations

from collections.abc import Callable

Step = Callable[[], None]


class UndoLog:
    """What must be put back, newest first.

    Steps registered with `on_failure` run only when the attempt failed; steps registered with `always` run in either case.
    A step that raises does not keep the others from running.
    """

    __slots__ = ("_steps", "errors")

    def __init__(self) -> None:
        self._steps: list[tuple[str, Step, bool]] = []
        self.errors: list[tuple[str, BaseException]] = []
        """``(step name, error)`` of the steps that raised."""

    def on_failure(self, name: str, step: Step) -> None:
        """Register ``step`` to be run if the attempt fails."""
        self._steps.append((name, step, False))

    def always(self, name: str, step: Step) -> None:
        """Register ``step`` to be run when the attempt ends, however it ends."""
        self._steps.append((name, step, True))

    def succeed(self) -> None:
        """Run the `always` steps, newest first, and forget the others.

        Raises:
            BaseException: the first error of a step, after every step was tried.
        """
        self._run(failed=False)
        if self.errors:
            raise self.errors[0][1]

    def fail(self) -> None:
        """Run every step, newest first. Never raises: what the steps raise is kept in `errors`."""
        self._run(failed=True)

    def _run(self, *, failed: bool) -> None:
        while self._steps:
            name, step, always = self._steps[-1]
            del self._steps[-1]  # no call before the step's own: an interrupt must not lose it
            if failed or always:
                try:
                    step()
                except BaseException as error:  # cleanup completes, whatever a step raises
                    self.errors.append((name, error))
