"""A command's answer, on a stdout that may be closed or full."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cgstate.errors import ConfigError


@contextmanager
def answering() -> Iterator[None]:
    """The block writes the command's answer.

    Raises:
        ConfigError: not all of it could be written: nobody reads any more, or the disk is full. No verdict may be taken from that.
    """
    try:
        yield
        if sys.stdout is not None:  # the caller has closed it: there is nobody to answer
            sys.stdout.flush()
    except OSError as error:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # else Python tries again at its exit
        raise ConfigError(f"stdout: {error.strerror or error}") from None
