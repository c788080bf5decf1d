"""What torch leaves undone until it is first used, done before anything is watched."""

from __future__ import annotations

import sys
from importlib import import_module


def finish_importing_torch() -> None:
    """Import what torch imports at the first operation that the simulator records; nothing where the program has no torch.

    That import keeps its callers in a cycle. In a run without the collector they would hold a capture's tensors, and what
    the manager is charged for them would look like a leak.
    """
    if sys.modules.get("torch") is not None:
        import_module("torch._dynamo")
