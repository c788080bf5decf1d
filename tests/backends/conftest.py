"""Some tests leave a capture open on purpose: this thread would go on recording what later tests do with torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nobody_records_any_more() -> Iterator[None]:
    yield
    if "torch" in sys.modules and "cgstate.backends.sim.recorder.recording" in sys.modules:
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        from cgstate.backends.sim.recorder.recording import RecordingMode

        for mode in _get_current_dispatch_mode_stack():  # type: ignore[no-untyped-call]
            if isinstance(mode, RecordingMode):
                mode.leave()
