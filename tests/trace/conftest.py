from __future__ import annotations

import pytest

from tests.trace.runs import Lines, recorded


@pytest.fixture(scope="session")
def good() -> Lines:
    """The documents of the trace of a run in which nothing was wrong; not to be changed."""
    return recorded()
