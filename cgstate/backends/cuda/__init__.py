"""The CUDA backend, over torch. Importing it imports torch; it works without a device, `CudaBackend()` does not."""

from cgstate.backends.cuda.backend import CudaBackend
from cgstate.backends.cuda.probe import PrivateName, missing

__all__ = ["CudaBackend", "PrivateName", "missing"]
