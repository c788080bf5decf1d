"""The runner itself,: measured, captured, served, extended by misses, moved, closed, and by two threads."""

from contextlib import suppress

import cgstate
import pytest
import torch
from cgstate.backends.sim import SimBackend
from cgstate.testing.schedules import Case

from runner import Runner
from runner.model import CHANNELS, HOP, Decoder, Vocoder
from runner.serving import TOLERANCE


@pytest.fixture
def runner():
    runner = Runner(Decoder().requires_grad_(False), Vocoder().requires_grad_(False), SimBackend(), check=True)
    yield runner
    runner.close()
    assert runner.manager.memory().total == 0


def speak(runner: Runner, size: int, *, voice: int = 0, passes: int = 1) -> None:
    """Compare with what the model says by itself."""
    tokens, voices = torch.arange(size), torch.full((size,), voice)
    features = runner.model(tokens, voices)
    right = runner.vocoder.routine.eager_call(features, passes)
    audio = runner.speak(tokens, voices, passes)
    assert len(audio) == size * HOP
    assert torch.allclose(audio, right, atol=TOLERANCE)


def test_what_is_held_was_measured_before(runner: Runner) -> None:
    estimate = runner.start(lazy_bytes=0)
    assert estimate.lower <= runner.manager.memory().total <= estimate.upper


def test_a_miss_captures_and_the_least_recently_used_makes_room(runner: Runner) -> None:
    runner.start(lazy_bytes=1 << 30)
    for passes in (1, 2, 3, 4, 4):  # the first 4 is eager: the device may not be done with what makes room for it
        speak(runner, 20, passes=passes)
    counts = runner.manager.stats().components["vocoder"]
    assert (counts.captures, counts.evicted, counts.hits) == (4, {cgstate.Eviction.capacity: 1}, 4)


def test_without_room_in_the_budget_misses_are_eager(runner: Runner) -> None:
    runner.start(lazy_bytes=0)
    speak(runner, 20, passes=2)
    assert runner.manager.stats().components["vocoder"].fallbacks == {cgstate.Fallback.budget: 1}


def test_a_new_voice_moves_the_table_and_is_heard(runner: Runner) -> None:
    runner.start(lazy_bytes=0)
    speak(runner, 8)
    voice = runner.add_voice(torch.ones(CHANNELS))
    speak(runner, 8, voice=voice)
    assert runner.manager.stats().components["decoder"].captures == 4, "both graphs, and both again"


def test_a_voice_may_come_in_while_somebody_speaks(cgstate_explore) -> None:
    decoder, vocoder = Decoder().requires_grad_(False), Vocoder().requires_grad_(False)
    tokens, table = torch.arange(3), decoder.voices

    def make(sync):
        decoder.voices = table
        runner, heard = Runner(decoder, vocoder, SimBackend(), sync=sync, check=True), []
        right = runner.speak(tokens, tokens % 2)  # nothing is captured yet
        runner.start(lazy_bytes=0)

        def speak():
            with suppress(cgstate.NotResident):  # the voices are on the move: asked again at the end
                heard.append(runner.speak(tokens, tokens % 2))

        def finish():
            (audio,) = heard or [runner.speak(tokens, tokens % 2)]
            runner.close()
            assert torch.allclose(audio, right, atol=TOLERANCE)

        return Case({"speaker": speak, "host": lambda: runner.add_voice(torch.ones(CHANNELS))}, finish)

    cgstate_explore(make, preemptions=1)
