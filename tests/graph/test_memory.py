"""Memory of a forward pass: by hand, by Keras' own count of weights, and by PyTorch's allocator."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lolat
from lolat.graph import Graph, GraphBuilder
from lolat.graph.analysis import analyze
from lolat.graph.memory import LARGEST_BATCH, Memory, alive_bytes, largest_fitting
from lolat.graph.modes import AMP, FLOAT16, Mode
from lolat.graph.weights import parameters, weights_bytes
from lolat.training.memory import numbers_of
from tests.allocations import most_bytes
from tests.training.known import live_bytes

CONV = {
    "kernel": (3, 3),
    "in_channels": 8,
    "out_channels": 8,
    "groups": 1,
    "bias": False,
    "strides": (1, 1),
}


def residual() -> Graph:
    """A shortcut over three convolutions; tensors of 4x4x8, 128 elements, but for the wide one."""
    b = GraphBuilder("residual", "keras")
    shape = (1, 4, 4, 8)
    image = b.input(shape)
    short = b.add("batch_norm", [image], shape, "norm")
    x = b.add("conv", [short], shape, "first", **CONV)
    x = b.add("relu", [x], shape, "relu")
    x = b.add("conv", [x], (1, 4, 4, 24), "wide", **{**CONV, "out_channels": 24})
    x = b.add("conv", [x], shape, "second", **{**CONV, "in_channels": 24})
    x = b.add("add", [x, short], shape, "add")
    x = b.add("flatten", [x], (1, 128), "flat")
    x = b.add("dense", [x], (1, 10), "head", in_features=128, out_features=10, bias=True)
    return b.build([x])


# Elements alive besides the image, which stays: what is read, what is written, what waits (`short`).
ALIVE = [128, 256, 384, 128 + 128 + 384, 128 + 384 + 128, 384, 128, 138]
PARAMETERS = (
    2 * 8 + 2 * 8 + 9 * 8 * 8 + 2 * 9 * 8 * 24 + 128 * 10 + 10
)  # bn: also mean and variance


def test_what_is_alive_by_hand() -> None:
    fixed, scaled = alive_bytes(residual())
    assert fixed.tolist() == [0] * 8
    assert scaled.tolist() == [4 * (128 + n) for n in ALIVE]
    memory = analyze(residual()).memory(3)
    assert memory == Memory(4 * PARAMETERS, 3 * 4 * 768, "wide")
    assert memory.total_bytes == 4 * PARAMETERS + 9216
    huge = analyze(residual()).memory(2**40)  # no integer that overflows
    assert huge.activations_bytes == pytest.approx(2**40 * 4 * 768)


def test_in_half_precision_tensors_and_weights_are_half() -> None:
    memory = analyze(residual()).memory(3, Mode(FLOAT16))
    assert memory == Memory(2 * PARAMETERS, 3 * 2 * 768, "wide")


def test_autocast_copies_kernels_as_they_run_and_has_products_in_half() -> None:
    """The image and the shortcut, a result of a norm, are in float32; results of convolutions in half.

    At one sample most is there with the last kernel's copy, beside that of what it reads.
    """
    copied = 2 * (9 * 8 * 8 + 2 * 9 * 8 * 24)
    many = 100 * (4 * 128 + 4 * 128 + 2 * 128 + 2 * 384)
    assert analyze(residual()).memory(100, Mode(AMP)) == Memory(
        4 * PARAMETERS + copied, many, "second"
    )
    one, copied = 4 * 128 + (4 + 2) * 128 + 2 * 10, copied + 2 * (128 * 10 + 10)
    assert analyze(residual()).memory(1, Mode(AMP)) == Memory(4 * PARAMETERS + copied, one, "head")


@pytest.mark.parametrize(("stride", "width"), [(8, 16), (2, 64), (2, 512)])
def test_autocast_has_the_memory_of_pytorchs_storages(stride: int, width: int) -> None:
    """The peak is at the image's copy, at a result before the last kernel is copied, or behind that."""
    import torch
    from torch import nn

    network = nn.Sequential(
        nn.Conv2d(3, 16, stride, stride), nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(64 // stride),
        nn.Flatten(), nn.Linear(64, width * 16), nn.Tanh(), nn.Linear(width * 16, width * 4),
    ).eval()  # fmt: skip
    x = torch.zeros(4, 3, 128, 128)
    held = [*network.parameters(), *(b for b in network.buffers() if b.dim())]
    with torch.autocast("cpu", torch.bfloat16):
        most, _ = live_bytes(lambda: network(x), x, held)
    assert analyze(lolat.read((network, x))).memory(4, Mode(AMP)).total_bytes == most


def test_a_tensor_that_does_not_grow_with_the_batch_and_other_types() -> None:
    b = GraphBuilder("text")
    tokens = b.input((1, 16), "int64")
    x = b.add(
        "embedding", [tokens], (1, 16, 32), "table", dtype="float16", rows=100, out_features=32
    )
    position = b.tensor((1, 16, 32), batched=False, dtype="float16")
    x = b.add("add", [x, position], (1, 16, 32), "sum")
    graph = b.build([x])
    fixed, scaled = alive_bytes(graph)
    assert scaled.tolist() == [16 * 8 + 1024, 16 * 8 + 1024 + 1024]
    assert fixed.tolist() == [0, 1024]
    assert analyze(graph).memory(5) == Memory(4 * 3200, 5 * (128 + 2048) + 1024, "sum")


def test_no_operations_and_one_that_reads_nothing() -> None:
    b = GraphBuilder("constant")
    x = b.input((1, 4))
    assert analyze(b.build([x])).memory(2) == Memory(0, 0, "")
    both = b.add("add", [x, b.add("fill", [], (1, 4))], (1, 4))
    assert analyze(b.build([both])).memory(1) == Memory(0, 4 * 3 * 4, "add")


def test_weights_that_layers_share_are_kept_once_as_pytorch_counts_them() -> None:
    """Tied embeddings, a layer called twice, one kernel with two biases, a table read at fixed places.

    The parts of the one matrix of an attention are not tied.
    """
    import torch
    from torch import nn

    import lolat

    class Tied(nn.Module):
        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.table, self.twice = nn.Embedding(50, 16), nn.Linear(16, 16)
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.head = nn.Linear(16, 50, bias=False)
            self.places, self.shift, self.unread = (
                nn.Embedding(40, 16),
                nn.Linear(16, 16),
                nn.PReLU(),
            )
            if tied:
                self.head.weight, self.shift.weight = self.table.weight, self.twice.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.table(x) + self.places(torch.arange(x.shape[1]))
            result: torch.Tensor = self.head(self.shift(self.twice(self.layer(self.twice(x)))))
            return result

    for tied in (False, True):
        network = Tied(tied)
        graph = lolat.read(network, 12)
        number = sum(p.numel() for p in network.parameters())  # which names each once
        assert analyze(graph).memory(1).weights_bytes == 4 * number
        assert parameters(graph) == numbers_of(graph).trained + 1 == number  # of PReLU


def test_a_keras_layer_called_twice_is_kept_once() -> None:
    from lolat.readers.keras import import_keras, read_model

    keras = import_keras()
    image, layer, norm = keras.Input((8,)), keras.layers.Dense(8), keras.layers.LayerNormalization()
    inner = keras.Sequential([keras.layers.Dense(8), keras.layers.BatchNormalization()])
    network = keras.Model(image, inner(norm(layer(norm(layer(inner(image)))))))
    assert analyze(read_model(network)).memory(1).weights_bytes == 4 * network.count_params()


def test_a_parameter_that_is_read_as_a_tensor_is_a_weight_alone(tmp_path: Path) -> None:
    """A table that is added takes its bytes once, in ONNX, Keras, and PyTorch with a compiler."""
    from lolat.readers.keras import import_keras
    from lolat.readers.onnx import read_file
    from tests.readers.onnx_networks import model, node, saved

    torch = pytest.importorskip("torch")
    elements, bytes_of = 64 * 96, 4 * 64 * 96
    table = np.zeros((64, 96), np.float32)
    file = model([node("Add", "x p", "y")], x=("N", 64, 96), p=table)
    keras = import_keras()

    class Positions(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(64, 96), name="table")

        def call(self, x: Any) -> Any:
            return x + self.table

    class Added(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.zeros(64, 96))

        def forward(self, x: Any) -> Any:
            return x + self.table

    image = keras.Input((64, 96))
    networks = [
        read_file(saved(tmp_path, file)), lolat.read(keras.Model(image, Positions()(image))),
        lolat.read(Added(), (64, 96)),
    ]  # fmt: skip
    for graph in networks:
        assert parameters(graph) == elements
        for mode in (Mode(), Mode(launch="graph")):
            found = analyze(graph).memory(1, mode)
            assert (found.weights_bytes, found.activations_bytes) == (bytes_of, 2 * bytes_of)


@pytest.mark.slow
def test_tensors_are_those_of_pytorchs_allocator() -> None:
    """A chain without modules that hold on to their input; none of it is computed in place.

    The profiler's events are what the allocator took and gave back; the input was there before.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    from lolat.readers.torch import read_model

    module = torch.nn.Sequential(
        torch.nn.Linear(256, 2048), torch.nn.Tanh(), torch.nn.Linear(2048, 4096), torch.nn.Sigmoid(),
        torch.nn.Linear(4096, 64), torch.nn.Tanh(),
    ).eval()  # fmt: skip
    x = torch.randn(32, 256)
    with torch.inference_mode():
        module(x)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            module(x)
    memory = analyze(read_model(module, (256,))).memory(32)
    assert memory.activations_bytes == most_bytes(found) + x.numel() * 4
    assert memory.weights_bytes == sum(p.numel() * 4 for p in module.parameters())


@pytest.mark.parametrize("tied", [False, True])
def test_autocast_keeps_no_half_copy_of_a_table(tied: bool) -> None:
    builder = GraphBuilder("words", "torch")
    tokens = builder.input((1, 16), "int64")
    shared = {"parameter": 0} if tied else {}
    table = {"rows": 100, "out_features": 32, **shared}
    x = builder.add("embedding", [tokens], (1, 16, 32), "table", dtype="float32", **table)
    kernel = {"in_features": 32, "out_features": 100, "bias": False, **shared}
    kernel |= {"tied": "kernel"} if tied else {}
    y = builder.add("dense", [x], (1, 16, 100), "head", **kernel)
    memory = analyze(builder.build([y])).memory(1, Mode("amp"))
    half = 2 * 100 * 32  # of the product, be its kernel the table or not
    assert memory.weights_bytes == 4 * 100 * 32 * (1 if tied else 2) + half


@pytest.mark.parametrize(("act", "in_place"), [("GELU", False), ("ReLU", True), ("SiLU", True)])
def test_eager_pytorch_holds_the_inputs_of_a_module(act: str, in_place: bool) -> None:
    """As its profiler has them: a narrow tensor that the outer module holds, and two wide ones, or one."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    acts = [getattr(torch.nn, act)(**({"inplace": True} if in_place else {})) for _ in range(2)]
    there, back = torch.nn.Linear(512, 2048, bias=False), torch.nn.Linear(2048, 512, bias=False)
    inner = torch.nn.Sequential(there, acts[0], back, acts[1])
    network = torch.nn.Sequential(torch.nn.Linear(32, 512), inner, torch.nn.Linear(512, 1)).eval()
    x = torch.randn(256, 32)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        network(x)
    most = most_bytes(seen)
    graph, narrow = lolat.read((network, x)), 4 * 256 * 512
    assert most == (6 if in_place else 9) * narrow
    assert analyze(graph).memory(256).activations_bytes == most + x.nbytes
    compiled = analyze(graph).memory(256, Mode(launch="compiled"))
    assert compiled.activations_bytes == 8 * narrow + x.nbytes


def most_without_onednn(network: Any, x: Any) -> int:
    """The most bytes that a forward pass allocates, by PyTorch's profiler, without oneDNN's workspaces."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    plain = torch.backends.mkldnn.flags(enabled=False)
    seen = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with torch.no_grad(), plain, seen:
        network(x)
    return most_bytes(seen)


SLICES = {"chunk": lambda y: y.chunk(2, 1)[1], "inside": lambda y: y[:, :256, :, 1:]}
READERS = {
    "pool": ("AvgPool2d", (2,)),
    "adaptive": ("AdaptiveAvgPool2d", (7,)),
    "global": ("AdaptiveAvgPool2d", (1,)),
    "group": ("GroupNorm", (8, 256)),
    "batch": ("BatchNorm2d", (256,)),
    "conv": ("Conv2d", (256, 16, 1)),
}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("cut", SLICES)
@pytest.mark.parametrize("reader", READERS)
def test_eager_pytorch_copies_a_slice_for_kernels_of_contiguous_tensors(
    reader: str, cut: str, batch: int
) -> None:
    """As its profiler has them: the whole, the copy, and the result, without a workspace of oneDNN."""
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            name, sizes = READERS[reader]
            self.whole, self.reader = torch.nn.Conv2d(3, 512, 1), getattr(torch.nn, name)(*sizes)

        def forward(self, x: Any) -> Any:
            return self.reader(SLICES[cut](self.whole(x)))

    network, x = Network().eval(), torch.rand(batch, 3, 64, 64)
    most = most_without_onednn(network, x)
    graph = lolat.read((network, x[:1]))
    counted = analyze(graph).memory(batch)
    assert counted.activations_bytes == pytest.approx(most + x.nbytes, rel=1e-3)


@pytest.mark.parametrize("batch", [1, 4])
def test_eager_pytorch_copies_a_transposed_image_for_a_dense_layer(batch: int) -> None:
    """As its profiler has them: the tokens as they lie, their copy for a batch, and the result."""
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.dense = torch.nn.Conv1d(8, 256, 1), torch.nn.Linear(256, 512)

        def forward(self, x: Any) -> Any:
            return self.dense(self.conv(x).transpose(1, 2))

    network, x = Network().eval(), torch.rand(batch, 8, 1024)
    most = most_without_onednn(network, x)
    counted = analyze(lolat.read((network, x[:1]))).memory(batch)
    assert counted.activations_bytes == pytest.approx(most + x.nbytes, rel=1e-3)


PADDINGS = {
    "explicit": lambda nn: [nn.ZeroPad2d((1, 2, 1, 2)), nn.Conv2d(16, 16, 4)],
    "reflected": lambda nn: [nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect")],
    "same": lambda nn: [nn.Conv2d(16, 16, 4, padding="same")],
    "in between": lambda nn: [nn.Conv2d(16, 16, 1), nn.ConstantPad2d(1, 0.5), nn.Conv2d(16, 16, 3)],
}


@pytest.mark.parametrize("name", PADDINGS)
def test_the_padded_copy_lives_while_a_convolution_reads_it(name: str) -> None:
    """By storages that live at once; a convolution's own scratch memory is none of them."""
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(*PADDINGS[name](torch.nn)).eval()
    x = torch.randn(4, 16, 64, 64)
    with torch.no_grad():
        most, _ = live_bytes(lambda: network(x), x, *network.parameters())
    counted = analyze(lolat.read((network, x[:1]))).memory(4)
    assert counted.total_bytes == pytest.approx(most, rel=1e-3)


@pytest.mark.parametrize("code", ["rows", "queries", "keys"])
def test_an_expanded_tensor_takes_memory_where_it_is_copied(code: str) -> None:
    """By PyTorch's storages: rows gathered from a view, queries for each sample, keys for each head."""
    import torch

    table = torch.nn.Linear(64, 64)
    queries = torch.nn.Parameter(torch.zeros(100, 64))

    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            n, steps, _ = x.shape
            h = table(x)
            if code == "rows":
                at = torch.zeros(n, steps, 1, 64, dtype=torch.long)
                return torch.gather(h[:, :, None].expand(n, steps, 50, 64), 2, at).squeeze(2)
            if code == "queries":
                return table(queries[None].expand(n, -1, -1).reshape(-1, 64)), h
            del h
            return table(x)[:, None].expand(n, 8, steps, 64).reshape(n, 8 * steps, 64).relu()

    x = torch.zeros(8, 20, 64)
    weights = (*table.parameters(), queries)
    most, _ = live_bytes(lambda: Network()(x), x, weights)
    most -= sum(p.nbytes for p in weights)
    assert analyze(lolat.read((Network(), x))).memory(8).activations_bytes == most


@pytest.mark.parametrize("code", ["names", "list", "parts", "turned", "constant"])
def test_memory_lasts_as_long_as_the_code_of_pytorch_holds_it(code: str) -> None:
    """By PyTorch's storages: names and a list in `forward`, parts of one result, a copy, a mask."""
    import torch

    layers = torch.nn.ModuleList(torch.nn.Linear(64, n) for n in (64, 192, 64))
    x = torch.zeros(4, 16, 64)

    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            first, wide, last = layers
            if code == "names":
                a = first(x)
                b = first(a)
                return wide(b)
            if code == "list":
                found = [x]
                for _ in range(4):
                    found.append(first(found[-1]))
                return wide(found[-1])
            mask = torch.ones(64, 64).tril().mul(2.0) if code == "constant" else 1.0
            one, two, _ = wide(x).chunk(3, -1)
            if code == "turned":
                two = two.transpose(1, 2).reshape(-1, 16, 64)
            return wide(last(one * two) @ mask if code == "constant" else last(one * two))

    weights = [*layers.parameters()]
    most, _ = live_bytes(lambda: Network()(x), x, weights)
    most -= sum(p.nbytes for p in weights)
    assert analyze(lolat.read((Network(), x))).memory(4).activations_bytes == most


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_the_code_has_in_float32_stays_so(dtype: str) -> None:
    """By PyTorch's storages: a softmax in float32, as of transformers, converts bfloat16 before."""
    import torch

    layer = torch.nn.Linear(64, 64).to(getattr(torch, dtype))
    x = torch.zeros(4, 128, 64, dtype=layer.weight.dtype)

    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            q = layer(x)
            weights = torch.softmax(q @ q.transpose(1, 2), -1, dtype=torch.float32)
            return layer(weights.to(q.dtype) @ q)

    most, _ = live_bytes(lambda: Network()(x), x, list(layer.parameters()))
    most -= sum(p.nbytes for p in layer.parameters())
    analysis = analyze(lolat.read((Network(), x)))
    assert analysis.memory(4, Mode("bfloat16" if dtype == "bfloat16" else "float32")) == (
        analysis.memory(4)
    )
    assert analysis.memory(4).activations_bytes == most
    told = lolat.load("rtx-4090-amp").run_as("bf16").predict(analysis.graph).warnings
    is_told = any("its code converts to float32" in text for text in told)
    assert is_told == (dtype == "float32")


@pytest.mark.parametrize("window", [None, 4096, 64])
def test_the_keys_and_values_of_a_window_are_kept(window: int | None) -> None:
    """By the storages of transformers' own cache: a window is a view of all of them."""
    transformers = pytest.importorskip("transformers")
    import torch

    from lolat.readers.torch.named import load_torchvision

    load_torchvision()

    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 3, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": window}
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, **heads)).eval()
    tokens = {"input_ids": torch.zeros(1, 128, dtype=torch.int64)}
    with torch.no_grad():
        layers = model(**tokens).past_key_values.layers
    graph = lolat.read((model, tokens))
    kept = sum(4 * graph.tensors[t].elements() for t in graph.kept)
    assert kept == sum(
        t.untyped_storage().nbytes() for one in layers for t in (one.keys, one.values)
    )


