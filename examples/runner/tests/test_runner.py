"""The runner itself, once through: measured, captured, served, extended by misses, moved, closed."""

import cgstate
import pytest
import torch
from cgstate.backends.sim import SimBackend

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
