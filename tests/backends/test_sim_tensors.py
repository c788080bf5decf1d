"""Tensors, views and kernels: values against plain Python, and replay against eager, bit for bit."""

from __future__ import annotations

import math
from random import Random

import pytest

from cgstate.backends.sim import SimDevice, SimTensor, captured, kernels
from cgstate.backends.sim.errors import DEVICE_ASSERT, SimAcceleratorError
from cgstate.backends.sim.tensor import Nested


@pytest.fixture
def device() -> SimDevice:
    return SimDevice()


def matrix(seed: int, rows: int, columns: int) -> list[list[float]]:
    random = Random(seed)
    return [[random.uniform(-1, 1) for _ in range(columns)] for _ in range(rows)]


def close(value: Nested, expected: Nested) -> bool:
    if isinstance(value, int | float) or isinstance(expected, int | float):
        return isinstance(value, float) and isinstance(expected, float) and math.isclose(value, expected, abs_tol=1e-12)
    return len(value) == len(expected) and all(map(close, value, expected))


def test_data_keeps_its_shape_and_values(device: SimDevice) -> None:
    for data in ([[1.0, 2.0], [3.0, 4.0]], [], [[[5.0]], [[6.0]]], 7.0):
        assert device.tensor(data).tolist() == data
    assert device.tensor([[1, 2]]).shape == (1, 2)
    with pytest.raises(ValueError, match="ragged"):
        device.tensor([[1.0], [1.0, 2.0]])


def test_views_share_memory_and_show_the_right_cells(device: SimDevice) -> None:
    x = device.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    assert x.narrow(0, 1, 1).tolist() == [[3.0, 4.0, 5.0]]
    assert x.narrow(1, 1, 2).tolist() == [[1.0, 2.0], [4.0, 5.0]]
    assert x.t().tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert x.t().narrow(0, 1, 2).t().tolist() == [[1.0, 2.0], [4.0, 5.0]]
    assert x.narrow(1, 0, 0).tolist() == [[], []]
    x.narrow(1, 2, 1).fill_(9.0)
    x.t().narrow(1, 0, 1).narrow(0, 0, 1).zero_()
    assert x.tolist() == [[0.0, 1.0, 9.0], [3.0, 4.0, 9.0]]
    assert x.reshape(3, 2).data_ptr() == x.data_ptr()
    assert kernels.transpose(x).tolist() == x.t().tolist()
    assert kernels.transpose(x).data_ptr() != x.data_ptr()
    assert x.t().reshape(6).tolist() == [0.0, 3.0, 1.0, 4.0, 9.0, 9.0]
    assert x.narrow(0, 1, 1).data_ptr() == x.data_ptr() + 3 * 8
    with pytest.raises(IndexError):
        x.narrow(1, 2, 2)
    with pytest.raises(ValueError, match="reshape"):
        x.reshape(4)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
def test_tensors_without_elements_are_tensors(device: SimDevice, shape: tuple[int, ...]) -> None:
    x = device.zeros(*shape)
    assert x.clone().tolist() == x.tolist()
    assert kernels.softmax(x).shape == kernels.relu(x).shape == shape
    assert device.rand(*shape).numel() == 0
    if len(shape) == 2:
        assert x.t().fill_(1.0).clone().tolist() == [[]] * shape[1]
    device.synchronize()


def test_kernels_over_nothing_give_zeros_or_nothing(device: SimDevice) -> None:
    empty = kernels.matmul(device.zeros(2, 0), device.zeros(0, 3)).tolist()
    assert repr(empty) == "[[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]"
    assert kernels.matmul(device.zeros(0, 2), device.zeros(2, 3)).tolist() == []
    assert kernels.embedding(device.zeros(1), device.zeros(3, 0)).tolist() == [[]]
    with pytest.raises(ValueError, match="0 frames"):
        kernels.conv_transpose1d(device.zeros(1, 0), device.zeros(1, 1, 2), 1)


def test_there_are_no_tensors_of_negative_length(device: SimDevice) -> None:
    x = device.zeros(4)
    for make in (device.empty, device.zeros, device.rand, x.reshape, lambda *shape: x.new_empty(shape)):
        with pytest.raises(ValueError, match="negative length"):
            make(-2, -2)
    for dim in (-1, 1):
        with pytest.raises(IndexError):
            x.narrow(dim, 0, 1)
    assert device.allocated_bytes() == x.storage.nbytes


