"""The data types that autocast gives to results, against PyTorch's own on fake CUDA tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from unittest import mock

import pytest

import lolat
from lolat.graph.analysis import analyze
from lolat.graph.lowering import lowered_eagerly
from lolat.graph.memory import element_bytes
from lolat.graph.modes import AMP, Mode
from tests.training.known import live_bytes, saved_bytes

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from lolat.readers.torch.detectors import roi_align  # noqa: E402

F = torch.nn.functional
WIDTH = 8


def ones(x: Any) -> Any:
    return torch.ones(WIDTH, device=x.device)


CASES: dict[str, Callable[[Any], Any]] = {
    # PyTorch's list of float32 (AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE), without losses
    **{name: getattr(torch, name) for name in (
        ["acos", "asin", "cosh", "sinh", "tan", "erfinv", "exp", "expm1", "log",
         "log10", "log2", "log1p", "reciprocal", "rsqrt"])},
    "pow": lambda x: x.pow(1.7), "pow of a tensor": lambda x: x.pow(x), "cube": lambda x: x**3,
    "1 / x": lambda x: 1 / x, "x**2": lambda x: x**2, "2 ** x": lambda x: 2**x,
    "softplus": F.softplus, "softmax": lambda x: x.softmax(1), "log_softmax": lambda x: x.log_softmax(1),
    "cumsum": lambda x: x.cumsum(1), "cumprod": lambda x: x.cumprod(1), "prod": lambda x: x.prod(1),
    "sum": lambda x: x.sum(1), "sum of all but the batch": lambda x: x.sum((1, 2, 3)),
    "norm": lambda x: x.norm(dim=1), "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "logsumexp": lambda x: x.logsumexp(1),
    "renorm": lambda x: x.renorm(2, 0, 1.0), "normalize": F.normalize,
    "cdist": lambda x: torch.cdist(x.flatten(2), x.flatten(2)),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "group_norm": lambda x: F.group_norm(x, 2, ones(x), ones(x)),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[1:]),
    "local_response_norm": lambda x: F.local_response_norm(x, 3),
    **{f"upsample {mode}": lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode)  # type: ignore[misc]
       for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")},
    "upsample antialias": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", antialias=True),
    "upsample linear": lambda x: F.interpolate(x.flatten(2), scale_factor=2, mode="linear"),
    # its list of half precision that are no products, and those that keep their input's
    "prelu": lambda x: F.prelu(x, ones(x)),
    **{name: getattr(torch, name) for name in (
        ["sin", "cos", "atan", "asinh", "acosh", "atanh", "tanh", "sigmoid",
         "erf", "exp2", "sqrt", "abs", "neg", "square", "floor", "sign"])},
    **{name: getattr(F, name) for name in (
        ["relu", "relu6", "gelu", "silu", "mish", "elu", "celu", "selu",
         "leaky_relu", "hardswish", "hardsigmoid", "logsigmoid", "softsign",
         "tanhshrink"])},
    "mean": lambda x: x.mean(1), "amax": lambda x: x.amax(1), "var": lambda x: x.var(1),
    "std": lambda x: x.std(1), "max": lambda x: x.max(1)[0], "cummax": lambda x: x.cummax(1)[0],
    "logcumsumexp": lambda x: x.logcumsumexp(1), "logaddexp": lambda x: torch.logaddexp(x, x),
    "instance_norm": F.instance_norm, "batch_norm": lambda x: F.batch_norm(x, *[ones(x)] * 4),
    "max_pool": lambda x: F.max_pool2d(x, 2), "avg_pool": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool": lambda x: F.adaptive_avg_pool2d(x, 1),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pad": lambda x: F.pad(x, (1, 1)), "sort": lambda x: x.sort(1)[0],
    "cat": lambda x: torch.cat([x, x]), "glu": lambda x: F.glu(x, 1),
    "einsum": lambda x: torch.einsum("bchw,bdhw->bcd", x, x), "clamp": lambda x: x.clamp(0, 1),
}  # fmt: skip


@contextmanager
def on_gpu() -> Iterator[None]:
    """Fake CUDA tensors under autocast; the context torch.autocast turns itself off without a GPU."""
    enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float16)
    torch.set_autocast_cache_enabled(False)  # which needs a GPU
    try:
        with FakeTensorMode():
            yield
    finally:
        torch.set_autocast_enabled("cuda", enabled)
        torch.set_autocast_dtype("cuda", dtype)
        torch.set_autocast_cache_enabled(True)


class Behind(torch.nn.Module):  # type: ignore[misc]
    """An operation behind a convolution, in half precision, or behind an exponential, in float32."""

    def __init__(self, case: Callable[[Any], Any], is_half: bool) -> None:
        super().__init__()
        self.case, self.is_half = case, is_half
        self.conv = torch.nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        return self.case(x if self.is_half else x.exp())


@pytest.mark.parametrize("is_half", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_autocast_gives_results_the_types_of_pytorch(name: str, is_half: bool) -> None:
    graph = lolat.read((Behind(CASES[name], is_half).eval(), torch.zeros(2, WIDTH, 12, 12)))
    dtype = torch.float16 if is_half else torch.float32
    with on_gpu(), torch.no_grad():
        own = CASES[name](torch.empty(2, WIDTH, 12, 12, device="cuda", dtype=dtype))
    assert element_bytes(graph, Mode(AMP))[graph.outputs[0]] == own.element_size()


class Conversions(TorchDispatchMode):  # type: ignore[misc]
    """Adds the bytes of images that are copied to another data type."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        is_copy = function is torch.ops.aten._to_copy.default and args[0].numel() > WIDTH
        if is_copy and result.dtype != args[0].dtype:
            self.bytes += sum(t.numel() * t.element_size() for t in (args[0], result))
        return result


