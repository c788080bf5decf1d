from __future__ import annotations

import pytest
from hypothesis import settings

from cgstate.lifecycle import MACHINES
from cgstate.lifecycle.lint import check

settings.register_profile("cgstate", deadline=None)  # shared machines are slow at times; that is no finding
settings.load_profile("cgstate")


@pytest.fixture(scope="session", autouse=True)
def _tables_are_clean() -> None:
    """No test says anything about tables that the linter refuses."""
    check(MACHINES)