def test_a_copy_between_views_that_overlap_reads_before_it_writes(device: SimDevice) -> None:
    x = device.tensor([[1.0, 2.0], [3.0, 4.0]])
    x.copy_(x.t())
    assert x.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    y = device.tensor([1.0, 2.0, 3.0])
    y.narrow(0, 1, 2).copy_(y.narrow(0, 0, 2))
    assert y.tolist() == [1.0, 1.0, 2.0]


def test_a_view_keeps_the_storage_alive(device: SimDevice) -> None:
    view = device.tensor([1.0, 2.0]).narrow(0, 1, 1)
    device.flush()
    assert view.item() == 2.0


def test_copies_are_copies_and_shapes_must_agree(device: SimDevice) -> None:
    x = device.tensor([[1.0, 2.0], [3.0, 4.0]])
    y = x.clone()
    x.narrow(1, 0, 1).copy_(device.zeros(2, 1))
    assert (x.tolist(), y.tolist()) == ([[0.0, 2.0], [0.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]])
    assert y.new_zeros((2,)).tolist() == [0.0, 0.0]
    assert not y.requires_grad
    for call in (lambda: x.copy_(device.zeros(4)), x.item):
        with pytest.raises(ValueError):  # noqa: PT011 - two different messages
            call()


def test_tensors_of_another_device_are_refused(device: SimDevice) -> None:
    with pytest.raises(ValueError, match="not on"):
        kernels.add(device.zeros(1), SimDevice().zeros(1))


def test_elementwise_kernels(device: SimDevice) -> None:
    x, y = device.tensor([[-1.0, 2.0], [3.0, -4.0]]), device.tensor([10.0, 100.0])
    assert kernels.add(x, y).tolist() == [[9.0, 102.0], [13.0, 96.0]]
    assert kernels.mul(x, x).tolist() == [[1.0, 4.0], [9.0, 16.0]]
    assert kernels.scale(x, 0.5).tolist() == [[-0.5, 1.0], [1.5, -2.0]]
    assert kernels.relu(x).tolist() == [[0.0, 2.0], [3.0, 0.0]]
    assert kernels.tanh(x).tolist() == [[math.tanh(-1), math.tanh(2)], [math.tanh(3), math.tanh(-4)]]
    assert kernels.masked_fill(x, device.tensor([0.0, 1.0]), 7.0).tolist() == [[-1.0, 7.0], [3.0, 7.0]]
    with pytest.raises(ValueError, match="of shapes"):
        kernels.add(x, device.zeros(3))


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (3, 5, 4), (64, 7, 40)])
def test_matmul(device: SimDevice, rows: int, inner: int, columns: int) -> None:
    """The last shape's partial sums do not fit the workspace."""
    a, b = matrix(1, rows, inner), matrix(2, inner, columns)
    expected = [[math.fsum(a[i][k] * b[k][j] for k in range(inner)) for j in range(columns)] for i in range(rows)]
    product = kernels.matmul(device.tensor(a), device.tensor(b))
    assert close(product.tolist(), expected)
    transposed = kernels.matmul(device.tensor(b).t(), device.tensor(a).t())
    assert close(transposed.t().tolist(), expected)


def test_a_matmul_of_more_rows_equals_one_of_fewer_bit_for_bit(device: SimDevice) -> None:
    a, b = device.tensor(matrix(1, 128, 8)), device.tensor(matrix(2, 8, 32))
    whole = kernels.matmul(a, b).tolist()
    assert isinstance(whole, list)
    assert kernels.matmul(a.narrow(0, 0, 3), b).tolist() == whole[:3]


def test_a_matmul_of_more_terms_that_are_zero_equals_one_without_them_bit_for_bit(device: SimDevice) -> None:
    rows, columns = matrix(1, 4, 11), matrix(2, 11, 4)
    exact = kernels.matmul(device.tensor(rows), device.tensor(columns))
    for padding in range(1, 6):
        wider = [row + [0.0] * padding for row in rows]
        taller = columns + [[1.0] * 4] * padding
        assert kernels.matmul(device.tensor(wider), device.tensor(taller)).tolist() == exact.tolist()


def test_matmul_refuses_shapes_that_do_not_fit(device: SimDevice) -> None:
    with pytest.raises(ValueError, match="matmul"):
        kernels.matmul(device.zeros(2, 3), device.zeros(2, 3))
    with pytest.raises(ValueError, match="conv_transpose1d"):
        kernels.conv_transpose1d(device.zeros(2, 3), device.zeros(3, 1, 2), 1)


def test_softmax(device: SimDevice) -> None:
    rows = kernels.softmax(device.tensor([[0.0, math.log(3.0)], [5.0, -math.inf]])).tolist()
    assert close(rows, [[0.25, 0.75], [1.0, 0.0]])


