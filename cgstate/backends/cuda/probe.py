"""Which names this backend uses beyond torch's stable surface, what each is for, and whether this torch has it.

Called when a backend is made, by the tests, and by whoever reports a torch release that does not fit. What a release can do is
found out here by looking, never by its version string.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch

_DUMMIES = "torch._utils"
"""Module of the stand-ins that a build without CUDA has in place of some names."""


@dataclass(frozen=True, slots=True)
class PrivateName:
    """A name that torch may move or change.

    Attributes:
        path: Where it is looked up, from ``torch`` on.
        purpose: What this backend does with it.
        needed: Whether the backend refuses to work without it; else it does less, as `purpose` says.
    """

    path: str
    purpose: str
    needed: bool = True

    @property
    def present(self) -> bool:
        """Whether this torch has it, and not just the stand-in of a build without CUDA."""
        found = reduce(lambda at, name: getattr(at, name, None), self.path.split(".")[1:], torch)  # type: ignore[arg-type, return-value]
        return found is not None and getattr(found, "__module__", None) != _DUMMIES


NAMES: tuple[PrivateName, ...] = (
    PrivateName("torch._C._cuda_getCurrentRawStream", "the raw handle of the current stream, on the hot path"),
    PrivateName("torch._C._cuda_getCurrentStream", "notes the current stream before a capture"),
    PrivateName("torch._C._cuda_setStream", "makes the capture stream current, and the noted one again"),
    PrivateName("torch._C._cuda_getDevice", "notes the current device, without initialising anything"),
    PrivateName("torch._C._cuda_isCurrentStreamCapturing", "asks whether the current stream is being captured"),
    PrivateName("torch._C._CUDAGraph", "replay without the Python wrapper around it"),
    PrivateName("torch._C._cuda_releasePool", "gives a pool back without destroying its MemPool, which aborts inside any capture"),
    PrivateName("torch.cuda.MemPool.use_count", "checks that a failed capture left nothing behind"),
    PrivateName("torch.cuda.memory.use_mem_pool", "makes library workspaces inside a pool"),
    PrivateName("torch.utils._pytree.tree_flatten", "walks values of classes that registered themselves"),
    PrivateName("torch.AcceleratorError", "carries the error codes that failures are told apart by"),
    PrivateName(
        "torch._C._cuda_endAllocateToPool",
        "ends allocation routing where ending the capture again failed; else that is left",
        False,
    ),
    PrivateName(
        "torch._C._cuda_clearCublasWorkspaces", "frees library workspaces; without it they stay until the process ends", False
    ),
    PrivateName(
        "torch.cuda.CUDAGraph.register_generator_state",
        "keeps the generator's device state allocated between graphs; without it the first graph seems to allocate 1 KiB",
        False,
    ),
)


def missing(*, optional: bool = False) -> tuple[PrivateName, ...]:
    """The names that this torch lacks: the needed ones, or with ``optional`` the others."""
    return tuple(name for name in NAMES if name.needed is not optional and not name.present)
