"""Draws a trace in a terminal: one lane an entity, from the first event to the last, and the events themselves where they are few.

A column of a lane stands for as many events as fit; it shows the most telling of the states that the entity had there. The axis
counts events and not seconds, so that a pause does not push everything else together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cgstate.errors import ConfigError
from cgstate.trace.records import EntityRecord, Head, NoticeRecord, Record, TransitionRecord

LANES = 40
"""Lanes that are drawn; of more entities, those with the most events."""
LISTED = 60
"""Events up to which they are listed one by one without being asked for."""
NAMED = 20
"""Entities that a refusal names."""
END = 1 << 62
"""As the number of the last event: however many there are."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a state looks: the higher its rank, the more telling it is."""

    rank: int
    mark: str
    plain: str
    style: str


_NOTHING, _READY, _OVER = Look(0, "·", ".", "dim"), Look(2, "─", "-", "cyan"), Look(1, "╌", "~", "yellow")
_MAKING, _BUSY, _BAD = Look(4, "▒", "C", "magenta"), Look(3, "█", "#", "green"), Look(5, "✗", "x", "bold red")

LOOKS: dict[str, Look] = {
    **dict.fromkeys(("EAGER", "NEW", "MINTED", "GONE", "CLOSED"), _NOTHING),
    **dict.fromkeys(("BOUND", "LIVE", "SERVING", "PREPARED"), _READY),
    **dict.fromkeys(("EVICTED", "RETIRED"), _OVER),
    **dict.fromkeys(("CAPTURING", "RECORDING", "PROFILING"), _MAKING),
    "REPLAYING": _BUSY,
    **dict.fromkeys(("FAILED", "POISONED"), _BAD),
}
LEGEND = (
    (_NOTHING, "nothing yet, or gone"),
    (_READY, "ready"),
    (_BUSY, "in use"),
    (_MAKING, "captures or profiles"),
    (_OVER, "retired"),
    (_BAD, "failed"),
)


@dataclass(slots=True)
class Lane:
    """One entity over the whole trace.

    Attributes:
        machine: Its table.
        state: Its state at the column that was last filled.
        columns: The look of each column, as far as there were events.
        events: What happened to it, counted.
    """

    machine: str
    state: str
    columns: list[Look]
    events: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class View:
    """Which part of a trace is wanted.

    Attributes:
        entity: Part of an entity's name; empty for all.
        first, last: Numbers of the first and the last event.
        listed: The most events that are listed; more are not listed at all.
    """

    entity: str = ""
    first: int = 1
    last: int = END
    listed: int = LISTED

    def wants(self, seq: int, entity: str) -> bool:
        """Whether an event is in it."""
        return self.first <= seq <= self.last and self.entity in entity


def draw(read: Callable[[], Iterable[Record]], console: Console, view: View | None = None) -> None:
    """Draw a trace.

    Args:
        read: Makes the records; called twice, so that a long trace need not be kept.
        console: Where to.
        view: What is wanted.

    Raises:
        ConfigError: the trace has events, and none of them is wanted.
        TraceError: from the records; see `cgstate.trace.read`.
    """
    view = view or View()
    span = _Span(view)
    for record in read():
        span.take(record)
    span.check()
    _draw_head(span, console)
    if not span.count:
        console.print("  no events")
        return
    width = max(10, min(console.width - span.name_width - 30, 100, span.count))
    lanes = _lanes(read(), view, span, width)
    _draw_lanes(lanes, console, span, width)
    if span.count <= view.listed:
        _draw_events(read(), console, view, span)
    else:
        console.print(f"  {span.count:,} events; --entity, --first and --last choose, --list N lists up to N of them", style="dim")


