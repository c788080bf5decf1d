"""What vLLM calls: `register`, at entry point ``vllm.general_plugins``. Where it is off it costs one look at the environment."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cgstate.errors import ConfigError
from cgstate.integrations.vllm.options import switched_on

if TYPE_CHECKING:
    from cgstate.backends.base import Backend
    from cgstate.integrations.vllm.adapter import Adapter
    from cgstate.integrations.vllm.contents import PoolReport
    from cgstate.integrations.vllm.profiling import ProfileRun
    from cgstate.runtime.memory import MemoryEstimate

log = logging.getLogger("cgstate")

_installed: Adapter | None = None


def register() -> None:
    """Put vLLM on cgstate if ``CGSTATE_VLLM=1``; else leave it alone. May be called any number of times.

    Raises:
        ConfigError: the variable has a value that means nothing.
        UnsupportedRelease: vLLM lacks names that the adapter needs.
    """
    if switched_on(os.environ):
        install()


def install(backend: Callable[[Any], Backend] | None = None) -> None:
    """Put vLLM on cgstate, whatever the environment says. Does nothing where that was done already.

    Args:
        backend: Makes the backend for the `torch.device` of a manager; None: the CUDA device.

    Raises:
        UnsupportedRelease: vLLM lacks names that the adapter needs.
    """
    global _installed
    if _installed is None:
        from cgstate.integrations.vllm.adapter import Adapter
        from cgstate.integrations.vllm.probe import seams

        found = seams()
        adapter = Adapter(found, backend or _cuda)
        adapter.install()
        _installed = adapter
        log.info("vLLM %s: its CUDA graphs are managed by cgstate", found.version)


def uninstall() -> None:
    """Give vLLM its own methods back. Idempotent."""
    global _installed
    if _installed is not None:
        _installed.uninstall()
        _installed = None


def report() -> tuple[PoolReport, ...]:
    """Everything in the pools that graphs of ours live in; empty where vLLM is not managed."""
    if _installed is None:
        return ()
    from cgstate.integrations.vllm.contents import by_pool

    return by_pool(_installed.owners, _installed.wrappers.look())


def estimate() -> MemoryEstimate | None:
    """What vLLM was last told that its FULL graphs take; None where it was not told by cgstate."""
    return None if _installed is None else _installed.estimate


@contextmanager
def measuring(device: Any) -> Iterator[ProfileRun]:
    """Measure what vLLM's managers capture in the block, and leave nothing of it: for releases that do not profile themselves.

    Args:
        device: The `torch.device` that they capture on.

    Raises:
        ConfigError: vLLM is not managed.
    """
    if _installed is None:
        raise ConfigError("vLLM is not managed by cgstate: call install first")
    with _installed.measuring(device) as run:
        yield run


def close_traces() -> None:
    """End the trace files of this process, so that they can be checked; what is recorded later is lost."""
    if _installed is not None:
        _installed.close_traces()


def _cuda(device: Any) -> Backend:
    from cgstate.backends.cuda import CudaBackend

    return CudaBackend(device)
