"""Where a recorded trace goes: into a file while it is made, or into a ring whose last events are taken when they are wanted."""

from __future__ import annotations

import gzip
import logging
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from cgstate.errors import ConfigError, describe
from cgstate.runtime.sync import THREADING, Sync
from cgstate.trace.encoding import Encoder
from cgstate.trace.lanes import Lane
from cgstate.trace.recorder import Recorder, count, items

log = logging.getLogger("cgstate")

CHUNK = 4096
"""Items of the log that are kept as they came."""


class FileRecorder(Recorder):
    """Writes JSON Lines; a name that ends in ``.gz`` is compressed.

    Use it as a context manager, or `close` it: only then the file has its last line, without which it counts as truncated. Every
    so many events the thread that records writes them, under the device's lock.

    Args:
        path: The file; replaced if it is there.
        limit: The most events that are written; what comes after them is counted.
        chunk: Events between writes.
        sync: The runtime's threading primitives.

    Raises:
        ConfigError: the file cannot be written, or an argument is no positive count.
    """

    def __init__(self, path: str | Path, *, limit: int = 10_000_000, chunk: int = CHUNK, sync: Sync = THREADING) -> None:
        _check_counts(limit=limit, chunk=chunk)
        try:
            self._file = _open(Path(path))
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {_reason(error)}") from None
        super().__init__(chunk=chunk, sync=sync)
        self.path = Path(path)
        self._limit = limit
        self._dropped = 0
        self._encoder = Encoder()
        self._error = ""
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Write what is left and the last line. Idempotent. What is recorded afterwards is lost.

        Raises:
            ConfigError: the file could not be written, then or while recording; it is no whole trace.
        """
        if self._closed:
            return
        self._cut(wait=True)
        self._closed = True
        try:
            if not self._error:
                self._begin()
                self._file.write(self._encoder.end(self._dropped))
            self._file.close()
        except OSError as error:
            self._error = self._error or _reason(error)
        if self._error:
            raise ConfigError(f"{self.path} could not be written: {self._error}")

    def _spill(self, chunk: list[Any]) -> None:
        if self._closed or self._error:
            return
        found = list(items(chunk))
        room = 0 if self._dropped else self._limit - self._encoder.events
        if len(found) > room:
            self._dropped += sum(not isinstance(item, Lane) for item in found[room:])
            del found[room:]
        try:
            self._begin()
            self._file.writelines(self._encoder.encode(found, self._zero))
        except OSError as error:  # the runtime must not fail for it; `close` tells
            self._error = _reason(error)  # and not the error itself, whose frames hold what the runtime wants to free
            log.error("the trace %s ends here: %s", self.path, self._error)
        except BaseException as error:  # an interrupt: how much was written is not known
            self._error = describe(error)
            raise

    def _begin(self) -> None:
        """Write the head, once the first manager is known."""
        if not self._encoder.lines:
            self._file.write(self._encoder.head(self.head()))


class Ring(Recorder):
    """Keeps the last events in memory, and forgets what came before them.

    Args:
        size: How many at least.
        sync: The runtime's threading primitives.

    Raises:
        ConfigError: ``size`` is no positive count.
    """

    def __init__(self, size: int = 65_536, *, sync: Sync = THREADING) -> None:
        _check_counts(size=size)
        super().__init__(chunk=min(CHUNK, size), sync=sync)
        self._chunks: deque[tuple[list[Any], int]] = deque()
        self._size = size
        self._kept = 0
        self._dropped = 0

    def __len__(self) -> int:
        """Events that are kept now."""
        with self._spilling:
            return self._kept + count(self._log[:])

    @property
    def dropped(self) -> int:
        """Events that were forgotten."""
        return self._dropped

    def lines(self) -> Iterator[str]:
        """What is kept now, as the lines of a trace; for `cgstate.trace.read_lines` or a file."""
        with self._spilling:
            kept = [*(chunk for chunk, _ in self._chunks), self._log[:]]
            dropped = self._dropped
        encoder = Encoder(whole=not dropped)
        yield encoder.head(self.head(dropped))
        for chunk in kept:
            yield from encoder.encode(items(chunk), self._zero)
        yield encoder.end(0)

    def save(self, path: str | Path) -> None:
        """Write what is kept now into a file, as `FileRecorder` does.

        Raises:
            ConfigError: the file cannot be written.
        """
        try:
            with _open(Path(path)) as file:
                file.writelines(self.lines())
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {_reason(error)}") from None

    def _spill(self, chunk: list[Any]) -> None:
        events = count(chunk)
        self._chunks.append((chunk, events))
        self._kept += events
        while self._kept - (oldest := self._chunks[0][1]) >= self._size:
            self._chunks.popleft()
            self._kept -= oldest
            self._dropped += oldest


def record(path: str | Path) -> FileRecorder:
    """Record into a file: ``with cgstate.trace.record("run.jsonl") as recorder: GraphManager(observer=recorder)``.

    Raises:
        ConfigError: the file cannot be written.
    """
    return FileRecorder(path)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "wt", encoding="utf-8", newline="\n")
    return path.open("w", encoding="utf-8", newline="\n")


def _check_counts(**counts: int) -> None:
    for name, number in counts.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigError(f"{name} must be a positive count, not {number!r}")
