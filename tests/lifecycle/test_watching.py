"""Who looks at one World after another and asks only what could have changed finds what a full look finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgstate.lifecycle.invariants import Checker, broken_by, broken_in
from cgstate.lifecycle.states import ComponentState, EntryState, ManagerState, PoolState
from cgstate.lifecycle.watching import Watch
from cgstate.lifecycle.world import Act, GateView, ManagerView, World
from tests.lifecycle.test_invariants import SERVING

ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "state": st.sampled_from(EntryState),
        "leases": st.integers(-1, 2),
        "retiring": st.booleans(),
        "failed": st.booleans(),
        "noted": st.integers(0, 1),
        "unreclaimed": st.integers(0, 1),
    },
)
CHANGES = st.one_of(
    st.tuples(st.just("entries"), st.integers(0, 9), ENTRIES),
    st.tuples(
        st.just("components"),
        st.integers(0, 9),
        st.fixed_dictionaries({}, optional={"state": st.sampled_from(ComponentState), "held": st.integers(0, 3)}),
    ),
    st.tuples(
        st.just("pools"),
        st.integers(0, 9),
        st.fixed_dictionaries({}, optional={"state": st.sampled_from(PoolState), "charged": st.integers(0, 1)}),
    ),
    st.tuples(st.just("manager"), st.just(0), st.sampled_from(ManagerState).map(lambda state: ManagerView(state, serving=False))),
    st.tuples(st.just("gate"), st.just(0), st.booleans().map(lambda free: GateView(free, "" if free else "x"))),
    st.tuples(st.sampled_from(["acquires", "releases", "ledger_bytes"]), st.just(0), st.integers(0, 9)),
)
ACTS = st.builds(Act, st.sampled_from(["evict", "commit"]), st.sampled_from([frozenset[str](), frozenset({"decoder[64]"})]))


def changed(world: World, part: str, at: int, value: Any) -> World:
    old = getattr(world, part)
    if not isinstance(value, dict):
        return world._replace(**{part: value})
    at %= len(old)
    parts: Any = (*old[:at], old[at]._replace(**value), *old[at + 1 :])
    return world._replace(**{part: parts})


@pytest.mark.parametrize("checker", Checker)
@given(st.lists(st.tuples(CHANGES, ACTS), max_size=8))
def test_a_watch_finds_what_a_full_look_finds(checker: Checker, steps: Sequence[tuple[tuple[str, int, Any], Act]]) -> None:
    watch, world = Watch(checker), SERVING
    assert watch.broken_in(world) == list(broken_in(checker, world))
    for change, act in steps:
        after = changed(world, *change)
        found = watch.broken_by(world, after, act)
        assert found == (list(broken_in(checker, after)), list(broken_by(checker, world, after, act)))
        world = after


def test_a_watch_that_has_missed_a_world_asks_everything_again() -> None:
    watch = Watch(Checker.stateful)
    watch.broken_in(SERVING)
    missed = SERVING._replace(releases=2)
    in_state, _ = watch.broken_by(missed, missed, Act("look"))
    assert [violation.invariant.id for violation in in_state] == ["I10"]