@pytest.mark.parametrize("affine", [False, True])
def test_normalizations_without_parameters_have_none(affine: bool) -> None:
    """As PyTorch and Keras count theirs; a batch norm keeps means and variances all the same."""
    import torch
    from torch import nn

    from lolat.readers.keras import import_keras, read_model

    layer = {"elementwise_affine": affine}
    norms = [
        nn.GroupNorm(4, 64, affine=affine), nn.InstanceNorm2d(64, affine=affine),
        nn.BatchNorm2d(64, affine=affine), nn.Flatten(), nn.LayerNorm(1024, **layer),
        nn.LayerNorm(1024, bias=False, **layer), nn.RMSNorm(1024, **layer),
    ]  # fmt: skip
    network = nn.Sequential(*norms)
    graph = lolat.read((network, torch.zeros(1, 64, 4, 4)))
    assert parameters(graph) == sum(p.numel() for p in network.parameters())
    tensors = (*network.parameters(), *network.buffers())
    assert weights_bytes(graph) == 4 * sum(t.numel() for t in tensors if t.dim())
    keras = import_keras()
    both = {"center": affine, "scale": affine}
    model = keras.Sequential([
        keras.Input((4, 4, 64)), keras.layers.GroupNormalization(4, **both),
        keras.layers.BatchNormalization(**both), keras.layers.LayerNormalization(center=affine),
    ])  # fmt: skip
    assert weights_bytes(read_model(model)) == 4 * model.count_params()


