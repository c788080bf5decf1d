"""Chooses a backend by name, importing only the one that is chosen."""

from __future__ import annotations

import importlib.util
import warnings

from cgstate.backends.base import Backend
from cgstate.errors import ConfigError

NAMES = ("auto", "cuda", "sim")


def choose(backend: str | Backend) -> Backend:
    """The backend for a name; one of your own is passed through.

    Raises:
        ConfigError: an unknown name, or no such device here.
    """
    if not isinstance(backend, str):
        if isinstance(backend, type) or not hasattr(backend, "open_capture"):
            raise ConfigError(f"backend must be one of {NAMES} or a backend, not {backend!r}")
        return backend
    match backend:
        case "auto":
            return _cuda() if cuda_is_here() else _sim()
        case "cuda":
            return _cuda()
        case "sim":
            return _sim()
        case _:
            raise ConfigError(f"backend must be one of {NAMES} or a backend, not {backend!r}")


def cuda_is_here() -> bool:
    """Whether torch is installed and sees a CUDA device."""
    if importlib.util.find_spec("torch") is None:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells at its first import what else is not installed
        import torch

        return torch.cuda.is_available()


def _cuda() -> Backend:
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("the cuda backend needs torch: pip install 'cgstate[torch]'")
    from cgstate.backends.cuda import CudaBackend

    return CudaBackend()


def _sim() -> Backend:
    from cgstate.backends.sim import SimBackend

    return SimBackend()
