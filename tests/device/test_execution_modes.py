"""Execution modes of a device, its measurements, and networks in half precision."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lolat
from lolat.api.model import Model
from lolat.device.execution_modes import _changed
from lolat.device.file import DeviceFile, new_document
from lolat.device.summary import fitted_on_words, mode_words
from lolat.errors import AnswerIsNo, InputError, LolatError
from lolat.graph import Graph, GraphBuilder
from tests import synthetic

needs_timm = pytest.mark.skipif(
    importlib.util.find_spec("timm") is None, reason="could not import 'timm'"
)


def layers(dtype: str = "float32") -> Graph:
    b = GraphBuilder("layers", "torch")
    x = b.input((1, 4096), dtype)
    for _ in range(4):
        x = b.add(
            "dense", [x], (1, 4096), in_features=4096, out_features=4096, bias=False, dtype=dtype
        )
    return b.build([x])


def test_a_precision_is_refused_by_the_name_of_the_device() -> None:
    with pytest.raises(InputError, match="epyc-2t-torch has no data sheet"):
        lolat.load("epyc-2t-torch").run_as("amp")


def test_a_title_says_what_the_answer_is_of() -> None:
    found = lolat.load("a100-fp32").run_as("amp", "compiled").predict(layers(), 512)
    assert found.title == "layers · batch 512 · 4096 · amp, PyTorch, compiled"
    assert (found.precision, found.framework, found.launch) == ("amp", "torch", "compiled")


def test_another_precision_is_an_estimate_that_says_so() -> None:
    model = lolat.load("a100-fp32")
    plain, half = (model.run_as(p).predict(layers(), 4096) for p in (None, "amp"))
    assert half.latency_ms < plain.latency_ms / 5  # 312 TFLOPS against 19.5
    widths = [p.interval_ms[1] / p.interval_ms[0] for p in (plain, half) if p.interval_ms]
    assert widths[1] > 1.3 * widths[0]
    assert any("data sheet of A100 PCIe 40 GB (312 TFLOPS" in w for w in half.warnings)
    assert not any("data sheet" in w for w in plain.warnings)


def test_a_network_in_half_precision_is_answered_in_its_own_or_refused() -> None:
    """No V100 computes in bfloat16 (NVIDIA's data sheet); the fastest precision is no other one."""
    graph, own = layers("bfloat16"), ["bf16"]
    with pytest.raises(InputError, match="has no units for bf16"):
        lolat.load("v100").predict(graph, precision="best")
    answers = lolat.predict(graph, ["v100", "a100"], precision="best")
    assert ([p.precision for p in answers], [*answers.left_out]) == (own, ["v100"])
    assert "fp16" not in {p.precision for p in lolat.predict(graph, "all")}


def test_weights_that_each_context_of_autocast_converts_are_told_and_widen_the_interval() -> None:
    """4 x 4096 x 4096 weights: 4 bytes read, 2 written, at the 1008 GB/s of a RTX 4090."""
    converts_ms, model = 4 * 4096**2 * 6 / 1008e6, lolat.load("rtx-4090-amp")
    found = model.predict(layers(), 16)
    (told,) = (w for w in found.warnings if "torch.autocast" in w)
    assert f"{converts_ms:.3f} ms or more" in told
    assert found.interval_ms
    assert found.interval_ms[1] > found.latency_ms + converts_ms
    for other in (model.run_as("bf16").predict(layers(), 16), model.predict(layers(), 65536)):
        assert not any("autocast" in w for w in other.warnings)  # no copies; less than a tenth


def test_pytorch_keeps_converted_weights_until_the_context_ends() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    layer, x = torch.nn.Linear(8, 8, bias=False), torch.zeros(2, 8)

    class Conversions(TorchDispatchMode):
        number = 0

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), more: Any = None
        ) -> Any:
            self.number += "_to_copy" in str(function) and args[0].shape == (8, 8)
            return function(*args, **(more or {}))

    def conversions(contexts: int, passes: int) -> int:
        with Conversions() as seen:
            for _ in range(contexts):
                with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                    for _ in range(passes):
                        layer(x)
        return seen.number

    assert (conversions(1, 2), conversions(2, 1)) == (1, 2)


