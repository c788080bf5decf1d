"""Drawn programs: the simulator sees what the GPU saw, the programs are worth something, and a wrong simulator is noticed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cgstate.backends.sim import SimConfig
from cgstate.backends.sim.allocator import Allocator
from cgstate.backends.sim.blocks import FreeList, Pool, PoolId
from cgstate.backends.sim.capture import OpenCaptures
from cgstate.backends.sim.device import SimDevice
from cgstate.backends.sim.generator import Generator
from cgstate.backends.sim.scope import graph_scope
from cgstate.errors import ConfigError
from cgstate.testing.fidelity.bench_sim import SimBench
from cgstate.testing.fidelity.programs import recording
from cgstate.testing.fidelity.programs.body import FAILURES
from cgstate.testing.fidelity.programs.children import Crash, play_on_gpu
from cgstate.testing.fidelity.programs.play import draw, draw_many, is_clean, play
from cgstate.testing.fidelity.programs.program import (
    Layer,
    Outcome,
    Program,
    first_difference,
    from_json,
    program_from_json,
    program_to_json,
    to_json,
)
from cgstate.testing.fidelity.programs.recording import ProgramRecording

PROGRAMS = 200
PARTS = 8
FRESH = 50
FIRST_FRESH_SEED = 1000


@pytest.fixture(scope="module")
def bundled() -> ProgramRecording:
    return recording.bundled()


# -- agreement ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(PARTS))
def test_the_simulator_sees_what_the_gpu_saw_after_every_step(part: int, bundled: ProgramRecording) -> None:
    compared = 0
    for recorded in bundled.outcomes[part::PARTS]:
        difference = first_difference(recorded, play(recorded.program, SimBench()))
        assert difference is None, f"\n{difference}"
        compared += 1
    assert compared == PROGRAMS // PARTS


def test_the_recording_is_of_as_many_programs_of_either_layer_from_an_h200(bundled: ProgramRecording) -> None:
    layers = Counter(outcome.program.layer for outcome in bundled.outcomes)
    assert layers == {Layer.device: PROGRAMS // 2, Layer.runtime: PROGRAMS // 2}
    assert "H200" in bundled.origin.device
    assert len(bundled.origin.commit) == 40


def test_every_recorded_program_left_the_gpu_as_it_was(bundled: ProgramRecording) -> None:
    assert [outcome.program.name for outcome in bundled.outcomes if not is_clean(outcome)] == []


# -- what the programs are worth ----------------------------------------------------------------------------------------

LEAST = {
    Layer.device: {
        **dict.fromkeys(("capture", "replay", "reset", "tensor", "pool", "flush", "draw"), 50),
        **dict.fromkeys(("add", "product", "clear workspaces", "drop pool", "release", "restore stream", "seed"), 20),
        **dict.fromkeys(("forget", "free", "too much"), 10),
    },
    Layer.runtime: {
        **dict.fromkeys(("capture", "call", "evict", "read", "replay", "capture all", "manage", "prepare", "lease"), 50),
        **dict.fromkeys(("reclaim", "invalidate", "forget failures", "close", "release", "end lease", "spoil", "bystander"), 20),
        **dict.fromkeys(("profile", "read lease", "replay lease", "flush", "draw", "seed", "too much"), 10),
        "reset": 5,
    },
}


@pytest.mark.parametrize("layer", Layer)
def test_every_kind_of_step_is_recorded_often(layer: Layer, bundled: ProgramRecording) -> None:
    found = Counter(step["op"] for outcome in of(layer, bundled) for step in outcome.program.steps)
    assert {op: least for op, least in LEAST[layer].items() if found[op] < least} == {}


@pytest.mark.parametrize("failure", FAILURES)
def test_every_way_to_fail_is_recorded_inside_captures(failure: str, bundled: ProgramRecording) -> None:
    steps = json.dumps([outcome.program.steps for outcome in bundled.outcomes])
    assert steps.count(f'["{failure}"') >= 5


DEVICE_ANSWERS = {
    "capture": {
        "captured",
        "BodyError",
        "out of memory",
        "device error 901",
        "device error 904",
        "already recording",
        "internal assert",
    },
    "draw": {"generator in capture"},
    "replay": {"generator in capture", "never captured"},
}


def test_every_answer_of_the_framework_is_recorded(bundled: ProgramRecording) -> None:
    for op, answers in DEVICE_ANSWERS.items():
        found = {answer(did) for did in outcomes_of(op, Layer.device, bundled)}
        assert answers - found == set(), op


def test_captures_of_the_runtime_are_recorded_with_every_kind_of_failure_and_refusal(bundled: ProgramRecording) -> None:
    found = [did for did in outcomes_of("capture", Layer.runtime, bundled) if isinstance(did, list)]
    assert {did[1] for did in found if did[0] == "CaptureFailed"} == {"USER", "REJECTED", "OOM", "FOREIGN"}
    assert {"committed", "aborted", "IllegalTransition", "ManagerClosed"} <= {did[0] for did in found}
    assert [did for did in found if did[0] == "CaptureFailed" and did[3]] == []  # no step of the cleaning up ever raised


def test_some_replays_overlap_and_some_graphs_draw_random_numbers(bundled: ProgramRecording) -> None:
    replays = [did for did in outcomes_of("replay", Layer.device, bundled) if isinstance(did, dict)]
    assert sum(len({name.split()[0] for name in did}) == 2 for did in replays) >= 10
    assert sum(any(name.endswith("random") for name in did) for did in replays) >= 10


def of(layer: Layer, of_recording: ProgramRecording) -> Iterator[Outcome]:
    return (outcome for outcome in of_recording.outcomes if outcome.program.layer is layer)


def outcomes_of(op: str, layer: Layer, of_recording: ProgramRecording) -> Iterator[Any]:
    for outcome in of(layer, of_recording):
        for step, seen in zip(outcome.program.steps, outcome.seen, strict=False):
            if step["op"] == op:
                yield seen["did"]


def answer(did: Any) -> str:
    return str(did[0] if isinstance(did, list) and did else did)


# -- fresh programs -----------------------------------------------------------------------------------------------------


def test_fresh_programs_end_with_nothing_left_and_never_use_what_was_given_back() -> None:
    for program in draw_many(FRESH, FIRST_FRESH_SEED):
        outcome = play(program, SimBench(SimConfig(sanitize=True)))
        assert is_clean(outcome), f"{program.name} left {outcome.seen[-1]}"
        assert "given back" not in json.dumps(outcome.seen), program.name


@pytest.mark.parametrize("layer", Layer)
def test_a_program_is_drawn_and_played_again_to_the_same_end(layer: Layer) -> None:
    program = draw(layer, FIRST_FRESH_SEED)
    assert draw(layer, FIRST_FRESH_SEED) == program
    assert play(program, SimBench()) == play(program, SimBench())
    assert draw(layer, FIRST_FRESH_SEED + 1).steps != program.steps


# -- wrong simulators ---------------------------------------------------------------------------------------------------


def no_latch(allocator: Allocator, pool_id: PoolId) -> None:
    pool = allocator._pools.setdefault(pool_id, Pool(pool_id))
    pool.use_count = 1 if not pool.use_count else pool.use_count + 1


def one_list_for_all_streams(pool: Pool, stream: int, small: bool) -> FreeList:
    return pool._lists.setdefault((0, small), FreeList())


def flush_in_any_case(allocator: Allocator) -> int:
    unused = [pool for pool in allocator._pools.values() if pool.use_count == 0]
    return allocator._return([allocator._general, *unused])


def healed_at_once(generator: Generator, count: int) -> object:
    generator.capturing = False
    return right_draw(generator, count)


def stream_restored(scope: graph_scope, *error: object) -> None:
    try:
        scope._graph.capture_end()
    finally:
        scope._device.set_stream(scope._before)


def nothing(*args: object) -> None:
    return None


right_draw = Generator.draw

WRONG: dict[str, tuple[type, str, Callable[..., object]]] = {
    "a pool is never latched (P1)": (Allocator, "retain", no_latch),
    "streams share free memory (P4)": (Pool, "free_list", one_list_for_all_streams),
    "a flush returns all while a recording is left": (Allocator, "return_unused", flush_in_any_case),
    "a failed capture leaves the generator alone (F2)": (Generator, "draw", healed_at_once),
    "a failed capture restores the stream (F3)": (graph_scope, "__exit__", stream_restored),
    "a failed capture leaves no recording (F5)": (Allocator, "begin_route_on_host", nothing),
    "a reset breaks no capture (T3)": (OpenCaptures, "break_by_destruction", nothing),
    "waiting for the device breaks no capture (S2)": (OpenCaptures, "refuse_device_wait", nothing),
    "a flush returns nothing (P6)": (SimDevice, "flush", lambda device: 0),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_simulator_departs_from_the_recording(
    wrong: str, bundled: ProgramRecording, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, instead = WRONG[wrong]
    assert hasattr(owner, name)
    monkeypatch.setattr(owner, name, instead)
    assert any(first_difference(recorded, play(recorded.program, SimBench())) for recorded in bundled.outcomes)


# -- comparing and storing ----------------------------------------------------------------------------------------------


def changed(outcome: Outcome, step: int, **labels: Any) -> Outcome:
    seen = list(outcome.seen)
    seen[step] = {**seen[step], **labels}
    return Outcome(outcome.program, tuple(seen))


def test_a_difference_names_program_step_and_label_and_shows_both_sides(bundled: ProgramRecording) -> None:
    outcome = bundled.outcomes[0]
    difference = first_difference(outcome, changed(changed(outcome, 5, stream="another"), 3, did="something else"))
    assert difference is not None
    assert (difference.program, difference.step, difference.label) == (outcome.program, 3, "did")
    assert (difference.recorded, difference.found) == (outcome.seen[3]["did"], "something else")
    text = str(difference)
    assert f"{outcome.program.name} differs at step 3, did" in text
    assert ">  3" in text
    assert "something else" in text


def test_what_is_left_at_the_end_is_compared_as_well(bundled: ProgramRecording) -> None:
    outcome = bundled.outcomes[0]
    difference = first_difference(outcome, changed(outcome, len(outcome.program.steps), pools=1))
    assert difference is not None
    assert difference.step == len(outcome.program.steps)
    assert "clean up" in str(difference)


def test_a_label_that_only_one_side_has_is_a_difference(bundled: ProgramRecording) -> None:
    outcome = bundled.outcomes[0]
    assert first_difference(outcome, changed(outcome, 0, novelty=1)) is not None
    assert first_difference(changed(outcome, 0, novelty=1), outcome) is not None


def test_outcomes_of_different_programs_are_not_compared(bundled: ProgramRecording) -> None:
    with pytest.raises(ConfigError, match="cannot be compared"):
        first_difference(bundled.outcomes[0], bundled.outcomes[1])


def test_an_outcome_is_stored_and_read_back_whole(bundled: ProgramRecording, tmp_path: Path) -> None:
    for outcome in bundled.outcomes:
        assert from_json(json.loads(json.dumps(to_json(outcome)))) == outcome
    assert program_from_json(program_to_json(bundled.outcomes[0].program)) == bundled.outcomes[0].program
    recording.write(tmp_path / "again.json", bundled)
    assert recording.read(tmp_path / "again.json") == bundled


def test_programs_lie_beside_the_facts() -> None:
    assert recording.beside(Path("here/h200.json")) == Path("here/programs-h200.json")
    assert recording.beside(Path("h200.json")).name == recording.BUNDLED


STEP = {"op": "flush"}


@pytest.mark.parametrize(
    "program",
    [
        None,
        [],
        {},
        {"layer": "device", "seed": 1, "steps": [STEP]},
        {"layer": "device", "seed": 1, "steps": [STEP], "seen": [{}]},
        {"layer": "device", "seed": 1, "steps": [STEP], "seen": [{}, 3]},
        {"layer": "device", "seed": 1, "steps": [{"name": "no op"}], "seen": [{}, {}]},
        {"layer": "device", "seed": 1, "steps": "flush", "seen": [{}, {}]},
        {"layer": "device", "seed": "one", "steps": [STEP], "seen": [{}, {}]},
        {"layer": "moon", "seed": 1, "steps": [STEP], "seen": [{}, {}]},
    ],
)
def test_a_malformed_program_is_refused(program: object, bundled: ProgramRecording, tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_text(json.dumps({"schema": recording.SCHEMA, "origin": bundled.origin.to_json(), "programs": [program]}))
    with pytest.raises(ConfigError, match=r"given\.json"):
        recording.read(path)


@pytest.mark.parametrize("programs", [[], None, 3])
def test_a_recording_without_programs_is_refused(programs: object, bundled: ProgramRecording, tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_text(json.dumps({"schema": recording.SCHEMA, "origin": bundled.origin.to_json(), "programs": programs}))
    with pytest.raises(ConfigError, match="no list"):
        recording.read(path)


def test_a_program_that_is_recorded_twice_is_refused(bundled: ProgramRecording, tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    recording.write(path, ProgramRecording(bundled.origin, [bundled.outcomes[0], bundled.outcomes[0]]))
    with pytest.raises(ConfigError, match="twice"):
        recording.read(path)


def test_a_step_that_nobody_knows_is_a_defect_and_no_outcome() -> None:
    for layer in Layer:
        program = Program(layer, 0, (draw(layer, 0).steps[0], {"op": "dance"}))
        with pytest.raises(AssertionError, match="dance"):
            play(program, SimBench())


# -- on a GPU -----------------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_a_process_that_cannot_play_is_told_as_a_crash_with_its_last_words() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, on which programs can be played")
    told: list[str] = []
    program = draw(Layer.device, 0)
    (result,) = play_on_gpu([program], told.append)
    assert isinstance(result, Crash)
    assert result.program == program
    assert "no CUDA device" in result.words
    assert any("crashed" in line for line in told)


@pytest.mark.cuda
def test_the_gpu_at_hand_sees_what_was_recorded(bundled: ProgramRecording) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if torch.__version__ != bundled.origin.torch or torch.cuda.get_device_name(0) != bundled.origin.device:
        pytest.skip(f"recorded on {bundled.origin}")
    outcomes = bundled.outcomes[:40]
    for recorded, found in zip(outcomes, play_on_gpu([each.program for each in outcomes]), strict=True):
        assert isinstance(found, Outcome), found
        difference = first_difference(recorded, found)
        assert difference is None, f"\n{difference}"