class _Span:
    """What has to be known of a trace before anything is drawn."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.head: Head | None = None
        self.count = 0
        self.start = 0
        self.stop = 0
        self.first = 0
        self.last = 0
        self.name_width = 6
        self.totals: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self._reach: dict[str, tuple[int, int]] = {}

    def take(self, record: Record) -> None:
        if isinstance(record, Head):
            self.head = record
        elif isinstance(record, TransitionRecord | NoticeRecord):
            first, _ = self._reach.get(record.entity, (record.seq, record.seq))
            self._reach[record.entity] = first, record.seq
            if not self._view.wants(record.seq, record.entity):
                return
            if not self.count:
                self.first, self.start = record.seq, record.t_ns
            self.count += 1
            self.last, self.stop = record.seq, record.t_ns
            self.name_width = max(self.name_width, min(28, len(record.entity)))
            if isinstance(record, TransitionRecord):
                self.totals[f"{record.machine} {record.event}"] += 1
            elif record.what == "answered":
                self.answers[str(record.value)] += 1

    def check(self) -> None:
        """Refuse a view of nothing; a trace that has no events is shown as it is.

        Raises:
            ConfigError: no event is wanted; it says which there are.
        """
        if self.count or not self._reach:
            return
        view = self._view
        named = [reach for name, reach in self._reach.items() if view.entity in name]
        if not named:
            names = sorted(self._reach)
            more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
            raise ConfigError(f"no entity has {view.entity!r} in its name; there are {', '.join(names[:NAMED])}{more}")
        asked = f"from {view.first:,} on" if view.last == END else f"from {view.first:,} to {view.last:,}"
        whose = f" of entities with {view.entity!r} in their name" if view.entity else ""
        first, last = min(first for first, _ in named), max(last for _, last in named)
        raise ConfigError(f"there is no event {asked}: those{whose} are from {first:,} to {last:,}")

    def column(self, seq: int, width: int) -> int:
        """The column that an event falls into."""
        return (seq - self.first) * width // (self.last - self.first + 1)


def _lanes(records: Iterable[Record], view: View, span: _Span, width: int) -> dict[tuple[str, str], Lane]:
    lanes: dict[tuple[str, str], Lane] = {}
    for record in records:
        if not isinstance(record, TransitionRecord):
            continue
        key = record.machine, record.entity
        if record.seq < span.first or record.seq > span.last or view.entity not in record.entity:
            continue
        lane = lanes.get(key)
        if lane is None:
            lane = lanes[key] = Lane(record.machine, record.source, [])
        _fill(lane, span.column(record.seq, width))
        lane.events[record.event] += 1
        lane.state = record.target
        before, now = lane.columns[-1], _look(record.target)
        if now.rank > before.rank or not before.rank:
            lane.columns[-1] = now
    for lane in lanes.values():
        _fill(lane, width - 1)
    return lanes


def _fill(lane: Lane, column: int) -> None:
    """Up to and with a column the entity is in the state that it was last seen in."""
    look = _look(lane.state)
    while len(lane.columns) <= column:
        lane.columns.append(look)


def _look(state: str) -> Look:
    return LOOKS.get(state, _NOTHING)


# -- drawing ----------------------------------------------------------------------------------------------------------


def _draw_head(span: _Span, console: Console) -> None:
    head = span.head
    assert head is not None  # a trace begins with it
    versions = ", ".join(f"{name} {version}" for name, version in head.versions.items())
    console.print()
    console.print(f"  {head.device or 'no device'}, {head.started}, {versions}", markup=False, highlight=False)
    if head.dropped:
        console.print(f"  a window: {head.dropped:,} events before it were not kept", style="yellow")
    if span.count:
        seconds = (span.stop - span.start) / 1e9
        console.print(f"  events {span.first:,} to {span.last:,}, {span.count:,} of them shown, {seconds:.3f} s", highlight=False)


def _draw_lanes(lanes: dict[tuple[str, str], Lane], console: Console, span: _Span, width: int) -> None:
    order = {name: index for index, name in enumerate(("manager", "component", "entry", "pool"))}
    drawn = sorted(lanes.items(), key=lambda item: -item[1].events.total())[:LANES]
    drawn.sort(key=lambda item: order[item[0][0]])
    ascii_only = console.options.ascii_only
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("machine", style="dim")
    table.add_column("entity", no_wrap=True, max_width=span.name_width)
    table.add_column(f"event {span.first:,} to {span.last:,}", no_wrap=True, width=width)
    table.add_column("events", justify="right", no_wrap=True)
    for (machine, name), lane in drawn:
        table.add_row(machine, Text(name), _bar(lane, ascii_only=ascii_only), f"{lane.events.total():,}")
    console.print(table)
    if len(lanes) > len(drawn):
        console.print(f"  and {len(lanes) - len(drawn):,} entities with fewer events", style="dim")
    legend = Text("  ")
    for look, meaning in LEGEND:
        legend.append(look.plain if ascii_only else look.mark, style=look.style)
        legend.append(f" {meaning}   ", style="dim")
    console.print(legend)
    console.print(_totals(span), highlight=False)


def _bar(lane: Lane, *, ascii_only: bool) -> Text:
    bar = Text()
    for look in lane.columns:
        bar.append(look.plain if ascii_only else look.mark, style=look.style)
    return bar


def _totals(span: _Span) -> Text:
    """What happened most, and why calls were answered eagerly."""
    most = ", ".join(f"{name} {count:,}" for name, count in span.totals.most_common(8))
    text = Text(f"  most frequent: {most}", style="dim")
    if span.answers:
        text.append("\n  answered eagerly: " + ", ".join(f"{reason} {count:,}" for reason, count in span.answers.most_common()))
    return text


def _draw_events(records: Iterable[Record], console: Console, view: View, span: _Span) -> None:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name, justify in (("event", "right"), ("ms", "right"), ("thread", "right")):
        table.add_column(name, justify=justify, style="dim")  # type: ignore[arg-type]  # a literal of rich's
    for name in ("entity", "what", "from", "to"):
        table.add_column(name, no_wrap=name != "entity")
    for row in _rows(records, view, span):
        table.add_row(*row)
    console.print(table)


def _rows(records: Iterable[Record], view: View, span: _Span) -> Iterator[tuple[str | Text, ...]]:
    for record in records:
        if isinstance(record, EntityRecord | Head) or not isinstance(record, TransitionRecord | NoticeRecord):
            continue
        if not view.wants(record.seq, record.entity):
            continue
        when = f"{(record.t_ns - span.start) / 1e6:,.3f}"
        start = str(record.seq), when, str(record.thread), Text(record.entity)
        if isinstance(record, NoticeRecord):
            yield *start, Text(f"{record.what}: {record.value}", style="dim"), "", ""
        else:
            before, after = (Text(state, style=_look(state).style) for state in (record.source, record.target))
            yield *start, record.event, before, after