@pytest.mark.parametrize("first", ["MaxPool", "AdaptiveMaxPool"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_maximum_pool_writes_indices_by_pytorchs_storages(axes: int, first: str) -> None:
    """In eager mode at inference too; in one dimension a CPU writes none without a dispatch mode."""
    import torch
    from torch import nn

    pool, last = (getattr(nn, f"{name}{axes}d") for name in (first, "AdaptiveMaxPool"))
    network = nn.Sequential(pool(2 if first == "MaxPool" else 8), last(1)).eval()
    x = torch.zeros(2, 8, *[16] * axes)
    most, _ = live_bytes(lambda: network(x), x)
    graph = lolat.read((network, x))
    assert analyze(graph).memory(2).activations_bytes == most
    results = 2 * 8 * 8**axes
    assert most == x.nbytes + (4 + 8) * results
    compiled = analyze(graph).memory(2, Mode(launch="compiled"))
    assert compiled.activations_bytes == x.nbytes + 4 * (results + 16)


@given(
    st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**6)), min_size=1, max_size=4),
    st.integers(0, 10**12),
)
def test_the_largest_batch_that_fits_is_that_of_halving(
    lines: list[tuple[int, int]], has: int
) -> None:
    def needed(n: int) -> int:
        return max(fixed + each * n for fixed, each in lines)

    assert largest_fitting(needed, has) == bisect_right(
        range(1, LARGEST_BATCH + 1), has, key=needed
    )
