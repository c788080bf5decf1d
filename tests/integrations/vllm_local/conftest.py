"""These tests run vLLM's own worker and runners: where vLLM is not installed, they are not collected."""

from __future__ import annotations

import importlib.util

HERE = importlib.util.find_spec("vllm") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]

if HERE:
    import tests.integrations.vllm.lab  # noqa: F401  # vLLM's first import finds its platform here
