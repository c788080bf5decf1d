from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgstate.lifecycle import PoolKind
from cgstate.lifecycle.expr import Expr, Lit, Value, Var, evaluate, node, python, variables

flag, other_flag = Var("flag", (False, True)), Var("near.flag", (False, True))
number, other_number = Var("number", (0, 1, 2)), Var("near.number", (0, 1, 2))
kind = Var("kind", tuple(PoolKind))
CONSTANTS = {f"PoolKind_{member.name}": member for member in PoolKind}

members = st.sampled_from(list(PoolKind))
numbers: st.SearchStrategy[Expr] = st.recursive(
    st.sampled_from([number, other_number]) | st.integers(-2, 2).map(Lit),
    lambda smaller: st.builds(lambda expr, by: expr + by, smaller, st.integers(-2, 2)),
    max_leaves=3,
)
conditions: st.SearchStrategy[Expr] = st.recursive(
    st.sampled_from([flag, other_flag])
    | st.booleans().map(Lit)
    | st.builds(lambda left, right: left.lt(right), numbers, numbers)
    | st.builds(lambda left, right: left.eq(right), numbers, numbers)
    | members.map(kind.eq)
    | st.lists(members, max_size=3).map(lambda values: kind.among(*values)),
    lambda smaller: (
        st.builds(lambda expr: ~expr, smaller)
        | st.builds(lambda left, right: left & right, smaller, smaller)
        | st.builds(lambda left, right: left | right, smaller, smaller)
    ),
    max_leaves=8,
)


@settings(deadline=None)  # a shared machine is slow at times; that is no finding
@given(conditions, st.booleans(), st.booleans(), st.integers(0, 2), st.integers(0, 2), members)
def test_the_generated_source_means_what_the_tree_means(
    expr: Expr, one: bool, other: bool, some: int, more: int, which: PoolKind
) -> None:
    env: dict[str, Value] = {"flag": one, "near.flag": other, "number": some, "near.number": more, "kind": which}
    me = SimpleNamespace(flag=one, near=SimpleNamespace(flag=other, number=more), number=some, kind=which)
    assert bool(eval(python(expr), dict(CONSTANTS), {"self": me})) == bool(evaluate(expr, env))


def test_variables_are_listed_left_to_right() -> None:
    assert list(variables((flag & ~other_flag) | (number + 1).lt(other_number))) == [flag, other_flag, number, other_number]


def test_parameters_stand_alone_in_the_generated_source() -> None:
    assert python(flag & other_flag, frozenset({"flag"})) == "flag and self.near.flag"


def test_only_numbers_are_counted_and_ordered() -> None:
    with pytest.raises(TypeError, match="a number is needed"):
        evaluate(kind + 1, {"kind": PoolKind.shared})


def test_the_tree_is_closed() -> None:
    with pytest.raises(TypeError, match="not an expression node"):
        node(Expr())
