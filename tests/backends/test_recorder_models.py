"""Modules of torch captured on the simulator as they are: each replay equals an eager call bit for bit, layout included."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.backends.torch_captures import Bench, equal

pytestmark = pytest.mark.torch

SEQUENCE = (2, 5, 8)  # batch, positions, channels
IMAGE = (1, 3, 8, 8)

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(8, 4), SEQUENCE),
    "bilinear": (lambda: _Twice(nn.Bilinear(8, 8, 3)), SEQUENCE),
    "conv1d": (lambda: nn.Conv1d(5, 4, 3, padding=1, dilation=2), SEQUENCE),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, groups=1), IMAGE),
    "conv2d, channels last": (lambda: _ChannelsLast(nn.Conv2d(3, 4, 3)), IMAGE),
    "transposed conv": (lambda: nn.ConvTranspose1d(5, 4, 2, 2), SEQUENCE),
    "layer norm": (lambda: nn.LayerNorm(8), SEQUENCE),
    "rms norm": (lambda: nn.RMSNorm(8), SEQUENCE),
    "group norm": (lambda: nn.GroupNorm(1, 5), SEQUENCE),
    "batch norm": (lambda: nn.BatchNorm1d(5), SEQUENCE),
    "instance norm": (lambda: nn.InstanceNorm1d(5), SEQUENCE),
    "pooling": (lambda: nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(3)), IMAGE),
    "upsampling": (lambda: nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.PixelUnshuffle(2)), IMAGE),
    "activations": (lambda: nn.Sequential(nn.GELU(), nn.SiLU(), nn.PReLU(), nn.Softplus(), nn.Hardswish(), nn.GLU()), SEQUENCE),
    "attention": (lambda: _Attention(8, 2), SEQUENCE),
    "multi-head attention": (lambda: _Self(nn.MultiheadAttention(8, 2, batch_first=True)), SEQUENCE),
    "transformer layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), SEQUENCE),
    "lstm": (lambda: _First(nn.LSTM(8, 6, 2, batch_first=True)), SEQUENCE),
    "gru": (lambda: _First(nn.GRU(8, 6, batch_first=True, bidirectional=True)), SEQUENCE),
    "spectrum": (lambda: _Spectrum(), SEQUENCE),
}


class _Twice(nn.Module):
    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor) -> object:
        return self.of(x, x)


class _Self(nn.Module):
    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor) -> object:
        return self.of(x, x, x, need_weights=False)[0]


class _ChannelsLast(nn.Module):
    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor) -> object:
        return self.of(x.contiguous(memory_format=torch.channels_last))


class _First(nn.Module):
    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor) -> object:
        return self.of(x)[0]


class _Spectrum(nn.Module):
    def forward(self, x: Tensor) -> object:
        return torch.fft.irfft(torch.fft.rfft(x) * 2)


class _Attention(nn.Module):
    """Heads through `scaled_dot_product_attention`, with dropout while training."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        dropout = 0.25 if self.training else 0.0
        heads = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        out: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return out


class Decoder(nn.Module):
    """A language model of one block, whose keys and values go into a cache in place."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.project = nn.Linear(8, 24)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8, 11)

    def forward(self, token: Tensor, position: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The logits for the token after ``token``; ``position`` tells where its key goes."""
        x = self.tokens(token)
        query, key, value = self.project(self.norm(x)).chunk(3, -1)
        keys.index_copy_(0, position, key)
        values.index_copy_(0, position, value)
        seen = torch.arange(keys.shape[0]).unsqueeze(0) <= position
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(0, 1).unsqueeze(0) for part in (query, keys, values))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + self.dropout(attended[0].transpose(0, 1).flatten(1))
        logits: Tensor = self.head(x)
        return logits


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_a_module_replays_as_it_runs_eagerly(name: str, training: bool, inference: bool) -> None:
    make, shape = MODULES[name]
    torch.manual_seed(0)
    module, twin = make().train(training), make().train(training)
    twin.load_state_dict(module.state_dict())  # some modules change while they train
    bench = Bench()
    with torch.inference_mode(inference), torch.no_grad():
        x = bench.backend.place(torch.zeros(shape))
        graph, output = bench.capture(lambda: module(x))
        for replay in range(2):
            data = torch.randn(shape)
            x.copy_(data)
            torch.manual_seed(replay)
            graph.replay()
            torch.manual_seed(replay)
            assert equal(output, twin(data))
        assert equal(list(module.buffers()), list(twin.buffers()))


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_decoder_fills_its_cache_step_by_step(training: bool, placed: bool) -> None:
    torch.manual_seed(0)
    module = Decoder().train(training)
    twin = Decoder().train(training)
    twin.load_state_dict(module.state_dict())
    bench = Bench()
    if placed:
        bench.backend.place(module)
    token, position = (bench.backend.place(torch.zeros(1, dtype=torch.int64)) for _ in range(2))
    keys, values = (bench.backend.place(torch.zeros(6, 8)) for _ in range(2))
    graph, logits = bench.capture(lambda: module(token, position, keys, values))
    eager = torch.zeros(6, 8), torch.zeros(6, 8)
    for step, word in enumerate((3, 1, 4, 1, 5)):
        token.fill_(word)
        position.fill_(step)
        torch.manual_seed(step)
        graph.replay()
        torch.manual_seed(step)
        with torch.no_grad():
            expected = twin(torch.tensor([word]), torch.tensor([step]), *eager)
        assert equal(logits, expected)
    assert equal((keys, values), eager)


def test_autocast_is_recorded_as_eager_runs_it() -> None:
    module = nn.Linear(8, 8)
    bench = Bench()
    x = bench.backend.place(torch.randn(2, 8))

    def body(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            y: Tensor = module(x)
        return y

    graph, output = bench.capture(lambda: body(x))
    graph.replay()
    with torch.no_grad():
        assert equal(output, body(x.cpu()))
