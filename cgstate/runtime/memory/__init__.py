"""What graphs cost: the estimate before they are captured, and the bytes they hold afterwards.

Only a pool's own segments are exact (fact P5). `scope` is where captures are profiled and leave nothing, `sampling` chooses what to
capture there, `bounds` concludes from samples on the rest, `estimate` is the result; `report` attributes what is held now.
"""

from cgstate.runtime.memory.estimate import Comparison, MemoryEstimate, Sample
from cgstate.runtime.memory.report import (
    ComponentMemory,
    EntryMemory,
    ForeignMemory,
    MemoryReport,
    PoolMemory,
    StreamMemory,
    report,
)
from cgstate.runtime.memory.sampling import profile_memory
from cgstate.runtime.memory.scope import Profile, profiling

__all__ = [
    "Comparison",
    "ComponentMemory",
    "EntryMemory",
    "ForeignMemory",
    "MemoryEstimate",
    "MemoryReport",
    "PoolMemory",
    "Profile",
    "Sample",
    "StreamMemory",
    "profile_memory",
    "profiling",
    "report",
]
