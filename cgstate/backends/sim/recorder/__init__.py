"""Real torch code on the simulated device: plain CPU tensors and modules, with the semantics of graphs.

The only part of the simulator that imports torch, and imported only once the program has. A capture runs the user's Python and
computes nothing: every operation that torch dispatches is noted with the addresses it will work on, and a replay runs it there.

Two kinds of memory take part. *Arena* tensors lie in the simulated device's own memory, in blocks of its allocator, so that pools,
streams, reuse, poison and out-of-memory are the simulator's. All other CPU tensors (weights, a user's own static inputs) are
memory *outside*: a graph bakes in their addresses, as of memory outside its pool.

Where dispatch is watched, torch leaves out code that ``torch.compile`` made: warm-up and capture run what it was made from.

Start at `recorder`; then `recording` (what a capture does with an operation), `operation` (what a replay does).
"""

from cgstate.backends.sim.recorder.recorder import Recorder

__all__ = ["Recorder"]
