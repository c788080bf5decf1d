"""The simulated device: pure Python, no torch, and wrong lifecycles fail on it the way they fail on the GPU.

This front is for users and for the runtime: `SimBackend` for a manager, `SimDevice` and its tensors for the model, `kernels` for
what the model computes. The errors and the fault injector live in their own modules.
"""

from cgstate.backends.sim import kernels
from cgstate.backends.sim.backend import SimBackend
from cgstate.backends.sim.config import SimConfig
from cgstate.backends.sim.device import SimDevice
from cgstate.backends.sim.graph import SimGraph
from cgstate.backends.sim.pool import SimPool, allocating_from
from cgstate.backends.sim.schedule import Drawn, InOrder, Schedule
from cgstate.backends.sim.scope import captured, graph_scope
from cgstate.backends.sim.streams import SimEvent, SimStream
from cgstate.backends.sim.tensor import SimTensor

__all__ = [
    "Drawn",
    "InOrder",
    "Schedule",
    "SimBackend",
    "SimConfig",
    "SimDevice",
    "SimEvent",
    "SimGraph",
    "SimPool",
    "SimStream",
    "SimTensor",
    "allocating_from",
    "captured",
    "graph_scope",
    "kernels",
]
