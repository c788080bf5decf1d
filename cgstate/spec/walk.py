"""The explicit-state walker: every reachable state of a system, breadth first, with the shortest way to whatever is wrong."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cgstate.lifecycle.expr import Expr, Lit, Value
from cgstate.spec.compiled import Instance, State, System
from cgstate.spec.properties import GOALS, INVARIANTS, SETTLED, STEPS, Property
from cgstate.spec.symmetry import Canonical


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The shortest way to what breaks a property.

    Attributes:
        property: Which.
        steps: The actions taken from the first state on.
        state: The last state, by cell.
    """

    property: Property
    steps: tuple[str, ...]
    state: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Graph:
    """All that was found. States have numbers, in order of distance from the first, which is 0.

    Attributes:
        system: What was walked.
        states: The states, by number.
        numbers: The other way round.
        came: How each state but the first was reached first: number of the state before, place of the instance.
        out: With ``keep_edges``, for each state the steps out of it: place of the instance, number of the state, and so on in turn.
        steps: How many steps there are.
        taken: How often each action was taken.
        depth: The distance of the farthest.
        complete: Whether every reachable state was seen.
        broken: The first property that was found broken.
    """

    system: System
    states: Sequence[State]
    numbers: Mapping[State, int]
    came: Sequence[tuple[int, int]]
    out: Sequence[array[int]]
    steps: int
    taken: Mapping[str, int]
    depth: int
    complete: bool
    broken: Counterexample | None

    def edges(self, number: int) -> Iterator[tuple[Instance, int]]:
        """The steps out of a state."""
        pairs = iter(self.out[number])
        for place, after in zip(pairs, pairs, strict=True):
            yield self.system.instances[place], after

    def way_to(self, number: int) -> tuple[str, ...]:
        """The actions that lead to a state, as few as possible."""
        return _way(self.system, self.came, number)

    def at(self, number: int, of: Property) -> Counterexample:
        """A counterexample that ends in a state."""
        return Counterexample(of, self.way_to(number), self.system.env(self.states[number]))


def successors(system: System, state: State) -> Iterator[tuple[Instance, State]]:
    """Every step out of a state."""
    for instance in system.instances:
        after = instance.step(state)
        if after is not None:
            yield instance, after


def walk(
    system: System,
    *,
    invariants: Sequence[Property] = INVARIANTS,
    steps: Sequence[Property] = STEPS,
    limit: int = 10_000_000,
    keep_edges: bool = False,
    symmetry: bool = False,
) -> Graph:
    """Visit every state, and stop at the first step or state that breaks a property.

    Args:
        system: What to walk.
        invariants: Hold in every state.
        steps: Hold for every step.
        limit: Give up, incomplete, after so many distinct states.
        keep_edges: Remember every step.
        symmetry: Visit one state of those that differ only in which of several like entries is which.
    """
    holds_in, holds_by = system.predicate(_all(invariants)), system.step_predicate(_all(steps))
    canonical = Canonical(system).of if symmetry else None
    moves = [(place, instance.step, instance.action.name) for place, instance in enumerate(system.instances)]
    states, numbers, came = [system.initial], {system.initial: 0}, [(0, 0)]
    out: list[array[int]] = []
    taken = dict.fromkeys((instance.action.name for instance in system.instances), 0)
    count = depth = 0
    level_ends = 1

    def result(*, complete: bool, broken: Counterexample | None = None) -> Graph:
        return Graph(system, states, numbers, came, out, count, taken, depth, complete, broken)

    if not holds_in(system.initial):
        return result(complete=False, broken=_broken_in(system, invariants, system.initial, ()))
    for number, state in enumerate(states):  # which grows meanwhile
        if number == level_ends:
            depth, level_ends = depth + 1, len(states)
        edges = array("I")
        for place, move, action in moves:
            after = move(state)
            if after is None:
                continue
            count += 1
            taken[action] += 1
            if not holds_by(state, after):
                way = (*_way(system, came, number), system.instances[place].label)
                wrong = next(each for each in steps if not system.step_predicate(each.expr)(state, after))
                return result(complete=False, broken=Counterexample(wrong, way, system.env(after)))
            if canonical is not None:
                after = canonical(after)
            known = numbers.get(after)
            if known is None:
                known = numbers[after] = len(states)
                states.append(after)
                came.append((number, place))
                if not holds_in(after):
                    return result(complete=False, broken=_broken_in(system, invariants, after, _way(system, came, known)))
            if keep_edges:
                edges.extend((place, known))
        if keep_edges:
            out.append(edges)
        if len(states) > limit:
            return result(complete=False)
    return result(complete=True)


def _all(properties: Sequence[Property]) -> Expr:
    result: Expr = Lit(True)
    for each in properties:
        result = result & each.expr
    return result


def _broken_in(system: System, properties: Sequence[Property], state: State, way: tuple[str, ...]) -> Counterexample:
    return Counterexample(next(each for each in properties if not system.predicate(each.expr)(state)), way, system.env(state))


def _way(system: System, came: Sequence[tuple[int, int]], number: int) -> tuple[str, ...]:
    labels: list[str] = []
    while number:
        number, place = came[number]
        labels.append(system.instances[place].label)
    return tuple(reversed(labels))


# -- what needs the whole graph -------------------------------------------------------------------------------------------


def unreached(graph: Graph) -> Iterator[Counterexample]:
    """Goals that cannot be reached from some state; the state nearest to the first one, for each goal.

    Raises:
        ValueError: the graph has no edges, or is not whole.
    """
    before = _sources(graph, progress=False)
    for goal, of in GOALS:
        there, speaks_of = graph.system.predicate(goal.expr), graph.system.predicate(of)
        queue = [number for number, state in enumerate(graph.states) if there(state)]
        arriving = set(queue)
        for number in queue:
            for source in before[number]:
                if source not in arriving:
                    arriving.add(source)
                    queue.append(source)
        for number, state in enumerate(graph.states):
            if number not in arriving and speaks_of(state):
                yield graph.at(number, goal)
                break


def unsettled(graph: Graph, settled: Property = SETTLED) -> Iterator[Counterexample]:
    """Where steps of progress alone do not lead to rest (I15).

    With nothing but such steps every run must end, since each is taken some day, and it must end settled: so a state in which
    nothing is left to do that is not settled, and one from which one can go on for ever, are both counterexamples.

    Raises:
        ValueError: the graph has no edges, or is not whole.
    """
    before = _sources(graph, progress=True)
    at_rest = graph.system.predicate(settled.expr)
    missing = [sum(instance.action.progress for instance, _ in graph.edges(number)) for number in range(len(graph.states))]
    ended = [number for number, left in enumerate(missing) if not left]
    for number in ended:
        if not at_rest(graph.states[number]):
            yield graph.at(number, settled)
            return
    for number in ended:  # from the ends backwards; what is never reached so is on a cycle, or leads into one
        for source in before[number]:
            missing[source] -= 1
            if not missing[source]:
                ended.append(source)
    endless = next((number for number, left in enumerate(missing) if left), None)
    if endless is not None:
        yield graph.at(endless, settled)


def never_taken(graph: Graph) -> tuple[str, ...]:
    """Actions that never happened."""
    return tuple(name for name, number in graph.taken.items() if not number)


def _sources(graph: Graph, *, progress: bool) -> list[array[int]]:
    """For each state, those from which a step leads to it."""
    if not graph.complete or not graph.out:
        raise ValueError("the whole graph is needed, with its edges")
    before = [array("I") for _ in graph.states]
    for number in range(len(graph.states)):
        for instance, after in graph.edges(number):
            if instance.action.progress or not progress:
                before[after].append(number)
    return before
