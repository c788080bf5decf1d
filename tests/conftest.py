from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from cgstate.lifecycle import MACHINES
from cgstate.lifecycle.lint import check

settings.register_profile("commit", derandomize=True, database=None, deadline=None)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("commit")  # a commit passes or fails everywhere alike; `--hypothesis-profile=explore` draws anew


@pytest.fixture(scope="session", autouse=True)
def _tables_are_clean() -> None:
    """No test says anything about tables that the linter refuses."""
    check(MACHINES)


@pytest.fixture(autouse=True)
def nothing_left_on_the_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test on a device: what a failed or a foreign graph left would change what the next one may free."""
    yield
    if request.node.get_closest_marker("cuda") is not None:
        import torch

        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def nobody_records_any_more() -> Iterator[None]:
    """After a test that left a simulated capture open: this thread would go on recording what later tests do with torch."""
    yield
    if "torch" in sys.modules and "cgstate.backends.sim.recorder.recording" in sys.modules:
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        from cgstate.backends.sim.recorder.recording import RecordingMode

        for mode in _get_current_dispatch_mode_stack():
            if isinstance(mode, RecordingMode):
                mode.leave()
