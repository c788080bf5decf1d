"""What a backend promises, example by example.

Subclass it, say how to make a device and a tensor, and let pytest collect it:

class TestMyBackend(BackendConformance):
    def make_backend(self):
        return MyBackend()

    def tensor(self, value):
        return torch.full((4,), value, device="mine")
"""

from __future__ import annotations

from typing import Any

import pytest

from cgstate.backends.base import Backend, CaptureErrorMode, Graph, MemoryPool, Stream
from cgstate.backends.undo import UndoLog
from cgstate.errors import ConfigError
from cgstate.runtime.manager import GraphManager
from cgstate.testing.stateful.subject import values

__all__ = ["BackendConformance"]


class BackendConformance:
    """Tests of one backend. Every test makes a backend of its own, unless `make_backend` returns a shared one."""

    def make_backend(self) -> Backend:
        """The device under test."""
        raise TypeError(f"{type(self).__name__} does not say which backend it tests")

    def tensor(self, value: float) -> Any:
        """A fresh tensor of the device, of any shape, full of ``value``; made by a kernel of the current stream."""
        raise TypeError(f"{type(self).__name__} does not say how tensors are made")

    def twice(self, x: Any) -> Any:
        """``x + x`` in fresh memory, by a kernel of the current stream."""
        return x + x

    @pytest.fixture(autouse=True)
    def _device(self) -> None:
        self.backend = self.make_backend()

    # -- helpers ------------------------------------------------------------------------------------------------------

    def capture(self, x: Any, pool: MemoryPool, stream: Stream) -> tuple[Graph, Any]:
        """A graph of `twice`, with its output, captured as the runtime does it."""
        backend, undo = self.backend, UndoLog()
        with backend.on_stream(stream), backend.recording_mode():
            self.twice(x)  # warm-up: libraries make what they need
        stream.synchronize()
        try:
            with backend.recording_mode():
                graph = backend.open_capture(pool, stream, CaptureErrorMode.thread_local, undo)
                output = self.twice(x)
                backend.close_capture(graph)
        except BaseException:
            undo.fail()
            raise
        undo.succeed()
        return graph, output

    def made(self) -> tuple[Any, MemoryPool, Stream]:
        """A static input, a pool and a stream to capture on."""
        x, pool, stream = self.tensor(1.0), self.backend.new_pool(), self.backend.new_stream(exclusive=True)
        self.backend.current_stream().synchronize()
        self.backend.prime_workspaces(pool, stream)
        return x, pool, stream

    # -- streams ------------------------------------------------------------------------------------------------------

    def test_exclusive_streams_have_handles_of_their_own(self) -> None:
        streams = [self.backend.new_stream(exclusive=True) for _ in range(40)]
        assert len({stream.handle for stream in streams}) == 40
        for stream in streams:
            stream.close()
            stream.close()

    def test_on_stream_makes_a_stream_current_and_puts_back_what_was(self) -> None:
        backend = self.backend
        before, stream = backend.current_handle(backend.index), backend.new_stream(exclusive=True)
        with backend.on_stream(stream):
            assert backend.current_handle(backend.index) == stream.handle == backend.current_stream().handle
        assert backend.current_handle(backend.index) == before

    def test_an_event_is_done_once_the_work_before_it_is(self) -> None:
        stream = self.backend.current_stream()
        self.tensor(1.0)
        event = stream.record()
        event.synchronize()
        assert event.done()

    def test_a_stream_waits_for_the_event_of_another(self) -> None:
        backend, other = self.backend, self.backend.new_stream(exclusive=True)
        x = self.tensor(3.0)
        other.wait(backend.current_stream().record())
        with backend.on_stream(other):
            assert values(self.twice(x)) == values(self.tensor(6.0))

    # -- captures -----------------------------------------------------------------------------------------------------

    def test_a_replay_computes_with_what_the_static_input_holds_then(self) -> None:
        x, pool, stream = self.made()
        graph, output = self.capture(x, pool, stream)
        for value in (2.0, 5.0):
            x.copy_(self.tensor(value))
            graph.replay()
            assert values(output) == values(self.tensor(2 * value))
        graph.destroy()

    def test_what_is_recorded_is_not_run(self) -> None:
        x, pool, stream = self.made()
        before = values(x)
        graph, _ = self.capture(x, pool, stream)
        assert values(x) == before
        graph.destroy()

    def test_a_capture_leaves_the_current_stream_and_the_generator_as_they_were(self) -> None:
        x, pool, stream = self.made()
        before = self.backend.footprint()
        graph, _ = self.capture(x, pool, stream)
        after = self.backend.footprint()
        assert (after.stream, after.generator, after.capturing) == (before.stream, before.generator, False)
        graph.destroy()

    def test_only_the_stream_that_is_captured_says_that_it_is_capturing(self) -> None:
        backend = self.backend
        _, pool, stream = self.made()
        undo = UndoLog()
        backend.open_capture(pool, stream, CaptureErrorMode.thread_local, undo)
        assert backend.capturing()
        assert stream.capturing()
        undo.fail()
        assert not backend.capturing()
        assert not stream.capturing()

    def test_a_capture_that_was_undone_leaves_nothing_and_the_next_one_succeeds(self) -> None:
        backend = self.backend
        x, pool, stream = self.made()
        backend.flush()
        before = backend.footprint()
        undo = UndoLog()
        backend.open_capture(pool, stream, CaptureErrorMode.thread_local, undo)
        self.twice(x)
        undo.fail()
        assert not undo.errors
        backend.flush()
        after = backend.footprint()
        assert (after.stream, after.generator, after.capturing) == (before.stream, before.generator, before.capturing)
        graph, output = self.capture(x, pool, stream)
        graph.replay()
        assert values(output) == values(self.tensor(2.0))
        graph.destroy()

    def test_a_graph_may_be_destroyed_twice_and_while_it_replays(self) -> None:
        x, pool, stream = self.made()
        graph, _ = self.capture(x, pool, stream)
        graph.replay()
        graph.destroy()
        graph.destroy()
        self.backend.current_stream().synchronize()

    def test_an_error_of_the_routine_is_no_error_of_the_device(self) -> None:
        assert self.backend.failure_kind(ValueError("mine")) is None
        assert self.backend.lost() is None

    # -- memory -------------------------------------------------------------------------------------------------------

    def test_a_pool_outlives_its_last_graph_until_it_is_dropped(self) -> None:
        x, pool, stream = self.made()
        graph, _ = self.capture(x, pool, stream)
        assert sum(pool.reserved_bytes().values()) > 0
        self.backend.current_stream().synchronize()
        graph.destroy()
        again, output = self.capture(x, pool, stream)
        again.replay()
        assert values(output) == values(self.tensor(2.0))
        again.destroy()

    def test_a_dropped_pool_gives_its_bytes_back_at_the_next_flush(self) -> None:
        backend = self.backend
        x, pool, stream = self.made()
        graph, output = self.capture(x, pool, stream)
        graph.replay()
        backend.current_stream().synchronize()
        key = pool.id
        del output
        graph.destroy()
        pool.drop()
        pool.drop()
        backend.clear_workspaces()
        backend.flush()
        assert not backend.footprint().pools.get(key)

    def test_pool_ids_are_never_given_out_twice(self) -> None:
        pools = [self.backend.new_pool() for _ in range(3)]
        ids = {pool.id for pool in pools}
        for pool in pools:
            pool.drop()
        assert len(ids | {self.backend.new_pool().id}) == 4

    def test_what_a_block_allocates_from_a_pool_is_the_pools(self) -> None:
        backend = self.backend
        _, pool, stream = self.made()
        before = sum(segment.live for segment in pool.segments())
        with backend.allocating_from(pool, stream):
            assert backend.current_handle(backend.index) == stream.handle
            kept = self.tensor(1.0)
        within = sum(segment.live for segment in pool.segments())
        assert within > before
        outside = self.tensor(1.0)
        assert sum(segment.live for segment in pool.segments()) == within
        assert values(kept) == values(outside)

    def test_what_is_held_in_a_pool_leaves_a_block_of_its_size_there(self) -> None:
        backend = self.backend
        _, pool, stream = self.made()
        size = 32 * backend.mebibyte
        before = [segment.reserved for segment in pool.segments()]
        held = backend.hold(pool, stream, size)
        assert sorted(segment.reserved for segment in pool.segments()) == sorted([*before, size])
        del held
        assert [segment.reserved for segment in pool.segments() if not segment.live] == [size]

    def test_work_that_is_not_recorded_takes_memory_from_a_pool_if_it_is_said_to(self) -> None:
        backend = self.backend
        pool, stream, x = backend.new_pool(), backend.new_stream(exclusive=True), self.tensor(1.0)
        stream.wait(backend.current_stream().record())
        before = backend.allocated_bytes()
        with backend.allocating_from(pool, stream):
            y = self.twice(x)
        taken = sum(segment.live for segment in pool.segments())
        assert (taken > 0) == backend.serves_unrecorded(x)
        assert taken == backend.allocated_bytes() - before
        stream.synchronize()
        del y

    def test_what_work_leaves_outside_of_pools_is_told_of_its_stream(self) -> None:
        backend = self.backend
        stream, other = (backend.new_stream(exclusive=True) for _ in range(2))
        assert not backend.cached_segments(stream)
        with backend.on_stream(stream):
            kept = self.tensor(1.0)
        stream.synchronize()
        (segment,) = backend.cached_segments(stream)
        assert segment.stream == stream.handle
        assert 0 < segment.live <= segment.reserved
        assert not backend.cached_segments(other)
        del kept
        assert [segment.live for segment in backend.cached_segments(stream)] == [0]
        backend.flush()
        assert not backend.cached_segments(stream)

    def test_something_that_is_no_pool_is_refused(self) -> None:
        with pytest.raises(ConfigError):
            self.backend.adopt_pool("no pool")

    # -- values -------------------------------------------------------------------------------------------------------

    def test_a_clone_is_memory_of_its_own_and_as_deep_as_the_output(self) -> None:
        x = self.tensor(1.0)
        copy = self.backend.clone({"a": (x, None)})
        x.copy_(self.tensor(2.0))
        assert values(copy["a"][0]) == values(self.tensor(1.0))
        assert self.backend.address(copy["a"][0]) != self.backend.address(x)

    def test_bytes_are_counted_once_for_each_storage(self) -> None:
        x = self.tensor(1.0)
        assert self.backend.nbytes((x, [x])) == self.backend.nbytes(x) > 0
        assert self.backend.storages((x, [x])) == self.backend.storages(x)
        assert list(self.backend.storages(x).values()) == [self.backend.nbytes(x)]

    def test_only_tensors_have_an_address(self) -> None:
        with pytest.raises(ConfigError):
            self.backend.address(3)

    # -- with the runtime ---------------------------------------------------------------------------------------------

    def test_a_manager_captures_replays_and_leaves_nothing(self) -> None:
        x = self.tensor(1.0)
        self.backend.current_stream().synchronize()
        with GraphManager(self.backend, check=True) as manager:
            entry = manager.entry("twice", 0)
            with manager.transaction() as transaction:
                transaction.capture(entry, lambda warmup: lambda: self.twice(x))
            x.copy_(self.tensor(4.0))
            with entry.lease() as lease:
                lease.replay()
                assert values(lease.output) == values(self.tensor(8.0))
        assert manager.memory().total == 0
