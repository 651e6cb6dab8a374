"""The PyTorch backend: what it builds is what was asked for, with each of its options."""

from __future__ import annotations

import copy
import os
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from lolat.readers.torch import read_model
from microbench.backends import KERNELS_KEPT, create
from microbench.backends.tape import first
from microbench.backends.torch import keep_freed_memory, libraries
from microbench.backends.torch.layers import block_module, materialize
from microbench.blocks import BLOCKS, Predefined, as_known
from tests.microbench.fakes import covering, small
from tests.processes import python

torch: Any = pytest.importorskip("torch")

READ_BACK = (
    "basic 256x14x14", "mbconv 40x28x28", "stem 7x7/2 3x224x224", "grouped 3x3 128x28x28",
    "4 mobile v3 112x14x14", "2 separable 128x74x74", "transition 256x56x56", "up transposed 256x14x14",
    "convnext 96x56x56", "layer norm, gelu 384x14x14", "flat head 512x7x7",
)  # fmt: skip


def ran(graph: Graph, *inputs: Any) -> Any:
    """What a built block makes of `inputs`, on the host with weights."""
    module = materialize(torch, block_module(torch, graph)[0], "cpu")
    with torch.no_grad():
        return module(*inputs)[0]


@pytest.mark.parametrize("block", covering(), ids=lambda b: b.name)
def test_what_is_built_has_the_shapes_and_the_work_of_the_graph(block: Predefined) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    graph = block.make()
    module, shapes = block_module(torch, graph)
    (wanted,) = graph.shapes(graph.outputs)
    for batch_size in (1, 2):
        given = [torch.empty((batch_size, *s[1:]), device="meta") for s in shapes]
        with FlopCounterMode(display=False) as counter:
            (out,) = module(*given)
        assert out.shape[0] == batch_size
        assert tuple(out.shape[1:]) in (wanted[1:], first(wanted)[1:] if len(wanted) > 2 else ())
        # PyTorch's own counter has two for a multiplication and an addition.
        assert counter.get_total_flops() == 2 * count(graph).total(batch_size).flops
    normalization = sum(
        2 * graph.tensors[o.outputs[0]].shape[-1]
        for o in graph.operations
        if o.kind in ("batch_norm", "layer_norm")
    )
    parameters = sum(p.numel() for p in module.parameters())
    assert parameters == count(graph).total().weights + normalization


@pytest.mark.parametrize("name", READ_BACK)
def test_read_again_it_counts_the_same(name: str) -> None:
    """The transpositions around a layer norm are free, so that these are all counts."""
    graph = as_known("torch", next(b for b in BLOCKS if b.name == name).make())
    module, shapes = block_module(torch, graph)
    size = shapes[0][1:] if len(shapes) == 1 else [s[1:] for s in shapes]
    read = read_model(module, "again", size)
    assert count(read).warnings == ()
    ours, theirs = (Counter(count(g).total(3)._asdict()) for g in (graph, read))
    if name.startswith("stem"):  # a rescaling is one operation here, a product and a sum there
        image = 3 * 3 * 224 * 224
        ours.update(ops=1, pair_ops=1, traffic=2 * image, pair_elements=2 * image)
        for column in ("serial", "threaded", "streamed"):
            theirs.pop(column), ours.pop(column)
    assert theirs == ours


# ---- values: the same as in Keras -----------------------------------------------------------------


def image(size: int, channels: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((2, size, size, channels)).astype(np.float32)


def turned(x: np.ndarray) -> Any:
    return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))