OTHERS = frozenset(["cumsum", "cumprod", "logsumexp", "cosine_similarity"])
"""Sums that convert inside their operation, and two whose copy is not counted."""


@pytest.mark.parametrize("is_half", [True, False])
@pytest.mark.parametrize("name", sorted(CASES.keys() - OTHERS))
def test_autocast_converts_what_pytorch_converts(name: str, is_half: bool) -> None:
    graph = lolat.read((Behind(CASES[name], is_half).eval(), torch.zeros(2, WIDTH, 12, 12)))
    dtype = torch.float16 if is_half else torch.float32
    with on_gpu(), torch.no_grad(), Conversions() as own:
        CASES[name](torch.empty(2, WIDTH, 12, 12, device="cuda", dtype=dtype))
    behind = graph.operations[1 + (not is_half) :]  # the convolution and the exponential
    lowering = lowered_eagerly(graph, AMP)
    found = [(graph.tensors[t], a + b) for o in behind for t, a, b in lowering.conversions(o)]
    moved = sum(2 * t.elements() * bytes_of_both for t, bytes_of_both in found if t.batched)
    assert moved == own.bytes


def test_group_norms_of_timms_tables_stay_in_half_precision() -> None:
    """timm's fast_group_norm turns autocast off around them; its layer norms are as ever."""
    if find_spec("timm") is None:
        pytest.skip("could not import 'timm'")
    sizes = {}
    for form in ("", "?half_group_norm"):
        graph = lolat.read(f"timm:test_efficientnet_gn{form}")
        norm = next(o for o in graph.operations if o.kind == "group_norm")
        sizes[form] = element_bytes(graph, Mode(AMP))[norm.outputs[0]]
    assert sizes == {"": 4, "?half_group_norm": 2}


def test_boxes_cut_out_of_images_have_the_type_of_the_images() -> None:
    """torchvision's roi_align runs in float32 and converts its result back (its autocast kernel)."""
    graph = lolat.read(
        (Behind(lambda x: roi_align([x], 3, 7, 7), True).eval(), torch.zeros(2, WIDTH, 12, 12))
    )
    assert element_bytes(graph, Mode(AMP))[graph.outputs[0]] == 2


UNSET = mock.patch.multiple(
    torch.nn.init, kaiming_uniform_=lambda x, a: x, uniform_=lambda x, *a: x
)
"""Random numbers need a GPU."""
BETWEEN = {
    "group_norm": lambda: torch.nn.GroupNorm(2, 64),
    "instance_norm": lambda: torch.nn.InstanceNorm2d(64, affine=True),
    "nearest": lambda: torch.nn.Upsample(scale_factor=2),
    "bilinear": lambda: torch.nn.Upsample(scale_factor=2, mode="bilinear"),
    "softmax": lambda: torch.nn.Softmax(1), "relu": torch.nn.ReLU,
    "group_norm and prelu": lambda: torch.nn.Sequential(torch.nn.GroupNorm(2, 64), torch.nn.PReLU(64)),
}  # fmt: skip


def network(between: str) -> Any:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 1), BETWEEN[between](), torch.nn.Conv2d(64, 64, 1)
    )


@pytest.mark.parametrize("between", BETWEEN)
def test_memory_under_autocast_is_that_of_pytorchs_storages(between: str) -> None:
    graph = lolat.read((network(between).eval(), torch.zeros(1, 3, 64, 64)))
    with on_gpu(), torch.device("cuda"), UNSET:
        net, x = network(between).eval(), torch.empty(4, 3, 64, 64)
        most, _ = live_bytes(lambda: net(x), x, *net.parameters())
    assert analyze(graph).memory(4, Mode(AMP)).total_bytes == pytest.approx(most, rel=5e-3)


@pytest.mark.parametrize(
    ("between", "each"),
    [("group_norm", 4 * 64 + 2 * 64), ("nearest", 4 * 2 * 64), ("relu", 2 * 64)],
)
def test_autograd_keeps_the_copies_that_autocast_makes(between: str, each: int) -> None:
    """The image in half, the norm's input in float32, and the last input in half; bytes at a position."""
    graph = lolat.read((network(between), torch.zeros(1, 3, 64, 64)))
    kept = saved_bytes(graph, 4, Mode(AMP))
    assert kept == pytest.approx(4 * 64 * 64 * (2 * 3 + each), rel=1e-3)
