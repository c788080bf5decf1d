"""Who decides: the ways to choose among the programs that could go on."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from random import Random
from typing import Protocol

from cgstate.testing.schedules.errors import NotDeterministic, NotReplayed
from cgstate.testing.schedules.program import Decision


class Chooser(Protocol):
    """Chooses, for one run."""

    def choose(self, decision: Decision) -> int:
        """Index of the candidate that goes on."""
        ...

    def check_followed(self) -> None:
        """Called after the last decision.

        Raises:
            ScheduleError: not everything came that was to be decided.
        """
        ...


class Deviations:
    """Goes on with the first candidate but at given decisions.

    Args:
        deviations: Pairs of a decision's index and the candidate to take there, in order.
        expected: The decisions as they were when these were found.
    """

    def __init__(self, deviations: Sequence[tuple[int, int]] = (), expected: Sequence[Decision] = ()) -> None:
        self._left = deque(zip(deviations, expected, strict=True))
        self._index = -1

    def choose(self, decision: Decision) -> int:
        """As `Chooser.choose`."""
        self._index += 1
        if not self._left or self._left[0][0][0] != self._index:
            return 0
        (_, chosen), expected = self._left.popleft()
        if not decision.same(expected):
            raise NotDeterministic(
                f"decision {self._index} was {expected.program} at {expected.point} among {expected.candidates}, "
                f"and is {decision.program} at {decision.point} among {decision.candidates}"
            )
        return chosen

    def check_followed(self) -> None:
        """As `Chooser.check_followed`."""
        if self._left:
            raise NotDeterministic(f"there were {self._index + 1} decisions, and {self._left[0][0][0] + 1} at least before")


class Uniform:
    """Any candidate is as likely as any other."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, decision: Decision) -> int:
        """As `Chooser.choose`."""
        return self._random.randrange(len(decision.candidates))

    def check_followed(self) -> None:
        """As `Chooser.check_followed`: whatever came was decided."""


class Priorities:
    """Probabilistic concurrency testing: drawn priorities that fall at drawn moments.

    For n programs and k decisions, a bug that takes ``depth`` ordered steps to show is found with a probability of at least
    1 / (n k^(depth − 1)) a schedule.

    Args:
        random: Draws.
        depth: How many steps have to come in order; the priority of whoever runs falls ``depth − 1`` times.
        length: About how many decisions there are.
    """

    def __init__(self, random: Random, depth: int, length: int) -> None:
        self._random = random
        self._priorities: dict[str, float] = {}
        self._falls = {random.randrange(max(1, length)) for _ in range(depth - 1)}
        self._index = -1

    def choose(self, decision: Decision) -> int:
        """As `Chooser.choose`."""
        self._index += 1
        for name in sorted(decision.candidates):
            self._priorities.setdefault(name, self._random.random())
        best = max(decision.candidates, key=self._priorities.__getitem__)
        if self._index in self._falls:
            self._priorities[best] = min(self._priorities.values()) - 1.0
            best = max(decision.candidates, key=self._priorities.__getitem__)
        return decision.candidates.index(best)

    def check_followed(self) -> None:
        """As `Chooser.check_followed`: whatever came was decided."""


class Drawn:
    """Deviates as given numbers say; made to be drawn, and shrunk, by a property-based tester.

    Args:
        moves: Pairs: for how many decisions the first candidate goes on, and which of the others then does. None left: the first.
    """

    def __init__(self, moves: Iterable[tuple[int, int]]) -> None:
        self.moves = tuple(moves)
        self._left = deque(self.moves)
        self._gap = 0

    def __repr__(self) -> str:
        return f"Drawn({list(self.moves)})"

    def choose(self, decision: Decision) -> int:
        """As `Chooser.choose`."""
        if not self._left:
            return 0
        gap, other = self._left[0]
        if self._gap < gap:
            self._gap += 1
            return 0
        self._left.popleft()
        self._gap = 0
        return 1 + other % (len(decision.candidates) - 1)

    def check_followed(self) -> None:
        """As `Chooser.check_followed`: moves that no decision came for do nothing."""


class Written:
    """Follows a schedule string."""

    def __init__(self, schedule: str) -> None:
        self._left = deque(parse(schedule))
        self._seen: Counter[tuple[str, str]] = Counter()

    def choose(self, decision: Decision) -> int:
        """As `Chooser.choose`."""
        key = decision.program, decision.point
        self._seen[key] += 1
        if not self._left or self._left[0][:3] != (*key, self._seen[key]):
            return 0
        following = self._left.popleft()[3]
        if following not in decision.candidates:
            raise NotReplayed(f"{following} cannot go on at {_word(*key, self._seen[key], following)}; {decision.candidates} can")
        return decision.candidates.index(following)

    def check_followed(self) -> None:
        """As `Chooser.check_followed`."""
        if self._left:
            raise NotReplayed(f"nobody came to {_word(*self._left[0])}")


def parse(schedule: str) -> list[tuple[str, str, int, str]]:
    """The words of a schedule string: program, point, at its how many-th time, and who goes on there.

    Raises:
        NotReplayed: it is none.
    """
    words = []
    for word in schedule.split():
        place, mark, following = word.rpartition(">")
        program, colon, point = place.partition(":")
        point, hash_, number = point.partition("#")
        if not (mark and colon and point and following) or (hash_ and not number.isdecimal()):
            raise NotReplayed(f"{word!r} is no part of a schedule; one looks like a:launch#2>b")
        words.append((program, point, int(number) if hash_ else 1, following))
    return words


def written(decisions: Iterable[Decision]) -> str:
    """The decisions of a run as a string that `Written` follows: only those that were not for the first candidate."""
    seen: Counter[tuple[str, str]] = Counter()
    words = []
    for decision in decisions:
        key = decision.program, decision.point
        seen[key] += 1
        if decision.chosen:
            words.append(_word(*key, seen[key], decision.candidates[decision.chosen]))
    return " ".join(words)


def _word(program: str, point: str, number: int, following: str) -> str:
    return f"{program}:{point}{f'#{number}' if number > 1 else ''}>{following}"
