"""A command's answer, on a stdout that may be closed or full."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO, cast


class Unanswered(Exception):
    """Not all of the answer could be written: no verdict may be taken from it.

    No `OSError`, which typer and rich would take for their own business and end as exit 1.

    Attributes:
        reader_left: It is a pipe that nobody reads any more, as after ``| head``: no mistake, and nobody to tell.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"stdout: {error.strerror or error}")
        self.reader_left = error.errno == errno.EPIPE


@contextmanager
def answering() -> Iterator[None]:
    """The block writes the command's answer.

    Raises:
        Unanswered: not all of it could be written. An error of the block's own comes first.
    """
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        answer = _Answer(sys.stdout or nowhere)  # None: the caller has closed it, there is nobody to answer
        with redirect_stdout(cast("TextIO", answer)):
            try:
                yield
            except BaseException:
                with suppress(Unanswered):
                    answer.flush()
                raise
            answer.flush()


class _Answer:
    """A stream whose errors are told from those of other files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._watched():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._watched():
            self._stream.flush()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())  # else Python tries again at its exit
            raise Unanswered(error) from None
