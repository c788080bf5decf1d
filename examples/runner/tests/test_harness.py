"""The whole battery: do the routines keep their promises, whatever happens, whatever fails, whoever comes in."""

import torch
from cgstate.testing import Battery, Capabilities, Subject

from runner.model import CHANNELS, Decoder, Vocoder
from runner.serving import CONFIG, components

DECODER, VOCODER = Decoder().requires_grad_(False), Vocoder().requires_grad_(False)
SAMPLES = {
    "decoder": [(torch.arange(size) % 7, torch.arange(size) % 2) for size in (3, 8, 8, 40)],
    "vocoder": [(torch.randn(size, CHANNELS), passes) for size, passes in ((5, 1), (32, 1), (20, 2), (70, 1))],
}


class TestRunner(Battery):
    can = Capabilities(faults=True, clock=True, dependencies=True)

    def make_components(self):
        self.voices = torch.eye(2, CHANNELS)
        DECODER.voices = self.voices.clone()
        made = components(DECODER, VOCODER)
        return [Subject(each, SAMPLES[each.component_id], CONFIG[each.component_id]) for each in made]

    def take_away(self, dependency):
        DECODER.voices.zero_()

    def bring_back(self, dependency, *, elsewhere):
        if elsewhere:
            self.voices = self.voices + 1
            DECODER.voices = self.voices.clone()
        else:
            DECODER.voices.copy_(self.voices)
