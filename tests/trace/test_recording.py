"""What is recorded, and what recording costs the run."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from cgstate.errors import ConfigError
from cgstate.runtime.entry import Entry
from cgstate.runtime.record import ComponentRecord
from cgstate.trace import FileRecorder, NoticeRecord, Ring, TraceError, TransitionRecord, check, read, read_lines, record
from cgstate.trace.rows import FOLLOWERS, LEASES
from tests.runtime.helpers import Model, running
from tests.trace.runs import Lines, events, judged, record_run


def test_without_a_recorder_nothing_is_told_and_replays_take_the_short_way() -> None:
    model = Model()
    manager = model.manager(check=False)
    ((entry, _),) = model.bind(manager, "low")
    assert (manager._books.observer, manager._books.witness, entry.observer) == (None, None, None)
    assert entry.fast
    manager.close()


def test_with_one_every_replay_is_seen() -> None:
    model, ring = Model(), Ring()
    manager = model.manager(check=False, observer=ring)
    ((entry, _),) = model.bind(manager, "low")
    assert not entry.fast
    for _ in range(3):
        entry.replay()
    manager.close()
    seen = [each.event for each in check_and_read(ring) if each.machine == "entry"]
    assert seen.count("acquire") == seen.count("release") == 3


def serve(observer: Any) -> None:
    """Leases of all kinds, told one by one or in one word: of one entry, of two of a component, held twice, evicted meanwhile."""
    model = Model()
    manager = model.manager(check=False, observer=observer, isolation="per_component")
    (one, _), (other, _) = model.bind(manager, "one", "other")
    with manager.transaction() as tx:
        second = manager.entry("one", 3)
        tx.capture(second, lambda warmup: lambda: model.net(model.kept[0]))
    for _ in range(3):
        one.replay()
    with one.lease(), second.lease(), other.lease(), one.lease():
        other.replay()
        manager.evict("other")
    one.replay()
    manager.close()


class OneByOne:
    """A witness that hides from the runtime that the recorder behind it takes leases in one word."""

    def __init__(self, ring: Ring) -> None:
        self.step, self.notice = ring.step, ring.notice


def test_a_lease_told_in_one_word_is_recorded_as_its_two_steps() -> None:
    in_one_word, one_by_one = Ring(), Ring()
    told: list[str] = []
    taken = in_one_word.acquired

    def acquired(entry: Entry, component: ComponentRecord | None, thread: int) -> None:
        told.append(entry.name)
        taken(entry, component, thread)

    in_one_word.acquired = acquired
    serve(in_one_word)
    serve(OneByOne(one_by_one))
    assert len(told) > 5
    steps, expected = (
        [each._replace(t_ns=0) for each in check_and_read(ring) if each.event in LEASES | FOLLOWERS]
        for ring in (in_one_word, one_by_one)
    )
    assert steps == expected
    assert {each.stream for each in steps if each.event == "release"} == {0}


def test_a_checked_manager_is_told_of_each_step() -> None:
    model, ring = Model(), Ring()
    manager = model.manager(check=True, observer=ring)
    ((entry, _),) = model.bind(manager, "low")
    assert entry.told is None
    entry.replay()
    manager.close()
    assert check_and_read(ring)


def test_a_step_tells_who_what_when_where_and_why(good: Lines) -> None:
    begin = next(each for each in events(good) if isinstance(each, TransitionRecord) and each.event == "capture_begin")
    assert (begin.machine, begin.entity, begin.source, begin.target) == ("entry", "net[8] (profile)", "EAGER", "CAPTURING")
    assert begin.guard.startswith("gate free & pool not retired")
    assert (begin.pool, begin.transaction, begin.thread) == ("profile/1", "profile/1", 1)
    assert begin.values is not None
    assert begin.values["component.held"] == 1
    assert begin.values["gate.free"] is False


def test_a_lease_tells_its_stream_and_thread_and_its_component_the_same_time(good: Lines) -> None:
    steps = [each for each in events(good) if isinstance(each, TransitionRecord)]
    release = next(index for index, each in enumerate(steps) if each.event == "release" and each.target == "BOUND")
    assert isinstance(steps[release].stream, int)
    follower = steps[release + 1]
    assert (follower.machine, follower.event) == ("component", "last_release")
    assert (follower.t_ns, follower.thread) == (steps[release].t_ns, steps[release].thread)


def test_bytes_are_those_charged_for_the_pool(good: Lines) -> None:
    charged = {each.bytes for each in events(good) if isinstance(each, TransitionRecord) and each.event == "reclaim"}
    assert charged - {0, None}


@pytest.mark.parametrize("what", ["answered", "epoch", "resident", "flushed"])
def test_what_no_table_knows_is_noticed(good: Lines, what: str) -> None:
    values = [each.value for each in events(good) if isinstance(each, NoticeRecord) and each.what == what]
    match what:
        case "answered":
            assert {"miss", "capacity", "not_serving"} & set(values)
        case "epoch":
            assert values == [1]
        case "resident":
            assert values == [False, True]
        case _:
            assert all(isinstance(value, int) for value in values)
            assert values


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_a_file_holds_what_a_ring_does(tmp_path: Path, good: Lines, name: str) -> None:
    with record(tmp_path / name) as recorder:
        record_run(recorder)
    report, expected = check(read(tmp_path / name)), judged(good)
    assert report.holds
    assert report.whole
    assert (report.events, report.taken, report.answers) == (expected.events, expected.taken, expected.answers)
    assert ((tmp_path / name).read_bytes()[:2] == b"\x1f\x8b") is name.endswith(".gz")


def test_small_chunks_make_the_same_trace(tmp_path: Path, good: Lines) -> None:
    with FileRecorder(tmp_path / "run.jsonl", chunk=1) as recorder:
        record_run(recorder)
    report = check(read(tmp_path / "run.jsonl"))
    assert report.holds
    assert report.events == judged(good).events


def test_a_file_that_was_not_closed_counts_as_truncated(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path / "run.jsonl", chunk=1)
    record_run(recorder)
    recorder._file.flush()
    with pytest.raises(TraceError, match="truncated"):
        check(read(tmp_path / "run.jsonl"))
    recorder.close()
    assert check(read(tmp_path / "run.jsonl")).holds
    recorder.close()


def test_events_beyond_the_limit_are_counted_and_the_trace_is_no_whole_one(tmp_path: Path, good: Lines) -> None:
    with FileRecorder(tmp_path / "run.jsonl", limit=50, chunk=10) as recorder:
        record_run(recorder)
    report = check(read(tmp_path / "run.jsonl"))
    assert (report.holds, report.whole) == (True, False)
    assert report.events + report.missing == judged(good).events


@pytest.mark.parametrize("size", [1, 20, 100])
def test_a_ring_keeps_the_last_events_and_counts_the_others(good: Lines, size: int) -> None:
    ring = Ring(size)
    record_run(ring)
    total = judged(good).events
    assert size <= len(ring) <= 2 * size + 20
    assert ring.dropped == total - len(ring)
    report = check(read_lines(ring.lines()))
    assert (report.holds, report.whole, report.missing) == (True, False, ring.dropped)
    window = [each for each in read_lines(ring.lines()) if isinstance(each, TransitionRecord | NoticeRecord)]
    assert [_what(each) for each in window] == [_what(each) for each in events(good)[-len(window) :]]


def _what(event: TransitionRecord | NoticeRecord) -> str:
    return event.event if isinstance(event, TransitionRecord) else event.what


def test_a_ring_can_be_read_while_it_records() -> None:
    model, ring = Model(), Ring()
    manager = model.manager(observer=ring)
    ((entry, _),) = model.bind(manager, "low")
    first = check(read_lines(ring.lines()))
    entry.replay()
    second = check(read_lines(ring.lines()))
    assert first.holds
    assert second.holds
    assert second.events == first.events + 4
    manager.close()


def test_a_ring_is_saved(tmp_path: Path) -> None:
    ring = Ring()
    record_run(ring)
    ring.save(tmp_path / "run.jsonl.gz")
    assert check(read(tmp_path / "run.jsonl.gz")).holds
    with pytest.raises(ConfigError, match="cannot be written"):
        ring.save(tmp_path / "nowhere" / "run.jsonl")


def test_threads_are_numbered_and_their_events_are_in_the_order_of_the_lock() -> None:
    model, ring = Model(), Ring(1_000_000)
    net = model.component("net", (4, 8))
    manager = model.serving(net, observer=ring)

    def work() -> None:
        for size in (3, 8, 5, 4):
            net(model.input(size))

    with running(*[work] * 4):
        pass
    manager.close()
    found = check_and_read(ring)
    assert {each.thread for each in found} == set(range(1, len({each.thread for each in found}) + 1))
    assert len({each.thread for each in found}) > 1


def test_managers_of_two_devices_share_a_recorder() -> None:
    ring = Ring(1_000_000)
    with running(lambda: record_run(ring), lambda: record_run(ring)):
        pass
    report = check(read_lines(ring.lines()))
    assert not report.broken
    assert report.entities["manager"] == 2


def test_the_log_keeps_no_manager_no_graph_and_no_routine() -> None:
    model, ring = Model(), Ring()
    component = model.component()
    manager = model.serving(component, observer=ring)
    component(model.input(3))
    routine, books = weakref.ref(component.routine), weakref.ref(manager._books)
    graph = weakref.ref(next(iter(manager._books.entries())).graph)
    del manager, component
    gc.collect()
    assert (routine(), books(), graph()) == (None, None, None)
    assert check(read_lines(ring.lines())).holds


def test_nothing_is_kept_of_what_has_ended() -> None:
    ring = Ring()
    for _ in range(3):
        record_run(ring)
    gc.collect()
    assert not ring._lanes.of
    assert not ring._lanes.rows
    assert not ring._transactions
    report = check(read_lines(ring.lines()))
    assert report.holds
    assert report.entities["manager"] == 3


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        record(tmp_path / "nowhere" / "run.jsonl")


def test_a_disk_that_is_full_stops_the_trace_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = FileRecorder(tmp_path / "run.jsonl", chunk=5)
    recorder._file.close()

    def full(*ignored: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder, "_file", type("Full", (), {"write": full, "writelines": full, "close": lambda self: None})())
    record_run(recorder)
    with pytest.raises(ConfigError, match="No space left on device"):
        recorder.close()


class FullStopError(BaseException):
    """Stands for an interrupt."""


def test_a_file_that_an_interrupt_has_left_a_hole_in_says_so(tmp_path: Path) -> None:
    recorder = FileRecorder(tmp_path / "run.jsonl", chunk=5)

    class Interrupted:
        def writelines(self, lines: object) -> None:
            raise FullStopError

        def __getattr__(self, name: str) -> object:
            return getattr(file, name)

    file, recorder._file = recorder._file, Interrupted()  # type: ignore[assignment]
    with pytest.raises(FullStopError):
        record_run(recorder)
    with pytest.raises(ConfigError, match="FullStopError"):
        recorder.close()


def test_an_interrupt_while_a_chunk_is_handed_on_keeps_nobody_waiting() -> None:
    class Interrupted:
        """A lock that an interrupt comes right behind."""

        def __init__(self) -> None:
            self.lock, self.came = threading.RLock(), 0

        def acquire(self, blocking: bool) -> bool:
            taken = self.lock.acquire(blocking)
            self.came += 1
            if self.came == 1:
                raise FullStopError
            return taken

        def __getattr__(self, name: str) -> object:
            return getattr(self.lock, name)

    ring = Ring(5)
    ring._spilling = lock = Interrupted()  # type: ignore[assignment]
    with pytest.raises(FullStopError):
        record_run(ring)
    with running(lambda: ring._cut(wait=True)):
        pass
    assert lock.came > 1


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "many"])
def test_a_count_that_is_none_is_refused(tmp_path: Path, count: Any) -> None:
    for make in (
        lambda: Ring(count),
        lambda: FileRecorder(tmp_path / "x", limit=count),
        lambda: FileRecorder(tmp_path / "x", chunk=count),
    ):
        with pytest.raises(ConfigError, match="positive count"):
            make()


def test_what_is_recorded_after_the_end_is_lost_and_hurts_nobody(tmp_path: Path) -> None:
    model = Model()
    recorder = FileRecorder(tmp_path / "run.jsonl", chunk=3)
    manager = model.manager(observer=recorder)
    ((entry, _),) = model.bind(manager, "low")
    recorder.close()
    before = (tmp_path / "run.jsonl").read_bytes()
    entry.replay()
    manager.close()
    assert (tmp_path / "run.jsonl").read_bytes() == before
    assert check(read(tmp_path / "run.jsonl")).holds


def check_and_read(ring: Ring) -> list[TransitionRecord]:
    """The steps of a ring whose trace is whole and right."""
    report = check(read_lines(ring.lines()))
    assert not report.broken
    assert report.whole
    return [each for each in read_lines(ring.lines()) if isinstance(each, TransitionRecord)]
