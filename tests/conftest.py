from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from cgstate.lifecycle import MACHINES
from cgstate.lifecycle.lint import check


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