@pytest.mark.parametrize(
    ("name", "mode", "measured"),
    [
        ("rtx-pro-6000-amp-compiled", ("bf16", None), "rtx-pro-6000-bf16-compiled"),
        ("rtx-4090-amp", (None, "compiled"), "rtx-4090-amp-compiled"),
        ("rtx-5090-amp-compiled", (None, "eager"), "rtx-5090-amp"),
        ("h100-fp32", ("fp16", None), "h100-fp16"),
        ("h100-fp32", ("bf16", None), "h100-fp16"),  # as many bytes, on the same units
        ("rtx-4090-amp", ("fp16", "compiled"), "rtx-4090-amp-compiled"),
    ],
)
def test_a_shipped_model_that_was_measured_so_answers(
    name: str, mode: tuple[str | None, str | None], measured: str
) -> None:
    found, other = lolat.load(name).run_as(*mode), lolat.load(measured)
    precision, launch = mode
    twice = lolat.load(name).run_as(precision).run_as(launch=launch)
    assert found.profile == twice.profile == measured
    assert found.label == name
    same = other.predict(layers(), 64, precision=precision)
    assert found.predict(layers(), 64).latency_ms == same.latency_ms
    if launch == "compiled":  # is nearer to a graph than one by one
        by_graph = lolat.load(name).run_as(precision, "graph"), other.run_as(precision, "graph")
        assert [m.profile for m in by_graph] == [measured] * 2


def images() -> Graph:
    """Four convolutions."""
    b = GraphBuilder("images", "torch")
    x = b.input((1, 56, 56, 64))
    for _ in range(4):
        x = b.add(
            "conv", [x], (1, 56, 56, 64), kernel=(3, 3), strides=(1, 1), groups=1, bias=False,
            in_channels=64, out_channels=64,
        )  # fmt: skip
    return b.build([x])


PROFILES = [m.name for m in lolat.models() if lolat.load(m.name).file.has_latencies]


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(
    name=st.sampled_from(PROFILES),
    precision=st.sampled_from([None, "fp32", "tf32", "amp", "fp16", "bf16"]),
    launch=st.sampled_from([None, "eager", "compiled", "graph"]),
    host_us=st.sampled_from([None, 20]),
    channels_last=st.booleans(),
    order=st.permutations(["precision", "launch", "host_us", "channels_last"]),
)
def test_a_mode_asked_for_in_steps_is_the_mode_asked_for_at_once(
    name: str, order: list[str], **mode: Any
) -> None:
    """In any order; a mode that is refused is refused in the last step, or in one before."""
    loaded = lolat.load(name)
    asked = {part: mode[part] for part in order if mode[part]}

    def answer(device: Model) -> tuple[Any, ...]:
        found = device.predict(images(), 8)
        return found.latency_ms, found.interval_ms, found.runs_as, found.warnings, device.label

    try:
        at_once = answer(loaded.run_as(**asked))
    except InputError:
        at_once = ()
    device = loaded
    try:
        for part, value in asked.items():
            device = device.run_as(**{part: value})
        assert answer(device) == at_once
    except InputError:
        assert at_once == ()


@pytest.mark.parametrize("launch", ["eager", "compiled", "graph"])
@pytest.mark.parametrize("name", ["h100", "h100-fp16", "rtx-4090-amp", "a100-fp32"])
def test_the_best_precision_is_as_fast_by_its_name(name: str, launch: str) -> None:
    device = lolat.load(name)
    best = device.predict(images(), 64, precision="best", launch=launch)
    named = device.predict(images(), 64, precision=best.precision, launch=launch)
    assert best.latency_ms == named.latency_ms
    assert best.interval_ms == named.interval_ms


def test_the_best_precision_is_one_that_pytorch_has_kernels_for() -> None:
    """PyTorch has no Fourier transform in bfloat16, nor a distance: not even on the CPU."""
    torch = pytest.importorskip("torch")

    class Spectrum(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, with_spectrum: bool) -> None:
            super().__init__()
            self.inner, self.with_spectrum = torch.nn.Linear(1024, 1024), with_spectrum

        def forward(self, x: Any) -> Any:
            return torch.fft.rfft(self.inner(x)).abs() if self.with_spectrum else self.inner(x)

    half = torch.zeros(2, 8, dtype=torch.bfloat16)
    for function in (torch.fft.rfft, lambda x: torch.cdist(x, x)):
        with pytest.raises(RuntimeError):
            function(half)
    found = {
        spectrum: lolat.load("rtx-4090").predict(
            lolat.read(Spectrum(spectrum), (256, 1024)), 64, precision="best"
        )
        for spectrum in (False, True)
    }
    assert found[False].precision in ("bf16", "fp16")
    assert found[True].precision in ("amp", "tf32", "fp32")


