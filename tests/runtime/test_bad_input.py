"""Bad input is a typed error, changes nothing, and the same call works once it is cured."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from threading import Thread
from typing import Any, cast

import pytest

from cgstate import (
    CaptureActive,
    CaptureFailed,
    CaptureMode,
    CGStateError,
    Component,
    ConfigError,
    GraphManager,
    IllegalTransition,
    ManagerClosed,
    ManagerState,
    WrongThread,
)
from cgstate.backends.sim import SimBackend, SimDevice, SimTensor, captured
from tests.runtime.failing import Bench, Odd, Toy
from tests.runtime.helpers import elsewhere

Act = Callable[[Bench], object]


def snapshot(bench: Bench) -> tuple[object, ...]:
    """Everything that a refusal must leave alone."""
    books = bench.books
    return (
        bench.states(),
        bench.footprint(),
        bench.manager.stats().components,
        {name: sorted(map(repr, record.entries)) for name, record in books.components.items()},
        {name: dependency.epoch for name, dependency in books.dependencies.items()},
        len(books.negative),
        sorted(domain.name for domain in books.domains.values()),
    )


def refused(bench: Bench, act: Act, *kinds: type[BaseException]) -> BaseException:
    """The act raises one of ``kinds`` and changes nothing."""
    before = snapshot(bench)
    with pytest.raises(kinds or (CGStateError,)) as caught:
        act(bench)
    assert snapshot(bench) == before
    bench.quiet()
    return caught.value


WRONG_CALLS: dict[str, Act] = {
    "evict an unknown component": lambda b: b.manager.evict("tyo"),
    "evict an unknown descriptor": lambda b: b.manager.evict("toy", 5),
    "evict an unhashable descriptor": lambda b: b.manager.evict("toy", [4]),  # type: ignore[arg-type]
    "evict a component by number": lambda b: b.manager.evict(5),  # type: ignore[arg-type]
    "evict a component by list": lambda b: b.manager.evict(["toy"]),  # type: ignore[arg-type]
    "invalidate what nobody declared": lambda b: b.manager.invalidate("weights"),
    "invalidate one known and one unknown": lambda b: b.manager.invalidate("kv", "weights"),
    "invalidate a list": lambda b: b.manager.invalidate(["kv"]),  # type: ignore[arg-type]
    "an unknown dependency": lambda b: b.manager.dependency("weights"),
    "forget failures of an unknown component": lambda b: b.manager.forget_failures("tyo"),
    "forget failures of a list": lambda b: b.manager.forget_failures(["toy"]),  # type: ignore[arg-type]
    "an entry of no component": lambda b: b.manager.entry("", 4),
    "an entry of a component by number": lambda b: b.manager.entry(5, 4),  # type: ignore[arg-type]
    "an entry of None": lambda b: b.manager.entry("own", None),
    "an entry of something unhashable": lambda b: b.manager.entry("own", [4]),  # type: ignore[arg-type]
    "an entry of something compared by address": lambda b: b.manager.entry("own", object()),
    "an entry of something unequal to itself": lambda b: b.manager.entry("own", float("nan")),
    "an entry of something whose hash raises": lambda b: b.manager.entry("own", Odd("__hash__")),
    "an entry of something whose comparison raises": lambda b: b.manager.entry("own", Odd("__eq__")),
    "an entry of something whose comparison is an array": lambda b: b.manager.entry("own", Odd("")),
    "an entry of something whose text raises": lambda b: b.manager.entry("own", Odd("__repr__")),
    "an entry that depends on a name of nothing": lambda b: b.manager.entry("own", 4, dependencies=[""]),
    "evict something whose hash raises": lambda b: b.manager.evict("toy", Odd("__hash__")),
    "a capture with progress in numbers": lambda b: b.manager.capture_and_bind(progress=5),  # type: ignore[arg-type]
    "reclaiming with a flush in numbers": lambda b: b.manager.reclaim(flush=5),  # type: ignore[arg-type]
    "a second prepare": lambda b: b.manager.prepare([]),
    "a second prepare of the same": lambda b: b.manager.prepare([b.component]),
    "a profile while serving": lambda b: b.manager.profile_memory(),
    "a release that waits for words": lambda b: b.manager.release(timeout="1"),  # type: ignore[arg-type]
    "a release that waits for less than nothing": lambda b: b.manager.release(timeout=-1),
    "a release that waits for no number": lambda b: b.manager.release(timeout=float("nan")),
    "a release that waits for longer than can be waited": lambda b: b.manager.release(timeout=1e10),
    "a close that waits for longer than can be told": lambda b: b.manager.close(timeout=10**400),
    "a release that waits for True": lambda b: b.manager.release(timeout=True),
    "a close that waits for words": lambda b: b.manager.close(timeout="1"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_wrong_call_of_the_manager_changes_nothing(name: str) -> None:
    bench = Bench(component={"dependencies": ["kv"]}).serving()
    refused(bench, WRONG_CALLS[name])
    bench.answers()
    bench.manager.invalidate("kv")
    bench.manager.capture_and_bind()
    bench.answers()
    bench.manager.release(timeout=0)
    bench.manager.close(timeout=0.5)


def test_a_second_prepare_is_refused_by_the_table_whatever_it_is_given() -> None:
    bench = Bench().serving()
    for act in (WRONG_CALLS["a second prepare"], WRONG_CALLS["a second prepare of the same"]):
        error = refused(bench, act, IllegalTransition)
        assert isinstance(error, IllegalTransition)
        assert (error.machine, error.event) == ("manager", "prepare")


WRONG_COMPONENTS: dict[str, Act] = {
    "the same twice": lambda b: b.manager.prepare([b.component, b.component]),
    "two of one id": lambda b: b.manager.prepare([b.component, Component("toy", b.routine, [4])]),
    "no component": lambda b: b.manager.prepare([b.component, b.routine]),  # type: ignore[list-item]
    "a component without a list": lambda b: b.manager.prepare(b.component),  # type: ignore[arg-type]
    "a generator": lambda b: b.manager.prepare(each for each in [b.component]),  # type: ignore[arg-type]
    "nothing": lambda b: b.manager.prepare(None),  # type: ignore[arg-type]
    "a name": lambda b: b.manager.prepare("toy"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG_COMPONENTS)
def test_wrong_components_are_refused_whole(name: str) -> None:
    bench = Bench()
    refused(bench, WRONG_COMPONENTS[name], ConfigError)
    assert bench.manager.state is ManagerState.NEW
    assert not bench.component.attached
    bench.serving().answers()


def test_a_component_of_another_manager_is_refused_until_that_one_is_closed() -> None:
    bench = Bench().serving()
    other = GraphManager(bench.backend, check=True)
    with pytest.raises(ConfigError, match="another manager"):
        other.prepare([bench.component])
    assert other.state is ManagerState.NEW
    bench.answers()
    bench.manager.close()
    other.prepare([bench.component])
    other.capture_and_bind()
    bench.answers()
    assert bench.component.state == "BOUND"


@pytest.mark.parametrize("end", ["prepared", "refused"])
def test_a_component_that_is_being_prepared_is_refused_to_another_manager(end: str) -> None:
    bench = Bench()
    other = GraphManager(SimBackend(SimDevice()), check=True)  # managers of two devices share no lock
    seen: list[object] = []

    def configure(options: Mapping[str, object]) -> None:
        def steal() -> None:
            with pytest.raises(ConfigError, match="another manager"):
                other.prepare([bench.component])
            seen.append(other.state)

        elsewhere(steal)
        if end == "refused":
            raise ValueError("boom")

    bench.routine.configure = configure  # type: ignore[method-assign]
    if end == "refused":
        with pytest.raises(ConfigError, match="boom"):
            bench.manager.prepare([bench.component])
        del bench.routine.configure
        other.prepare([bench.component])
        with pytest.raises(ConfigError, match="another manager"):
            bench.manager.prepare([bench.component])
        other.close()
        bench.serving()
    else:
        bench.manager.prepare([bench.component])
        bench.manager.capture_and_bind()
    assert seen == [ManagerState.NEW]
    bench.answers()


@pytest.mark.parametrize("wrong", ["validate_descriptor", "validate_binding"])
def test_routines_are_configured_after_everything_else_was_checked(wrong: str) -> None:
    bench = Bench("a", "b")
    taken: list[str] = []
    for name, routine in bench.routines.items():
        vars(routine)["configure"] = partial(lambda name, options: taken.append(name), name)

    def boom(*args: object) -> None:
        raise ValueError("boom")

    setattr(bench.routines["b"], wrong, boom)
    components = list(bench.components.values())
    refused(bench, lambda b: b.manager.prepare(components), ConfigError)
    assert taken == []
    delattr(bench.routines["b"], wrong)
    bench.serving().answers()
    assert taken == ["a", "b"]


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_declared_descriptor_that_the_routine_rejects_is_a_configuration_error(nth: int) -> None:
    bench = Bench("a", "b")
    bench.routines["b"].fail("validate_descriptor", TypeError("boom"), nth)
    error = refused(bench, lambda b: b.manager.prepare(list(b.components.values())), ConfigError)
    assert isinstance(error.__cause__, TypeError)
    assert not any(component.attached for component in bench.components.values())
    bench.serving().answers()


@pytest.mark.parametrize("method", ["uncovered", "validate_descriptor"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_routine_that_raises_in_prepare_leaves_the_manager_new(method: str, error: type[BaseException]) -> None:
    bench = Bench()

    def boom(*_: object, **__: object) -> Any:
        raise error("boom")

    setattr(bench.routine, method, boom)
    refused(bench, lambda b: b.manager.prepare([b.component]), ConfigError, error)
    assert bench.manager.state is ManagerState.NEW
    assert not bench.component.attached
    delattr(bench.routine, method)
    bench.serving().answers()


WRONG_LAZY: dict[str, object] = {
    "unhashable": [8],
    "compared by address": object(),
    "unequal to itself": float("nan"),
    "of a hash that raises": Odd("__hash__"),
    "of a text that raises": Odd("__repr__"),
}


@pytest.mark.parametrize("name", WRONG_LAZY)
def test_a_lazy_descriptor_that_names_nothing_is_refused(name: str) -> None:
    bench = Bench.lazily().serving()
    states = bench.states()
    bench.routine.make_lazy_descriptor = lambda key: WRONG_LAZY[name]  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(ConfigError):
        bench.call(8)
    bench.quiet()
    assert bench.states() == states
    del bench.routine.make_lazy_descriptor
    bench.answers()


def test_a_runtime_key_without_a_hash_does_not_hold_the_gate() -> None:
    bench = Bench()
    resolve = bench.routine.resolve_runtime

    def unhashable(args: Any, kwargs: Any, available: Any) -> Any:
        return resolve(args, kwargs, available)._replace(runtime_key=cast(Hashable, [1]))

    bench.routine.resolve_runtime = unhashable  # type: ignore[method-assign]
    bench.serving()
    with pytest.raises((TypeError, ConfigError)):
        bench.call(40)
    bench.quiet()
    bench.answers(4)


WRONG_CAPTURES: dict[str, Callable[[Bench, Any], object]] = {
    "no entry": lambda b, tx: tx.capture("toy", lambda warmup: lambda: None),
    "no function": lambda b, tx: tx.capture(b.manager.entry("own", 1), None),
    "a number as stream": lambda b, tx: tx.capture(b.manager.entry("own", 1), lambda warmup: lambda: None, stream=7),
    "the default stream": lambda b, tx: tx.capture(
        b.manager.entry("own", 1), lambda warmup: lambda: None, stream=b.device.default_stream
    ),
    "a stream of another device": lambda b, tx: tx.capture(
        b.manager.entry("own", 1), lambda warmup: lambda: None, stream=Bench().device.new_stream()
    ),
}


@pytest.mark.parametrize("name", WRONG_CAPTURES)
def test_a_wrong_capture_changes_nothing(name: str) -> None:
    bench = Bench().serving()
    entry = bench.manager.entry("own", 1)
    before = snapshot(bench)
    with bench.manager.transaction() as transaction, pytest.raises(ConfigError):
        WRONG_CAPTURES[name](bench, transaction)
    assert entry.state == "EAGER"
    assert snapshot(bench) == before
    bench.quiet()


def test_a_maker_that_makes_nothing_to_run_fails_its_capture_cleanly() -> None:
    bench = Bench().serving()
    entry = bench.manager.entry("own", 1)
    before = bench.footprint()

    def make_nothing() -> None:
        with bench.manager.transaction() as transaction:
            transaction.capture(entry, lambda warmup: None)  # type: ignore[arg-type, return-value]

    with pytest.raises(CaptureFailed):
        make_nothing()
    after = bench.footprint()
    assert (after.stream, after.generator, after.allocated) == (before.stream, before.generator, before.allocated)
    bench.quiet()


# -- captures inside captures -------------------------------------------------------------------------------------------

INSIDE: dict[str, Act] = {
    "capture_and_bind": lambda b: b.manager.capture_and_bind(),
    "transaction": lambda b: b.manager.transaction().__enter__(),
    "profile_memory": lambda b: b.manager.profile_memory(),
    "evict": lambda b: b.manager.evict("toy"),
    "release": lambda b: b.manager.release(),
    "close": lambda b: b.manager.close(),
}


@pytest.mark.parametrize("name", INSIDE)
def test_manager_methods_inside_a_transaction_refuse_and_the_transaction_goes_on(name: str) -> None:
    bench = Bench().serving()
    entry, x = bench.manager.entry("own", 1), bench.device.zeros(2, 4)
    with bench.manager.transaction() as transaction:
        with pytest.raises(CaptureActive):
            INSIDE[name](bench)
        transaction.capture(entry, lambda warmup: lambda: bench.routine.work(x))
    assert entry.state == "BOUND"
    bench.quiet()
    bench.answers()


@pytest.mark.parametrize("name", ["capture_and_bind", "transaction", "release", "close"])
def test_manager_methods_inside_a_call_refuse(name: str) -> None:
    bench = Bench().serving()
    errors: list[BaseException] = []
    work = bench.routine.work

    def eager(x: SimTensor) -> SimTensor:
        try:
            INSIDE[name](bench)
        except CGStateError as error:
            errors.append(error)
        return work(x)

    bench.routine.eager_call = eager  # type: ignore[method-assign]
    bench.call(40)
    assert len(errors) == 1
    assert isinstance(errors[0], IllegalTransition)
    bench.quiet()
    bench.answers()


def test_a_capture_inside_a_foreign_capture_is_refused() -> None:
    bench = Bench().prepared()
    errors: list[BaseException] = []

    def body() -> None:
        try:
            bench.manager.capture_and_bind()
        except IllegalTransition as error:
            errors.append(error)

    captured(bench.device, body, bench.device.new_stream())
    assert [type(error) for error in errors] == [CaptureActive]
    bench.quiet()
    bench.manager.capture_and_bind()
    bench.answers()


# -- threads ------------------------------------------------------------------------------------------------------------

FOREIGN: dict[str, Act] = {
    **INSIDE,
    "prepare": lambda b: b.manager.prepare([]),
    "entry": lambda b: b.manager.entry("own", 1),
    "invalidate": lambda b: b.manager.invalidate("kv"),
    "forget_failures": lambda b: b.manager.forget_failures(),
    "reclaim": lambda b: b.manager.reclaim(),
    "memory": lambda b: b.manager.memory(),
    "a component": lambda b: b.component(b.routine.weight),
    "replay": lambda b: b.books.components["toy"].entries[4].replay(),
    "lease": lambda b: b.books.components["toy"].entries[4].lease().__enter__(),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_manager_with_an_owner_refuses_other_threads(name: str) -> None:
    bench = Bench(owner_thread=True, component={"dependencies": ["kv"]}).serving()
    before = snapshot(bench)
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            FOREIGN[name](bench)
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=elsewhere)
    thread.start()
    thread.join(10)
    assert [type(error) for error in errors] == [WrongThread]
    assert snapshot(bench) == before
    bench.quiet()
    bench.answers()


# -- after close --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FOREIGN if name not in ("close", "memory", "a component")])
def test_everything_but_looking_is_refused_after_close(name: str) -> None:
    bench = Bench(component={"dependencies": ["kv"]}).serving()
    bench.manager.close()
    before = bench.backend.footprint()
    with pytest.raises(ManagerClosed):
        FOREIGN[name](bench)
    assert bench.manager.state is ManagerState.CLOSED
    assert bench.backend.footprint() == before
    bench.quiet()
    bench.manager.close()
    bench.answers()
    assert bench.manager.memory().total == 0
    assert bench.manager.stats().components["toy"].fallbacks


def test_a_refusal_names_who_refused_what_and_why() -> None:
    bench = Bench().serving()
    bench.manager.evict("toy")
    entry = bench.manager.entry("toy", 4)
    with pytest.raises(IllegalTransition) as refusal:
        entry.replay()
    found: tuple[Hashable, ...] = (
        refusal.value.machine,
        refusal.value.entity,
        str(refusal.value.state),
        str(refusal.value.event),
    )
    assert found == ("entry", "toy[4]", "EVICTED", "acquire")


def test_a_mode_that_is_lazy_needs_no_extra_graphs() -> None:
    bench = Bench(mode=CaptureMode.PURE_LAZY).serving()
    assert bench.component.available_descriptors == frozenset()
    bench.answers(3)
    assert bench.component.available_descriptors == {4}


def test_a_body_that_calls_its_own_component_while_being_captured_is_recorded_inline() -> None:
    bench = Bench().prepared()
    answers: list[SimTensor] = []

    def body(routine: Toy, descriptor: int, buffers: SimTensor) -> None:
        answers.append(bench.component(buffers))

    bench.routine.body = body
    bench.manager.capture_and_bind()
    assert len(answers) == 3
    bench.routine.cure()
    bench.answers()
