"""The whole battery: do the routines keep their promises, does any order of events break them, do threads."""

from contextlib import suppress

import cgstate
import torch
from cgstate.backends.sim import SimBackend
from cgstate.testing import Bed, Capabilities, LifecycleMachine, Subject, check_routine
from cgstate.testing.schedules import Case

from runner import Runner
from runner.model import CHANNELS, Decoder, Vocoder
from runner.routines import Shape, VocoderRoutine, decoder_routine
from runner.serving import CONFIG, TOLERANCE, components

DECODER, VOCODER = Decoder().requires_grad_(False), Vocoder().requires_grad_(False)
TOKENS = [(torch.arange(size) % 7, torch.arange(size) % 2) for size in (3, 8, 8, 40)]
FEATURES = [(torch.randn(size, CHANNELS), passes) for size, passes in ((5, 1), (32, 1), (20, 2), (70, 1))]


def test_the_routines_answer_as_eager() -> None:
    check_routine(decoder_routine(DECODER), TOKENS, [8, 64], tolerance=TOLERANCE)
    check_routine(VocoderRoutine(VOCODER), FEATURES, [Shape(32, 1), Shape(32, 2)], tolerance=TOLERANCE)


class RunnerBed(Bed):
    """What may happen to the runner's components, the table of voices included."""

    can = Capabilities(faults=True, clock=True, dependencies=True)

    def make_components(self):
        self.voices = torch.eye(2, CHANNELS)
        DECODER.voices = self.voices.clone()
        samples = {"decoder": TOKENS, "vocoder": FEATURES}
        return [
            Subject(each, samples[each.component_id], CONFIG[each.component_id])
            for each in components(DECODER, VOCODER)
        ]

    def take_away(self, dependency):
        DECODER.voices.zero_()

    def bring_back(self, dependency, *, elsewhere):
        if elsewhere:
            self.voices = self.voices + 1
            DECODER.voices = self.voices.clone()
        else:
            DECODER.voices.copy_(self.voices)


def test_walks_find_nothing(cgstate_walk) -> None:
    cgstate_walk(RunnerBed)


class RunnerMachine(RunnerBed, LifecycleMachine):
    """The same for Hypothesis."""


TestRunnerMachine = RunnerMachine.TestCase


def test_a_voice_may_come_in_while_somebody_speaks(cgstate_explore) -> None:
    tokens, voices = TOKENS[0]
    table = torch.eye(2, CHANNELS)

    def make(sync):
        DECODER.voices = table
        runner, heard = Runner(DECODER, VOCODER, SimBackend(), sync=sync, check=True), []
        right = runner.speak(tokens, voices)  # nothing is captured yet
        runner.start(lazy_bytes=0)

        def speak():
            with suppress(cgstate.NotResident):  # the voices are on the move: asked again at the end
                heard.append(runner.speak(tokens, voices))

        def finish():
            (audio,) = heard or [runner.speak(tokens, voices)]
            runner.close()
            assert torch.allclose(audio, right, atol=TOLERANCE)

        return Case({"speaker": speak, "host": lambda: runner.add_voice(torch.ones(CHANNELS))}, finish)

    cgstate_explore(make, preemptions=1)
