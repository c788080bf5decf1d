"""Leases through the public door: who may replay and read, until when, and what a refusal says (I2, I8, I10)."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import SimTensor
from cgstate.backends.sim.errors import SimAcceleratorError
from cgstate.backends.sim.faults import InjectedFault
from tests.runtime.helpers import PATIENCE, Model, counts, elsewhere, running


@pytest.fixture(params=["checked", "fast"])
def checked(request: pytest.FixtureRequest) -> bool:
    """Whether replays go the long way, or the hot path."""
    return bool(request.param == "checked")


def state_of(entry: cgstate.Entry) -> str:
    """The state now: mypy believes that it stays as a test narrowed it."""
    return entry.state.value


class TestStates:
    def test_a_lease_moves_entry_and_component_to_replaying_and_back(self) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        entry = manager.entry("net", 4)
        with entry.lease():
            assert (state_of(entry), net.state) == ("REPLAYING", "REPLAYING")
            with entry.lease():
                assert entry.leases == 2
            assert (state_of(entry), net.state) == ("REPLAYING", "REPLAYING")
        assert (state_of(entry), net.state, entry.leases) == ("BOUND", "BOUND", 0)

    def test_an_evicted_entry_stays_until_its_last_lease_ends(self) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net)
        entry = manager.entry("net", 4)
        with entry.lease() as first:
            with entry.lease():
                first.replay()
                assert manager.evict("net") == 2
                assert (state_of(entry), net.state) == ("REPLAYING", "REPLAYING")
                with pytest.raises(cgstate.IllegalTransition) as refusal, entry.lease():
                    pass
                assert refusal.value.guard == "not retiring"
            assert state_of(entry) == "REPLAYING"
        assert (state_of(entry), net.state) == ("EVICTED", "EVICTED")

    def test_a_retiring_entry_is_not_replayed_any_more_and_its_output_has_expired(self) -> None:
        model = Model()
        manager = model.serving(model.component())
        with manager.entry("net", 4).lease() as lease:
            lease.replay()
            manager.evict("net")
            with pytest.raises(cgstate.OutputExpired):
                _ = lease.output
            with pytest.raises(cgstate.IllegalTransition, match="not retiring"):
                lease.replay()

    def test_no_second_lease_where_the_component_forbids_it(self) -> None:
        model = Model()
        net = model.component(concurrent_leases=False)
        manager = model.serving(net)
        entry = manager.entry("net", 4)
        x = model.input(4)
        with entry.lease():
            with pytest.raises(cgstate.IllegalTransition) as refusal, entry.lease():
                pass
            assert refusal.value.guard == "concurrent leases allowed"
            assert net(x).tolist() == model.net(x).tolist()
        assert counts(manager) == {"unavailable": 1}

    def test_a_lease_is_entered_once_at_a_time_and_again_after_it_ended(self) -> None:
        model = Model()
        manager = model.manager()
        [(entry, _)] = model.bind(manager, "low")
        lease = entry.lease()
        with lease:
            with pytest.raises(cgstate.IllegalTransition, match="not held already"), lease:
                pass
            assert entry.leases == 1
        with lease:
            assert entry.leases == 1

    @pytest.mark.parametrize("interruption", [ValueError, KeyboardInterrupt])
    def test_an_exception_in_the_block_ends_the_lease(self, interruption: type[BaseException]) -> None:
        model = Model()
        manager = model.manager()
        [(entry, _)] = model.bind(manager, "low")
        with pytest.raises(interruption), entry.lease():
            raise interruption
        assert (state_of(entry), entry.leases) == ("BOUND", 0)


class TestOutputs:
    def test_a_component_hands_out_outputs_of_its_own(self) -> None:
        model = Model()
        net = model.component()
        _manager = model.serving(net)
        first = net(model.input(4, 1.0))
        kept = first.tolist()
        net(model.input(4, 2.0)).tolist()
        assert first.tolist() == kept == model.net(model.input(4, 1.0)).tolist()

    def test_what_a_lease_reads_is_the_last_replay_under_it(self) -> None:
        model = Model()
        manager = model.manager()
        [(entry, static)] = model.bind(manager, "low")
        with entry.lease() as lease:
            with pytest.raises(cgstate.OutputExpired):
                _ = lease.output
            static.copy_(model.input(2, 3.0))
            lease.replay()
            assert isinstance(lease.output, SimTensor)
            assert lease.output.tolist() == model.net(model.input(2, 3.0)).tolist()
        with pytest.raises(cgstate.OutputExpired):
            _ = lease.output

    def test_a_lease_that_is_entered_again_does_not_show_the_output_of_another_generation(self) -> None:
        model = Model()
        manager = model.manager()
        [(entry, _)] = model.bind(manager, "low")
        lease = entry.lease()
        with lease:
            lease.replay()
        manager.evict("low")
        model.bind(manager, "low")
        entry.replay()  # the new pool has seen as many replays as the old one had
        with lease, pytest.raises(cgstate.OutputExpired):
            _ = lease.output

    @pytest.mark.parametrize("how", ["replay", "call", "other entry"])
    def test_a_leased_output_expires_at_the_next_replay_of_its_pool(self, how: str) -> None:
        model = Model()
        net = model.leased()
        manager = model.serving(net)
        with net(model.input(4)) as out:
            assert out.value.tolist() == model.net(model.input(4)).tolist()
            match how:
                case "replay":
                    manager.entry("net", 4).replay()
                case "call":
                    net(model.input(4)).release()
                case "other entry":
                    net(model.input(8)).release()
            assert out.expired
            reads: list[Callable[[], object]] = [lambda: out.value, out.copy]
            for read in reads:
                with pytest.raises(cgstate.OutputExpired, match="copy it before the next replay"):
                    read()
        assert manager.entry("net", 4).leases == 0

    def test_a_replay_in_another_pool_expires_nothing(self) -> None:
        model = Model()
        net, other = model.leased("net"), model.component("other")
        _manager = model.serving(net, other, isolation="per_component")
        with net(model.input(4)) as out:
            other(model.input(4))
            assert out.value.tolist() == model.net(model.input(4)).tolist()

    def test_a_launch_that_raised_expires_what_it_may_have_overwritten(self) -> None:
        model = Model()
        net = model.leased()
        _manager = model.serving(net)
        with net(model.input(4, 1.0)) as out:
            model.dev.faults.inject("graph_replay", when="after")  # it was launched all the same
            with pytest.raises(InjectedFault):
                net(model.input(8, 2.0))
            assert out.expired

    def test_inputs_that_could_not_be_copied_expire_what_they_may_have_overwritten(self) -> None:
        model = Model()

        class Identity(cgstate.BucketedRoutine[..., SimTensor]):
            raises = False

            def copy_runtime_inputs(self, *args: Any, **kwargs: Any) -> None:
                super().copy_runtime_inputs(*args, **kwargs)
                if self.raises:
                    raise ValueError("copied half")

        def same(x: SimTensor) -> SimTensor:
            return x

        routine = Identity(same, model.example)
        net = cgstate.LeasedComponent("net", routine, (4, 8))
        _manager = model.serving(net)
        with net(model.input(3, 1.0)) as out:
            assert out.value.tolist() == model.input(3, 1.0).tolist()
            routine.raises = True
            with pytest.raises(ValueError, match="copied half"):
                net(model.input(3, 2.0))
            assert out.expired

    def test_release_ends_the_lease_once(self) -> None:
        model = Model()
        net = model.leased()
        manager = model.serving(net)
        out = net(model.input(4))
        assert net.state == "REPLAYING"
        out.release()
        out.release()
        assert net.state == "BOUND"
        assert manager.entry("net", 4).leases == 0
        with pytest.raises(cgstate.OutputExpired):
            _ = out.value

    def test_a_copy_outlives_the_lease(self) -> None:
        model = Model()
        net = model.leased()
        _manager = model.serving(net)
        with net(model.input(4, 1.0)) as out:
            mine = out.copy()
        net(model.input(4, 2.0)).release()
        assert mine.tolist() == model.net(model.input(4, 1.0)).tolist()

    def test_replays_wait_for_a_copy_on_another_stream(self) -> None:
        model = Model()
        net = model.leased()
        _manager = model.serving(net)
        side = model.dev.new_stream()
        out = net(model.input(4, 1.0))
        with model.dev.on_stream(side):
            mine = out.copy()
        out.release()
        net(model.input(4, 2.0)).release()
        model.dev.synchronize()
        with model.dev.on_stream(side):
            assert mine.tolist() == model.net(model.input(4, 1.0)).tolist()

    def test_a_copy_on_another_stream_keeps_the_memory_until_it_is_done(self) -> None:
        model = Model()
        net = model.leased()
        manager = model.serving(net)
        side = model.dev.new_stream()
        out = net(model.input(4, 1.0))
        with model.dev.on_stream(side):
            mine = out.copy()
        out.release()
        model.dev.current_stream().synchronize()
        manager.evict("net")
        manager.memory()
        assert manager.entry("net", 4).unreclaimed == 1, "the copy is still to come"
        model.dev.synchronize()
        manager.memory()
        assert manager.entry("net", 4).unreclaimed == 0
        with model.dev.on_stream(side):
            assert mine.tolist() == model.net(model.input(4, 1.0)).tolist()

    def test_an_eager_answer_is_wrapped_and_never_expires(self) -> None:
        model = Model()
        net = model.leased()
        manager = model.serving(net)
        with net(model.input(9)) as out:
            net(model.input(4)).release()
            assert not out.expired
        assert out.value.tolist() == out.copy().tolist() == model.net(model.input(9)).tolist()
        assert counts(manager) == {"miss": 1}

    def test_a_copy_inside_a_capture_is_refused_and_breaks_nothing(self) -> None:
        model = Model()
        net = model.leased()
        manager = model.serving(net, isolation="per_component")
        refusals: list[cgstate.CaptureActive] = []
        with net(model.input(4)) as out:

            def body() -> SimTensor:
                with pytest.raises(cgstate.CaptureActive) as refusal:
                    out.copy()
                refusals.append(refusal.value)
                return model.net(static)

            static = model.dev.zeros(2, 4)
            with manager.transaction() as tx:
                tx.capture(manager.entry("low", 1), lambda warmup: body)
            assert refusals
            assert out.copy().tolist() == model.net(model.input(4)).tolist()


class TestDropped:
    def test_a_dropped_output_ends_its_lease_at_the_next_operation(self, caplog: pytest.LogCaptureFixture) -> None:
        model = Model()
        net = model.leased()
        manager = model.serving(net)
        out = net(model.input(4))
        del out
        assert "dropped without release" in caplog.text
        manager.memory()
        assert manager.entry("net", 4).leases == 0

    def test_a_cycle_that_drops_an_output_is_no_different(self) -> None:
        model = Model()
        net = model.leased()
        manager = model.serving(net)
        cycle: list[Any] = [net(model.input(4))]
        cycle.append(cycle)
        del cycle
        gc.collect()
        manager.memory()
        assert manager.entry("net", 4).leases == 0

    def test_calls_alone_end_the_leases_of_dropped_outputs(self, checked: bool) -> None:
        model = Model()
        net = model.leased(concurrent_leases=False)
        manager = model.serving(net, check=checked)
        for _ in range(5):
            net(model.input(4))
        assert counts(manager) == {}
        assert manager.entry("net", 4).leases <= 1

    @pytest.mark.parametrize("ending", ["close", "release"])
    def test_a_dropped_output_does_not_hold_up_the_end(self, ending: str) -> None:
        model = Model()
        net = model.leased()
        manager = model.serving(net)
        out = net(model.input(4))
        del out
        getattr(manager, ending)()
        assert manager.memory().total == 0

    def test_a_waiting_close_learns_of_an_output_that_another_thread_drops(self) -> None:
        model = Model()
        net = model.leased()
        manager = model.serving(net)
        held = [elsewhere(lambda: net(model.input(4)))]
        waiting = threading.Event()

        def drop() -> None:
            while not manager._books.gate.waiting:
                waiting.wait(0.001)
            held.clear()

        with running(drop):
            manager.close(timeout=10)
        assert manager.state == "CLOSED"


def test_of_two_threads_that_wait_for_one_lease_one_gets_it(checked: bool) -> None:
    model = Model()
    manager = model.serving(model.component(), check=checked)
    entry, x = manager.entry("net", 4), model.input(2)
    lease, capturing, both = entry.lease(), threading.Event(), threading.Event()
    answers: list[str] = []

    def capture() -> None:
        def body() -> SimTensor:
            capturing.set()
            both.wait(PATIENCE)
            return model.net(x)

        with manager.transaction() as transaction:
            transaction.capture(manager.entry("low", 1), lambda warmup: body)

    def use() -> None:
        capturing.wait(PATIENCE)
        try:
            with lease:
                while len(answers) < 1:
                    time.sleep(0.001)
                lease.replay()
            answers.append("replayed")
        except cgstate.IllegalTransition as refusal:
            answers.append(refusal.guard)

    with running(capture, use, use):
        while manager._books.gate.waiting < 2:
            time.sleep(0.001)
        both.set()
    assert answers == ["this lease is not held already", "replayed"]
    assert entry.leases == 0
    manager.close(timeout=PATIENCE)


class TestFailedLaunch:
    @pytest.mark.parametrize("door", ["replay", "lease", "call"])
    def test_a_launch_that_raises_fails_the_entry_and_frees_it(self, door: str, checked: bool) -> None:
        model = Model()
        net = model.component()
        manager = model.serving(net, check=checked)
        entry = manager.entry("net", 4)
        for _ in range(3):
            entry.replay()  # the first asks, the second seals, the third is sealed already
        model.dev.faults.inject("graph_replay")
        with pytest.raises(InjectedFault):  # noqa: PT012 - one of these acts
            match door:
                case "replay":
                    entry.replay()
                case "lease":
                    with entry.lease() as lease:
                        lease.replay()
                case "call":
                    net(model.input(4))
        assert (state_of(entry), entry.leases, net.state) == ("FAILED", 0, "BOUND")
        assert manager.stats().components["net"].hits == 3
        assert manager.stats().components["net"].failures == {"USER": 1}
        with pytest.raises(cgstate.IllegalTransition):
            entry.replay()
        assert net(model.input(4)).tolist() == model.net(model.input(4)).tolist()
        manager.forget_failures()
        model.dev.synchronize()
        manager.capture_and_bind()
        entry.replay()

    def test_other_leases_outlast_the_failure_but_none_is_given(self) -> None:
        model = Model()
        manager = model.manager()
        [(entry, _)] = model.bind(manager, "low")
        with entry.lease() as other:
            other.replay()
            model.dev.faults.inject("graph_replay")
            with pytest.raises(InjectedFault), entry.lease() as lease:
                lease.replay()
            assert (state_of(entry), entry.leases) == ("REPLAYING", 1)
            with pytest.raises(cgstate.IllegalTransition, match="not failed"):
                other.replay()
            with pytest.raises(cgstate.IllegalTransition, match="not failed"), entry.lease():
                pass
        assert state_of(entry) == "FAILED"

    def test_failure_beats_retirement(self) -> None:
        model = Model()
        manager = model.manager()
        [(entry, _)] = model.bind(manager, "low")
        with entry.lease():
            model.dev.faults.inject("graph_replay")
            with pytest.raises(InjectedFault), entry.lease() as lease:
                lease.replay()
            manager.evict("low")
        assert state_of(entry) == "FAILED"

    @pytest.mark.parametrize("method", ["copy_runtime_inputs", "output_after_replay"])
    def test_an_exception_of_the_routine_is_a_plain_release(self, method: str) -> None:
        model = Model()
        net = model.component()
        right, broken = getattr(net.routine, method), [False]

        def sometimes(*args: object) -> object:
            if broken[0]:
                raise KeyError("mine")
            return right(*args)

        setattr(net.routine, method, sometimes)
        manager = model.serving(net)
        broken[0] = True
        with pytest.raises(KeyError, match="mine"):
            net(model.input(4))
        broken[0] = False
        assert state_of(manager.entry("net", 4)) == "BOUND"
        assert net(model.input(4)).tolist() == model.net(model.input(4)).tolist()


class TestRefusals:
    def test_a_refusal_names_everything_and_changes_nothing(self) -> None:
        model = Model()
        manager = model.serving(model.component())
        entry = manager.entry("net", 4)
        manager.evict("net")
        before = (state_of(entry), entry.leases, manager.stats())
        with pytest.raises(cgstate.IllegalTransition) as refusal:
            entry.replay()
        error = refusal.value
        assert (error.machine, error.entity, error.state, error.event) == ("entry", "net[4]", "EVICTED", "acquire")
        assert "net[4]" in str(error)
        assert "EVICTED" in str(error)
        assert "acquire" in str(error)
        assert (state_of(entry), entry.leases, manager.stats()) == before
        model.dev.synchronize()
        manager.capture_and_bind()
        entry.replay()

    @pytest.mark.parametrize("door", ["entry.replay", "lease", "held lease"])
    def test_no_replay_inside_a_capture_of_this_thread(self, door: str) -> None:
        model = Model()
        manager = model.serving(model.component(), isolation="per_component")
        entry = manager.entry("net", 4)
        held = entry.lease()
        refused: list[bool] = []
        static = model.dev.zeros(2, 4)

        def replay() -> None:
            match door:
                case "entry.replay":
                    entry.replay()
                case "lease":
                    with entry.lease() as lease:
                        lease.replay()
                case "held lease":
                    held.replay()

        def body() -> SimTensor:
            with pytest.raises(cgstate.CaptureActive):
                replay()
            refused.append(True)
            return model.net(static)

        with held:
            held.replay()
            with manager.transaction() as tx:
                tx.capture(manager.entry("low", 1), lambda warmup: body)
            assert len(refused) >= 2, "warm-up and capture"
            held.replay()
        assert state_of(entry) == "BOUND"
        assert manager.stats().components["net"].failures == {}

    def test_a_lease_held_over_the_loss_of_the_device_is_not_replayed(self) -> None:
        model = Model()
        manager = model.manager()
        [(entry, _), (other, _)] = model.bind(manager, "low", "other")
        with entry.lease() as lease:
            model.dev.lose()
            with pytest.raises(SimAcceleratorError):
                other.replay()
            assert manager.state == "POISONED"
            launches = model.dev.faults.calls["graph_replay"]
            with pytest.raises(cgstate.ManagerPoisoned):
                lease.replay()
            assert model.dev.faults.calls["graph_replay"] == launches


class TestHotPath:
    @pytest.mark.parametrize("act", ["replay", "other stream", "evict", "fail", "leased"])
    def test_the_hot_path_does_what_the_long_way_does(self, act: str) -> None:
        seen: list[object] = []
        for check in (True, False):
            model = Model()
            manager = model.manager(check=check)
            [(entry, static), (other, _)] = model.bind(manager, "low", "other")
            static.copy_(model.input(2, 5.0))
            entry.replay()
            if act == "fail":
                model.dev.faults.inject("graph_replay")
            if act == "evict":
                manager.evict("low")
            try:
                if act == "other stream":
                    with model.dev.on_stream(model.dev.new_stream()):
                        entry.replay()
                elif act == "leased":
                    with entry.lease():
                        entry.replay()
                entry.replay()
                entry.replay()
            except (InjectedFault, cgstate.IllegalTransition) as error:
                seen.append(repr(error))
            manager.memory()
            stats = manager.stats()
            seen.append((state_of(entry), state_of(other), entry.leases, stats.components, stats.reclaims, manager.state))
        half = len(seen) // 2
        assert seen[:half] == seen[half:]

    def test_the_hot_path_is_taken(self) -> None:
        model = Model()
        manager = model.manager(check=False)
        [(entry, _)] = model.bind(manager, "low")
        entry.replay()
        calls = dict(model.dev.faults.calls)
        for _ in range(10):
            entry.replay()
        made = {name: count - calls.get(name, 0) for name, count in model.dev.faults.calls.items()}
        assert {name: count for name, count in made.items() if count} == {"graph_replay": 10}


def test_an_output_whose_entry_was_evicted_says_so() -> None:
    model = Model()
    manager = model.manager()
    ((entry, _),) = model.bind(manager, "low")
    net = model.leased("net", (4,))
    serving = model.serving(net)
    with entry.lease() as lease, net(model.input(4)) as output:
        lease.replay()
        assert lease.output is not None
        manager.evict("low")
        serving.evict("net")
        for read in (lambda: lease.output, lambda: output.value):
            with pytest.raises(cgstate.OutputExpired, match="retired under this lease"):
                read()
    serving.close()
    manager.close()