@needs_timm
@pytest.mark.parametrize(("name", "within"), [("rtx-3090-amp", 0.05), ("h100-fp16", 0.25)])
def test_channels_last_by_the_terms_of_channels_first_are_near_the_measured_ones(
    name: str, within: float
) -> None:
    """By the files of two GPUs that were timed in both layouts."""
    first, last = lolat.load(name), lolat.load(f"{name}-nhwc")
    mode = first.file.mode
    changed = _changed(first.file, first.file.kernels, replace(mode, channels_last=True))
    carried = Model(changed, first.source)
    for network in ("timm:resnet50", "timm:seresnet50", "timm:repvgg_b1"):
        graph = lolat.read(network)
        of_first, of_last, found = (m.predict(graph, 128) for m in (first, last, carried))
        assert found.latency_ms == pytest.approx(of_last.latency_ms, rel=within)
        assert (
            abs(found.latency_ms / of_last.latency_ms - 1)
            < of_first.latency_ms / of_last.latency_ms - 1
        )
    asked = lolat.load(name).predict(graph, 128, channels_last=True)
    assert (asked.latency_ms, asked.channels_last) == (of_last.latency_ms, True)
    assert asked.title.endswith("eager, channels last")
    changes = lolat.load(name).explain(graph, 128, channels_last=True).counterfactuals
    assert "compile" in {c.kind for c in changes}
    assert of_first.title.endswith("eager, channels first")


@pytest.mark.parametrize(
    ("name", "mode", "network", "words"),
    [
        ("a100-fp32", {}, synthetic.network(), "no times of it in fp32; expected precision amp"),
        ("a100-fp32", {"precision": "amp"}, layers(), "no convolution"),
        ("epyc-2t-torch", {}, synthetic.network(), "epyc-2t-torch was measured channels first"),
    ],
)
def test_channels_last_that_change_nothing_are_refused(
    name: str, mode: dict[str, str], network: Graph, words: str
) -> None:
    with pytest.raises(LolatError, match=words):
        lolat.load(name).predict(network, channels_last=True, **mode)  # type: ignore[call-overload]


def test_a_compiler_lays_images_last_itself() -> None:
    """PyTorch's Inductor does so by default: who asks for that gets the compiled times, and is told."""
    for asked in (
        lolat.load("rtx-4090-amp-compiled"),
        lolat.load("rtx-4090").run_as("amp", "compiled"),
    ):
        as_timed = asked.predict("timm:resnet50", 64)
        last = asked.predict("timm:resnet50", 64, channels_last=True)
        assert last.latency_ms == as_timed.latency_ms
        assert (as_timed.channels_last, last.channels_last) == (None, True)
        assert last.title == f"{as_timed.title}, channels last"


@needs_timm
@pytest.mark.parametrize("mode", [{}, {"channels_last": True}, {"launch": "compiled"}])
def test_a_server_gpu_is_faster_than_the_last_one_within_their_sheets(mode: dict[str, Any]) -> None:
    """A B200 has at most 2.27 times the rate and 1.6 times the bandwidth of a H200, which has a H100's rate
    and 1.43 times its bandwidth."""
    for network in ("timm:resnet50", "timm:vit_base_patch16_224?eager"):
        graph = lolat.read(network)
        names = ("h100", "h200", "b200")
        found = [lolat.load(n).predict(graph, 256, precision="amp", **mode) for n in names]
        h100, h200, b200 = (p.latency_ms for p in found)
        assert 1.0 <= h100 / h200 <= 1.3  # products do not scale with the bandwidth
        assert 1.0 <= h200 / b200 <= 2250 / 989.4
        assert any("measured on h100-sxm-80gb" in w for w in found[2].warnings)


@pytest.mark.parametrize(
    ("kind", "faster"), [("add", 1.244), ("layer_norm", 1.165), ("softmax", 1.170)]
)
def test_a_form_with_more_bandwidth_is_faster_as_operations_timed_on_both(
    kind: str, faster: float
) -> None:
    """Medians of 55 to 68 operations of equal shape on A100 PCIe of 40 and 80 GB, by NeuSight."""
    b = GraphBuilder(kind, "torch")
    x = b.input((1, 4096, 4096))
    b.add(kind, [x, x] if kind == "add" else [x], (1, 4096, 4096))
    graph = b.build([x + 1])
    forms = (lolat.load(f"a100-pcie-{size}gb").predict(graph, 16) for size in (40, 80))
    ms = [found.latency_ms for found in forms]
    assert ms[0] / ms[1] == pytest.approx(faster, rel=0.035)


