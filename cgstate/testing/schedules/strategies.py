"""Schedules for Hypothesis: drawn beside the programs, so that both shrink.

    @given(programs=my_programs(), chooser=moves())
    def test_together(programs, chooser):
        run_once(lambda sync: case(sync, programs), chooser)

A schedule shrinks to fewer preemptions, and to earlier ones.
"""

from __future__ import annotations

from hypothesis import strategies as st

from cgstate.testing.schedules.choosing import Drawn

_MANY = 60


def moves(preemptions: int = 6, programs: int = 4) -> st.SearchStrategy[Drawn]:
    """Choosers with at most so many preemptions, for at most so many programs. Each is good for one run."""
    return st.lists(st.tuples(st.integers(0, _MANY), st.integers(0, programs - 2)), max_size=preemptions).map(Drawn)
