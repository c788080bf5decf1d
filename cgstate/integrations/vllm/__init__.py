"""vLLM's V2 CUDA graph manager on cgstate: every FULL graph that it captures and replays is an entry.

Switched on by the environment variable ``CGSTATE_VLLM=1``, at vLLM's own entry point for plugins; vLLM is left alone otherwise. See
``docs/howto/vllm.md``. Nothing here imports vLLM or torch before it is switched on.
"""

from cgstate.integrations.vllm.errors import UnsupportedRelease
from cgstate.integrations.vllm.options import Options
from cgstate.integrations.vllm.plugin import close_traces, estimate, install, measuring, register, report, uninstall

__all__ = [
    "Options",
    "UnsupportedRelease",
    "close_traces",
    "estimate",
    "install",
    "measuring",
    "register",
    "report",
    "uninstall",
]
