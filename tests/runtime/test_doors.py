"""The two doors, where they meet, and what a user may do at them that nobody thought of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

import cgstate
from cgstate.backends.sim import SimBackend, kernels


@pytest.fixture
def backend() -> SimBackend:
    return SimBackend()


def bucketed(backend: SimBackend) -> cgstate.BucketedRoutine[[Any], Any]:
    return cgstate.BucketedRoutine(kernels.relu, lambda n: (backend.sim.zeros(n, 2),))


def test_a_transaction_may_be_committed_before_its_block_ends(backend: SimBackend) -> None:
    manager = cgstate.GraphManager(backend, check=True)
    static = backend.sim.zeros(2)
    entry = manager.entry("a", 1)
    with manager.transaction() as transaction:
        transaction.capture(entry, lambda warmup: lambda: kernels.relu(static))
        transaction.commit()
    entry.replay()
    assert manager.state is cgstate.ManagerState.SERVING


def test_an_error_after_an_early_commit_leaves_what_is_bound_serving(backend: SimBackend) -> None:
    manager = cgstate.GraphManager(backend, check=True)
    static = backend.sim.zeros(2)
    entry = manager.entry("a", 1)

    def capture_and_stumble() -> None:
        with manager.transaction() as transaction:
            transaction.capture(entry, lambda warmup: lambda: kernels.relu(static))
            transaction.commit()
            raise KeyError("afterwards")

    with pytest.raises(KeyError):
        capture_and_stumble()
    entry.replay()
    manager.release()


def test_an_entry_of_a_component_with_a_routine_is_not_captured_by_hand(backend: SimBackend) -> None:
    manager = cgstate.GraphManager(backend, check=True)
    component = cgstate.Component("c", bucketed(backend), [4])
    manager.prepare([component])
    entry = manager.entry("c", 4)
    with pytest.raises(cgstate.ConfigError, match="routine"), manager.transaction() as transaction:
        transaction.capture(entry, lambda warmup: lambda: None)
    manager.capture_and_bind()
    entry.replay()


def test_a_dependency_of_low_level_entries_retires_them(backend: SimBackend) -> None:
    manager = cgstate.GraphManager(backend, check=True)
    static = backend.sim.zeros(2)
    entry = manager.entry("a", 1, dependencies=["kv_cache"])
    with manager.transaction() as transaction:
        transaction.capture(entry, lambda warmup: lambda: kernels.relu(static))
    assert manager.invalidate("kv_cache") == 1
    with pytest.raises(cgstate.IllegalTransition):
        entry.replay()


class Tuned(cgstate.BucketedRoutine[[Any], Any]):
    """Takes an option of its own."""

    gain = 1.0

    def configure(self, options: Mapping[str, object]) -> None:
        gain = options.get("gain", 1.0)
        if not isinstance(gain, float):
            raise TypeError("gain must be a float")
        self.gain = gain


@pytest.mark.parametrize(("gain", "fine"), [(2.0, True), ("loud", False)])
def test_a_components_own_keys_reach_its_routine(backend: SimBackend, gain: object, fine: bool) -> None:
    routine = Tuned(kernels.relu, lambda n: (backend.sim.zeros(n, 2),))
    component = cgstate.Component("c", routine, [4], supported_config_keys=["gain"])
    manager = cgstate.GraphManager(backend)
    if fine:
        manager.prepare([component], {"c": {"gain": gain}})
        assert routine.gain == gain
        return
    with pytest.raises(cgstate.ConfigError, match="gain"):
        manager.prepare([component], {"c": {"gain": gain}})
    assert manager.state is cgstate.ManagerState.NEW


def test_what_is_no_tensor_of_the_bucketed_kind_is_answered_eagerly(backend: SimBackend) -> None:
    calls: list[object] = []

    def call(x: Any) -> Any:
        calls.append(x)
        return x

    component = cgstate.Component("c", cgstate.BucketedRoutine(call, lambda n: (backend.sim.zeros(n, 2),)), [4])
    manager = cgstate.GraphManager(backend, check=True)
    manager.prepare([component])
    manager.capture_and_bind()
    odd: Iterable[Any] = ([1, 2], 3, None, backend.sim.rand(1).reshape())
    for value in odd:
        assert component(value) is value
    assert manager.stats().components["c"].hits == 0


class Picky(cgstate.BucketedRoutine[[Any], Any]):
    """Cannot make the static inputs of its smallest size."""

    def allocate_buffers(self, descriptor: int) -> tuple[object, ...]:
        if descriptor == 2:
            raise MemoryError("no room")
        return super().allocate_buffers(descriptor)


def test_inputs_that_cannot_be_made_go_into_the_estimate(backend: SimBackend) -> None:
    manager = cgstate.GraphManager(backend, check=True)
    manager.prepare([cgstate.Component("c", Picky(kernels.relu, lambda n: (backend.sim.zeros(n, 2),)), [8, 4, 2])])
    estimate = manager.profile_memory()
    assert not estimate.trusted
    errors = [sample.error for sample in estimate.samples if sample.error]
    assert errors
    assert all(error.endswith("MemoryError: no room") for error in errors)
    assert manager.state is cgstate.ManagerState.PREPARED


def test_after_a_poisoned_close_nothing_looks_bound_and_nothing_runs_on_the_lost_device(backend: SimBackend) -> None:
    component = cgstate.Component("c", bucketed(backend), [4])
    manager = cgstate.GraphManager(backend)
    manager.prepare([component])
    manager.capture_and_bind()
    x = backend.sim.rand(4, 2)
    backend.sim.lose()
    with pytest.raises(Exception, match=r"lost|assert"):
        component(x)
    manager.close()
    assert not component.is_bound
    assert component.available_descriptors == frozenset()
    with pytest.raises(cgstate.ManagerPoisoned):
        component(x)


class Foreign:
    """Looks like a tensor of another library."""

    shape = (4, 2)
    dtype = "float32"

    def zero_(self) -> None: ...


@pytest.mark.parametrize("where", ["inputs", "outputs"])
def test_the_simulator_refuses_tensors_that_it_would_not_compute(backend: SimBackend, where: str) -> None:
    example = (lambda n: (Foreign(),)) if where == "inputs" else (lambda n: (backend.sim.zeros(n, 2),))

    def call(x: Any) -> Any:
        return backend.sim.zeros(4, 2) if where == "inputs" else Foreign()

    component = cgstate.Component("c", cgstate.BucketedRoutine(call, example), [4])
    manager = cgstate.GraphManager(backend, check=True)
    manager.prepare([component])
    with pytest.raises(cgstate.CaptureFailed) as caught:
        manager.capture_and_bind()
    assert isinstance(caught.value.__cause__, cgstate.ConfigError)
    assert "simulated kernels and torch" in str(caught.value)
    assert not component.is_bound


def test_a_backend_class_is_no_backend() -> None:
    with pytest.raises(cgstate.ConfigError, match="or a backend"):
        cgstate.GraphManager(SimBackend)  # type: ignore[arg-type]