def moved(mib: int) -> Graph:
    """A chain of four additions that move `mib` MiB each."""
    b = GraphBuilder("chain", "torch")
    x = b.input((1, mib * 2**18 // 3))
    for _ in range(4):
        x = b.add("add", [x, x], (1, mib * 2**18 // 3))
    return b.build([x])


@pytest.mark.parametrize(
    ("name", "measured", "bandwidths", "rates"),
    [
        ("a100-sxm4-80gb", "a100-fp32", (2039, 1555), (19.5, 19.5)),
        ("v100-sxm2-16gb", "v100-fp32", (900, 900), (15.7, 14.0)),
        ("h200", "h100-fp32", (4800, 3350), (67.0, 67.0)),  # a bundled file of language models
        ("h200-nvl", "h100-fp32", (4800, 3350), (60.0, 67.0)),
    ],
)
def test_another_card_of_a_chip_is_as_fast_as_its_data_sheet(
    name: str, measured: str, bandwidths: tuple[float, float], rates: tuple[float, float]
) -> None:
    """Bandwidths and float32 rates of NVIDIA's data sheets."""
    form, card = lolat.load(name), lolat.load(measured)
    for graph, batch_size, (new, old) in ((moved(1024), 1, bandwidths), (layers(), 2**16, rates)):
        ratio = (
            card.predict(graph, batch_size).latency_ms / form.predict(graph, batch_size).latency_ms
        )
        assert ratio == pytest.approx(new / old, rel=0.03)
    found = form.predict(layers(), 2**16)
    assert found.query.device.label == name
    assert any(f"measured on {card.device.split(' (')[0]}" in w for w in found.warnings)
    low, high = found.interval_ms or (0, 0)
    of_card = card.predict(layers(), 2**16).interval_ms or (0, 0)
    assert high / low > of_card[1] / of_card[0]


def test_half_precision_that_was_timed_on_one_card_carries_to_others_of_its_chip() -> None:
    """A network that moves bytes alone, at most by the bandwidths of NVIDIA's sheets."""
    carried, timed = lolat.load("h200").run_as("fp16"), lolat.load("h100").run_as("fp16")
    graph = moved(2048)
    ratio = timed.predict(graph).latency_ms / carried.predict(graph).latency_ms
    assert 1.2 < ratio < 4800 / 3350
    assert any("measured on h100-sxm-80gb" in w for w in carried.predict(graph).warnings)
    assert not any("data sheet of" in w for w in timed.predict(graph).warnings)
    assert lolat.load("h100").run_as("amp").predict(graph).latency_ms > 0.0


def test_a_card_is_not_answered_as_the_max_q_of_its_chip() -> None:
    """By NVIDIA's sheets both move 1,792 GB/s; the full card has 1.15 times the peak, twice the power."""
    names = ("rtx-pro-6000", "rtx-pro-6000-max-q")
    for precision in ("amp", "bf16", "fp16", "tf32", "fp32"):
        full, low = (lolat.load(name).run_as(precision) for name in names)
        ratios = [
            low.predict(graph, batch).latency_ms / full.predict(graph, batch).latency_ms
            for graph, batch in ((moved(2048), 1), (layers(), 65536))
        ]
        assert ratios[0] == pytest.approx(1.0, rel=0.01)
        assert 125 / 110 < ratios[1] < 600 / 300
        words = full.predict(layers()).warnings
        assert any("measured on RTX PRO 6000 Max-Q" in w for w in words)
    found = lolat.compare(layers(), 4096, on=",".join(names))
    assert [one.device for one in found.answers] == [*names]
    assert lolat.load("rtx-pro-6000-max-q").profile == "rtx-pro-6000-amp-compiled"


def test_a_card_that_takes_the_times_of_its_chip_is_listed_so() -> None:
    (runs,) = (m.runs or "" for m in lolat.models() if m.name == "h200")
    assert runs.endswith("as measured on h100-sxm-80gb")
    assert "llm" in lolat.load("h200").file.document


def test_a_given_host_stays_where_another_file_answers() -> None:
    """Four layers at 2.5 times 300 µs each, compiled; the one file is left for the network's precision, the
    other by hand. Autocast launches a conversion of the input besides."""
    own = lolat.load("rtx-pro-6000-amp-compiled")
    other = lolat.load("rtx-4090-amp").run_as(host_us=300).run_as(launch="compiled")
    for found in (
        own.predict(layers("bfloat16"), host_us=300),
        own.predict(layers(), precision="best", host_us=300),
        other.predict(layers()),
    ):
        assert found.query.device.source not in (own.source, "rtx-4090-amp.json")
        converted = 0.3 * (found.precision == "amp")
        assert 3.0 < found.latency_ms - converted < 3.25
        assert found.host_us == 300


def test_of_precisions_that_are_as_fast_the_one_with_less_memory_answers() -> None:
    """A host-bound GPU takes as long in each, but for the casts of amp; a number has 2 bytes in half
    precision, else 4.
    """
    graph, gpu = synthetic.network(), lolat.load("h100-fp32")
    each = [gpu.predict(graph, precision=p) for p in ("fp32", "tf32", "fp16", "bf16")]
    assert max(p.latency_ms for p in each) < 1.01 * min(p.latency_ms for p in each)
    found = gpu.predict(graph, precision="best")
    assert found.memory.total_bytes == min(p.memory.total_bytes for p in each)
    assert found.memory.total_bytes < 0.6 * each[0].memory.total_bytes


def test_a_launch_overhead_beside_a_cpu_is_of_the_gpus_alone() -> None:
    """The CPU's time is that without it; CPUs alone are refused, as one of them is."""
    graph, names = synthetic.network(), ["epyc-2t", "rtx-4090-amp"]
    cpu, gpu = lolat.predict(graph, names, host_us=300)
    alone = lolat.load("rtx-4090-amp")
    assert cpu.latency_ms == lolat.load("epyc-2t").predict(graph).latency_ms
    assert gpu.latency_ms == alone.predict(graph, host_us=300, precision="best").latency_ms
    assert [any("no host starts" in w for w in p.warnings) for p in (cpu, gpu)] == [True, False]
    for alone in (names[:1], ["epyc-2t", "epyc-2t-torch"]):
        with pytest.raises(InputError) as caught:
            lolat.predict(graph, alone, host_us=300)
        assert caught.value.code == "no-host"


def test_training_gains_as_much_by_a_compiler_on_two_gpus() -> None:
    """Convolutions with batch norm and ReLU; the RTX 3090's steps were timed with channels first, and a
    compiler turns none. PyTorch's 163 models train 1.38 to 1.76 times as fast compiled, all kinds
    together (pytorch.org/get-started/pytorch-2.0).
    """
    b = GraphBuilder("convolutions", "torch")
    shape = (1, 64, 56, 56)
    x = b.input(shape)
    about = {"kernel": (3, 3), "strides": (1, 1), "dilation": (1, 1), "bias": False, "groups": 1}
    for _ in range(8):
        x = b.add("conv", [x], shape, in_channels=64, out_channels=64, **about)
        x = b.add("relu", [b.add("batch_norm", [x], shape)], shape)
    graph, gains = b.build([x]), []
    for name in ("a100-fp32", "rtx-3090-amp"):
        ways = [lolat.load(name).run_as("amp", launch) for launch in ("eager", "compiled")]
        eager, compiled = (way.cost(graph, 256).options[0].iteration_ms for way in ways)
        gains.append(eager / compiled)
    assert ways[1].profile == "rtx-3090-amp-nhwc"
    assert gains == pytest.approx([gains[0]] * 2, rel=0.15)
    assert 1.38 < min(gains) < max(gains) < 2.0


@pytest.mark.parametrize(
    ("dtype", "precision"), [("float16", "fp16"), ("bfloat16", "bf16"), ("float32", "fp32")]
)
def test_a_network_in_half_is_answered_in_half(dtype: str, precision: str) -> None:
    found = lolat.load("a100-fp32").predict(layers(dtype), 4096)
    assert found.precision == precision
    assert found.memory.weights_bytes == 4 * 4096**2 * (4 if precision == "fp32" else 2)


@pytest.mark.parametrize("precision", [None, "amp", "fp32"])
def test_a_network_in_double_precision_is_not_answered_in_single(precision: str | None) -> None:
    model = lolat.load("a100-fp32")
    with pytest.raises(InputError, match="the network is in float64 itself") as error:
        (model if precision is None else model.run_as(precision)).predict(layers("float64"))
    assert error.value.code == "no-precision"


def test_a_network_in_half_is_not_run_in_another_precision() -> None:
    with pytest.raises(InputError, match="the network is in fp16 itself") as error:
        lolat.load("a100-fp32").run_as("amp").predict(layers("float16"))
    assert error.value.code == "no-precision"
    assert lolat.load("a100-fp32").run_as("fp16").predict(layers("float16")).precision == "fp16"


def test_a_device_that_was_measured_here_has_the_precision_that_it_was_measured_in() -> None:
    model = lolat.Model(synthetic.document())
    assert model.run_as("fp32").predict(layers()).precision == "fp32"
    with pytest.raises(InputError, match="no data sheet here"):
        model.run_as("amp")


@pytest.mark.parametrize(
    ("environment", "points", "words"),
    [
        ({"fitted_on": {"operations": 60, "networks": 1, "batch_sizes": [2, 16]}, "framework": "torch",
          "framework_version": "2.1"}, [], "60 operations, 1 network, batch 2 to 16, PyTorch 2.1"),
        ({"fitted_on": {"networks": 2, "network_rows": 20, "batch_sizes": [8, 8]}}, [],
         "20 rows of 2 networks, batch 8"),
        ({"framework": "tensorflow", "framework_version": "2.21.0"},
         [{"batch_size": 8}, {"batch_size": 8}], "2 measurements, batch 8, TensorFlow 2.21.0"),
        ({}, [], ""),
    ],
)  # fmt: skip
def test_what_a_device_is_known_from(
    environment: dict[str, Any], points: list[dict[str, int]], words: str
) -> None:
    counts = dict.fromkeys(("acts", "inp", "flops", "traffic", "weights", "ops"), 1)
    each = [{"name": "block", "latency_ms": 1.0, "samples_ms": None, **counts, **p} for p in points]
    file = DeviceFile(new_document("a", "b", environment) | {"points": each})
    assert fitted_on_words(file) == words


def test_how_a_device_runs_networks() -> None:
    file = DeviceFile(new_document("a", "b", {"framework": "torch", "half": True, "compile": True}))
    assert mode_words(file) == "fp16, PyTorch, compiled"
    assert file.mode.channels_last is False
    assert mode_words(DeviceFile(new_document("a", "b", {}))) == "fp32"


def test_a_network_in_bfloat16_on_a_gpu_without_it_is_asked_in_float16() -> None:
    """The T4 has no units for bfloat16; float16 takes as many bytes."""
    t4, graph = lolat.load("t4-fp32"), layers("bfloat16")
    with pytest.raises(
        InputError, match=r"stored in bf16, but T4 has .*; expected .*fp16.*, or the network in"
    ):
        t4.predict(graph, 64)
    found = t4.run_as("fp16").predict(graph, 64)
    assert found.precision == "fp16"
    assert found.latency_ms == t4.predict(layers("float16"), 64).latency_ms


@pytest.mark.parametrize(("device", "told"), [("t4-fp32", True), ("a100-fp32", False)])
def test_mixed_precision_without_bfloat16_is_said_to_be_in_float16(device: str, told: bool) -> None:
    """NVIDIA has units for bfloat16 since Ampere, so a trainer's bf16-mixed does not run so on a T4."""
    model = lolat.load(device).run_as("bf16-mixed")
    asked = [*model.predict(layers(), 64).warnings, *model.cost(layers(), 64).warnings]
    assert sum("in float16" in remark for remark in asked) == 2 * told


def test_a_file_of_the_users_is_not_replaced_by_a_bundled_one(tmp_path: Path) -> None:
    """Ten times as slow, it is so in each launch; the bundled card of that name is measured compiled."""
    bundled = lolat.load("rtx-4090-amp")
    replacing = bundled.run_as(None, "compiled")
    document = json.loads(Path(bundled.source).read_text())
    kernels = document["predictors"]["kernels"]
    for terms in kernels["classes"].values():
        terms.update({name: value / 10 for name, value in terms.items()})
    path = tmp_path / "own.json"
    path.write_text(json.dumps(document))
    graph = synthetic.network(3)
    assert replacing.profile == "rtx-4090-amp-compiled"
    own = lolat.load(path).run_as(None, "compiled")
    assert own.label == own.profile == str(path)
    assert own.predict(graph, 512).latency_ms > 5 * replacing.predict(graph, 512).latency_ms


@pytest.mark.parametrize(
    ("name", "has_units"),
    [("a10", True), ("a10g", True), ("rtx-3080", True), ("rtx-3090", True), ("l40", True),
     ("v100", False), ("t4", False), ("gtx-1080", False), ("mi210", False)],
)  # fmt: skip
def test_convolutions_run_in_tf32_on_each_gpu_with_units_for_it(name: str, has_units: bool) -> None:
    """NVIDIA's since Ampere (its CUDA guide), whether or not they are faster for it."""
    words = mode_words(lolat.load(name).run_as("fp32").file)
    assert words.startswith("fp32 (convolutions in TF32), " if has_units else "fp32, ")


def test_a_card_known_by_its_sheet_says_what_its_power_sustains() -> None:
    """Of 31.2 and 31.5 TFLOPS (NVIDIA) an A10 of 150 W sustains less than an A10G of 300 W."""
    graph, sustained = layers(), []
    for name, peak in (("a10", "31.2"), ("a10g", "31.5")):
        (told,) = (w for w in lolat.load(name).predict(graph).warnings if "power" in w)
        assert told.startswith(
            f"{peak} TFLOPS in fp32 by its data sheet; its power limit allows about "
        )
        assert "in tf32, in which convolutions run" in told
        in_fp32, in_tf32 = map(float, re.findall(r"about ([\d.]+)", told))
        sustained.append(in_fp32)
        assert in_tf32 > sustained[-1], "matrix units compute more for the same power"
    assert sustained[0] < sustained[1] < 31.5
    for name in ("a30", "v100"):  # one has the power, the other was measured
        assert not any("power" in w for w in lolat.load(name).predict(graph).warnings)


@pytest.mark.parametrize("size", [1, 64])
def test_the_best_precision_is_found_by_asking_in_each(size: int) -> None:
    """A small batch waits for the host whatever the precision; then the one with less memory is taken."""
    model, network = lolat.load("l4"), "timm:resnet18"
    words = ("fp32", "tf32", "amp", "fp16", "bf16")
    each = {word: model.predict(network, size, precision=word) for word in words}
    least = min(p.latency_ms for p in each.values())
    near = {w: p.memory_bytes for w, p in each.items() if p.latency_ms <= 1.01 * least}
    best = model.explain(network, size, precision="best").prediction
    assert best.latency_ms == pytest.approx(each[best.precision].latency_ms)
    assert near[best.precision] == min(near.values())
    assert best.precision == model.predict(network, size, precision="best").precision
    answers = {w: model.budget(network, 20.0, "batch", precision=w).best.value for w in words}
    found = model.budget(network, 20.0, "batch", precision="best")
    assert found.best.value == max(answers.values()) > answers["fp32"]
    assert found.best.prediction.precision in {
        w for w, n in answers.items() if n == found.best.value
    }
    with pytest.raises(AnswerIsNo) as no:
        model.budget(network, 0.1, "batch", precision="best")
    assert no.value.data["enough_ms"] == pytest.approx(least if size == 1 else 2.37, rel=0.01)


def upsampled() -> Graph:
    """A convolution, an enlarged image, a convolution."""
    b = GraphBuilder("upsampled", "torch")
    x = b.input((64, 56, 56))
    more = {"kernel": (3, 3), "in_channels": 64, "out_channels": 64, "groups": 1, "bias": False}
    small = b.add("conv", [x], (64, 56, 56), **more)
    return b.build(
        [b.add("conv", [b.add("resize", [small], (64, 112, 112))], (64, 112, 112), **more)]
    )


@pytest.mark.parametrize("device", ["h100", "b200", "rtx-3090"])
@pytest.mark.parametrize("network", [upsampled(), "timm:vit_base_patch16_224", "timm:resnet50"])
def test_a_compiled_network_is_no_slower_than_in_the_better_layout(
    device: str, network: Graph | str
) -> None:
    """A compiler writes norms, resizes and pools itself, whatever the layout of the convolutions around."""
    model, asked = lolat.load(device), {"batch_size": 128, "precision": "amp"}
    eager = model.predict(network, **asked).latency_ms
    compiled = model.predict(network, launch="compiled", **asked).latency_ms
    if network != "timm:vit_base_patch16_224":
        eager = min(eager, model.predict(network, channels_last=True, **asked).latency_ms)
    assert compiled < 1.02 * eager