def test_embedding_reads_rows_and_an_id_out_of_range_is_a_device_assert(device: SimDevice) -> None:
    table = device.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert kernels.embedding(device.tensor([1.0, 0.0]), table).tolist() == [[3.0, 4.0], [1.0, 2.0]]
    kernels.embedding(device.tensor([2.0]), table)
    with pytest.raises(SimAcceleratorError) as caught:
        device.synchronize()
    assert caught.value.error_code == DEVICE_ASSERT


def test_conv_transpose1d(device: SimDevice) -> None:
    x, w, stride = matrix(3, 2, 4), [matrix(4, 3, 5), matrix(5, 3, 5)], 2
    expected = [[0.0] * (3 * stride + 5) for _ in range(3)]
    for c in range(2):
        for o in range(3):
            for t in range(4):
                for k in range(5):
                    expected[o][t * stride + k] += x[c][t] * w[c][o][k]
    assert close(kernels.conv_transpose1d(device.tensor(x), device.tensor(w), stride).tolist(), expected)


def test_random_numbers_follow_seed_and_offset(device: SimDevice) -> None:
    first, second = device.rand(3), device.rand(5)
    device.manual_seed(0)
    assert device.rand(3).tolist() == first.tolist()
    assert device.rand(5).tolist() == second.tolist()
    values = device.rand(4000).tolist()
    assert isinstance(values, list)
    numbers = [value for value in values if isinstance(value, float)]
    assert len(set(numbers)) == 4000
    assert 0.0 <= min(numbers) < max(numbers) < 1.0
    assert abs(sum(numbers) / 4000 - 0.5) < 0.03
    device.manual_seed(1)
    assert device.rand(3).tolist() != first.tolist()


def test_a_replay_draws_what_eager_would_draw_next(device: SimDevice) -> None:
    def body() -> list[SimTensor]:
        return [device.rand(3), device.rand(6)]

    graph, outputs = captured(device, body, device.new_stream())
    device.manual_seed(5)
    eager = [[t.tolist() for t in body()] for _ in range(2)]
    device.manual_seed(5)
    replayed = []
    for _ in range(2):
        graph.replay()
        replayed.append([t.tolist() for t in outputs])
    assert replayed == eager
    assert eager[0] != eager[1]


class Vocoder:
    """A code embedding, a block of attention, two transposed convolutions: the shape of the demo's model."""

    def __init__(self, device: SimDevice, width: int = 8) -> None:
        self.table = device.rand(16, width)
        self.query, self.key, self.value = (kernels.add(device.rand(width, width), device.rand(width)) for _ in range(3))
        self.up = [device.rand(width, width // 2, 4), device.rand(width // 2, 1, 4)]

    def __call__(self, ids: SimTensor, padding: SimTensor, lively: SimTensor) -> SimTensor:
        x = kernels.embedding(ids, self.table)
        scores = kernels.matmul(kernels.matmul(x, self.query), kernels.matmul(x, self.key).t())
        weights = kernels.softmax(kernels.masked_fill(kernels.scale(scores, 0.1), padding, -math.inf))
        x = kernels.add(x, kernels.matmul(weights, kernels.matmul(x, self.value)))
        x = kernels.mul(x.t().reshape(x.shape[1], x.shape[0]), lively)
        for weight in self.up:
            x = kernels.tanh(kernels.conv_transpose1d(x, weight, 2))
        return x


def test_a_small_vocoder_replays_bit_for_bit_what_eager_computes_padded_or_not(device: SimDevice) -> None:
    model, frames, bucket, random = Vocoder(device), 11, 16, Random(0)
    ids, padding, lively = (device.zeros(bucket) for _ in range(3))
    device.synchronize()  # the warm-up runs on another stream
    with device.on_stream(stream := device.new_stream()):
        model(ids, padding, lively)
    graph, out = captured(device, lambda: model(ids, padding, lively), stream)
    for _ in range(3):
        codes = [float(random.randrange(16)) for _ in range(frames)]
        eager = model(device.tensor(codes), device.zeros(frames), device.zeros(frames).fill_(1.0))
        ids.narrow(0, 0, frames).copy_(device.tensor(codes))
        padding.zero_().narrow(0, frames, bucket - frames).fill_(1.0)
        lively.fill_(1.0).narrow(0, frames, bucket - frames).zero_()
        padded = model(ids, padding, lively).tolist()
        graph.replay()
        assert out.tolist() == padded
        assert out.narrow(1, 0, eager.shape[1]).tolist() == eager.tolist()
