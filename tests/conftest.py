from __future__ import annotations

import pytest

from cgstate.lifecycle import MACHINES
from cgstate.lifecycle.lint import check


@pytest.fixture(scope="session", autouse=True)
def _tables_are_clean() -> None:
    """No test says anything about tables that the linter refuses."""
    check(MACHINES)