def convolved(
    size: int, kernel: int, stride: int, dilation: int = 1
) -> tuple[Any, Any, np.ndarray]:
    """(the built layer's output, its kernel, its input), all channels last."""
    b = GraphBuilder("one")
    side = -(-size // stride)
    out = b.add(
        "conv", [b.input((1, size, size, 3))], (1, side, side, 4), kernel=(kernel, kernel),
        strides=(stride, stride), dilation=(dilation, dilation), padding="same", bias=True,
        in_channels=3, out_channels=4, groups=1,
    )  # fmt: skip
    graph = b.build([out])
    module = materialize(torch, block_module(torch, graph)[0], "cpu")
    layer = next(m for m in module.modules() if isinstance(m, torch.nn.Conv2d))
    x = image(size, 3)
    with torch.no_grad():
        (out,) = module(turned(x))
    return out.numpy().transpose(0, 2, 3, 1), layer, x


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation"),
    [
        (9, 3, 1, 1), (9, 3, 2, 1), (9, 5, 2, 1), (8, 2, 1, 1), (8, 4, 4, 1), (9, 3, 1, 2),
        (8, 4, 1, 1), (9, 2, 2, 1),
    ],
)  # fmt: skip
def test_a_convolution_is_that_of_keras(size: int, kernel: int, stride: int, dilation: int) -> None:
    """Wherever as much is padded on both sides, or no symmetric padding gives the size."""
    keras: Any = pytest.importorskip("keras")
    out, layer, x = convolved(size, kernel, stride, dilation)
    twin = keras.layers.Conv2D(4, kernel, stride, "same", dilation_rate=dilation)
    twin.build(x.shape)
    twin.set_weights([
        layer.weight.detach().numpy().transpose(2, 3, 1, 0), layer.bias.detach().numpy()
    ])  # fmt: skip
    expected = np.asarray(twin(x))
    if (size, kernel, stride) == (9, 2, 2):  # Keras pads behind, here in front and behind
        assert out.shape == expected.shape
        return
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_at_stride_two_an_even_image_is_padded_as_pytorch_does() -> None:
    """Keras pads one row behind; PyTorch's networks one on each side, of which one is never read."""
    keras: Any = pytest.importorskip("keras")
    out, layer, x = convolved(8, 3, 2)
    assert layer.padding == (1, 1)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    kernel = layer.weight.detach().numpy().transpose(2, 3, 1, 0)
    expected = keras.ops.conv(padded, kernel, 2, "valid") + layer.bias.detach().numpy()
    assert out.shape == (2, 4, 4, 4)
    np.testing.assert_allclose(out, np.asarray(expected), atol=1e-5)


@pytest.mark.parametrize(("kind", "layer"), [("max_pool", "Max"), ("average_pool", "Average")])
@pytest.mark.parametrize(
    ("size", "kernel", "stride"), [(9, 3, 2), (8, 2, 2), (9, 3, 1), (8, 4, 1), (7, 2, 1)]
)
def test_a_pool_is_that_of_keras(
    kind: str, layer: str, size: int, kernel: int, stride: int
) -> None:
    keras: Any = pytest.importorskip("keras")
    n = Layers.on("one", size, size, 3)
    graph = n.done(n.pool(n.input, kernel, stride, kind))
    x = image(size, 3)
    out = ran(graph, turned(x)).numpy().transpose(0, 2, 3, 1)
    expected = np.asarray(getattr(keras.layers, f"{layer}Pooling2D")(kernel, stride, "same")(x))
    assert out.shape == expected.shape
    if kind == "max_pool" or kernel % 2:  # a mean over zeros that were padded is smaller
        np.testing.assert_allclose(out, expected, atol=1e-5)


def test_a_pool_whose_last_window_ends_outside() -> None:
    """As in SqueezeNet and GoogLeNet: 3x3 at stride 2 without padding makes 4 of 8, or of 9."""
    for size in (8, 9):
        b = GraphBuilder("ceil")
        x = b.input((1, 6, size, size))
        shape = (1, 6, 4, 4)
        graph = b.build(
            [b.add("max_pool", [x], shape, kernel=(3, 3), strides=(2, 2), padding="valid")]
        )
        given = torch.randn(2, 6, size, size)
        out = ran(graph, given)
        assert tuple(out.shape) == (2, *shape[1:])
    expected = torch.nn.functional.max_pool2d(given, 3, 2, ceil_mode=True)
    assert torch.equal(out, expected)


def test_what_others_read_is_not_overwritten() -> None:
    """add(y, relu(y)) of y = batch_norm(x), whose mean is 0 and variance 1; and relu of the input."""
    n = Layers.on("twice", 4, 4, 3)
    y = n.same("batch_norm", n.input)
    graph = n.done(n.same("add", y, n.same("relu", y)))
    x = torch.randn(2, 3, 4, 4)
    scaled = x / (1 + 1e-5) ** 0.5
    assert torch.allclose(ran(graph, x), scaled + scaled.relu(), atol=1e-6)
    n = Layers.on("input", 4, 4, 3)
    before = x.clone()
    ran(n.done(n.same("relu", n.input)), x)
    assert torch.equal(x, before)
    n = Layers.on("alone", 4, 4, 3)
    module, _ = block_module(torch, n.done(n.same("relu", n.same("batch_norm", n.input))))
    assert [m.inplace for m in module.modules() if isinstance(m, torch.nn.ReLU)] == [True]


# ---- options and environment ---------------------------------------------------------------------


def test_the_environment_says_what_makes_times_comparable() -> None:
    found = create("torch+compile+half", "cpu").environment()
    assert found.items() >= {
        "threads": torch.get_num_threads(),
        "inter_op_threads": torch.get_num_interop_threads(),
        "float32_products": "highest",
        "keeps_freed_memory": keep_freed_memory(),
        "libraries": libraries(torch),
        "compile": True, "channels_last": False, "half": True,
    }.items()  # fmt: skip


BUILT = """PyTorch built with:
  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605 for Intel(R) 64
  - Intel(R) MKL-DNN v3.12.0 (Git Hash 80afa71049cd69a3df32adcccb623b12cd7baa22)
  - OpenMP 201511 (a.k.a. OpenMP 4.5)
  - Build settings: BLAS_INFO=mkl, BUILD_TYPE=Release, USE_MKL=ON
"""


def made_up(built: str, **cpu: Any) -> Any:
    """What `libraries` asks of PyTorch."""
    yes, no = (SimpleNamespace(is_available=lambda n=n: n, enabled=n) for n in (True, False))
    backends = SimpleNamespace(mkldnn=yes, mkl=yes, openmp=no, **cpu)
    config = SimpleNamespace(show=lambda: built)
    return SimpleNamespace(__config__=config, backends=backends)


def test_the_libraries_that_it_computes_with() -> None:
    switches = {"onednn": True, "onednn_enabled": True, "mkl": True, "openmp": False}
    cpu = SimpleNamespace(get_cpu_capability=lambda: "AVX512")
    assert libraries(made_up(BUILT, cpu=cpu)) == switches | {
        "onednn_version": "3.12.0", "mkl_version": "2024.2-Product", "openmp_version": "201511",
        "blas": "mkl", "cpu_capability": "AVX512",
    }  # fmt: skip
    assert libraries(made_up("PyTorch built with:\n", cpu=cpu)) == switches | {
        "cpu_capability": "AVX512"
    }


def test_onednn_switched_off_is_seen() -> None:
    found = libraries(torch)
    assert found["onednn"] == torch.backends.mkldnn.is_available()
    assert found["cpu_capability"] in torch.__config__.show(), "as PyTorch says in another place"
    with torch.backends.mkldnn.flags(enabled=False):
        assert libraries(torch) == found | {"onednn_enabled": False}


def test_every_batch_size_is_compiled_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda m, **options: compiled.append(options) or m)
    with torch._dynamo.config.patch(recompile_limit=8):
        create("torch+compile", "cpu").prepare_graph(small(), 2)
        assert compiled == [{"dynamic": False}]
        limit = torch._dynamo.config.recompile_limit
        assert limit >= 1000, "else the ninth batch size is not compiled"


@pytest.mark.slow
@pytest.mark.parametrize("options", ["compile", "half", "channels_last", "channels_last+half"])
def test_options_really_run(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes out is what the plain module makes of the same input, with the same weights."""
    backend: Any = create(f"torch+{options}", "cpu")
    plain, _ = create("torch", "cpu").block(small(), 1)  # type: ignore[attr-defined]
    graphs: list[Any] = []
    real = torch.compile

    def compile(module: Any, **given: Any) -> Any:
        return real(
            module, backend=lambda graph, inputs: graphs.append(graph) or graph.forward, **given
        )

    monkeypatch.setattr(torch, "compile", compile)
    module = backend.with_options(copy.deepcopy(plain))
    for batch_size in (1, 2):
        x = torch.randn(batch_size, 3, 8, 8)
        with torch.inference_mode():
            (expected,), (out,) = plain(x), module(backend.on_device(x))
        assert out.dtype == (torch.float16 if "half" in options else torch.float32)
        assert out.is_contiguous(memory_format=torch.channels_last) == ("last" in options)
        torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-2)
    assert len(graphs) == (2 if options == "compile" else 0), "compiled, once for each batch size"


def test_the_gpu_is_hidden_where_the_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    create("torch", "cpu")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    create("torch", "cpu")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


MANY_SHAPES = """
import sys
from microbench.backends import KERNELS_KEPT, create
create("torch", "cpu")
import torch
x = torch.ones(1, 64, 40, 40)
kernel = torch.ones(16, 64, 3, 3)
with torch.no_grad():
    for again in range(2):
        print("again", again, flush=True)
        for n in range(400):  # a convolution and what puts its tensors into order
            torch.nn.functional.conv2d(x[:, :, : 20 + n // 20, : 20 + n % 20].contiguous(), kernel)
"""


@pytest.mark.slow
def test_code_that_a_shape_needs_is_made_once() -> None:
    """oneDNN says what it makes: nothing the second time, however many shapes ran in between."""
    if not torch_has_onednn():
        pytest.skip("this PyTorch has no oneDNN")
    found = python(MANY_SHAPES, env={**os.environ, "ONEDNN_VERBOSE": "profile_create"})
    first, second = found.stdout.split("again 1")
    assert first.count("create:cache_miss") > 1024, found.stderr
    assert "create:cache_miss" not in second
    assert second.count("create:cache_hit") > 1024


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_KEPT[0], "7")
    create("torch", "cpu")
    assert os.environ[KERNELS_KEPT[0]] == "7"


def torch_has_onednn() -> bool:
    """Whether PyTorch convolves by oneDNN here."""
    import torch

    return bool(torch.backends.mkldnn.is_available())
