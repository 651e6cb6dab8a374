"""Code as people write it: in place, functional, several inputs, used twice, odd types and modes."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import nn
from torch.nn.utils import prune
from torch.profiler import ProfilerActivity, profile

import lolat
from lolat.graph.counts import COLUMNS, count
from lolat.graph.memory import alive_bytes
from lolat.graph.modes import Mode
from lolat.graph.work import work_of
from lolat.readers.torch.named import without_weights
from tests.readers.torch_networks import Does, conv, counted, does, graph_of, kinds, total

# ---- in place ----------------------------------------------------------------------------------------


def test_in_place_is_as_out_of_place() -> None:
    """A view that is changed changes what it is a view of."""

    def inplace(m: Any, x: Any) -> Any:
        y = m.conv(x)
        y.view(y.size(0), -1).relu_()
        y += 1
        y.mul_(2)
        return y

    ours = does(inplace, (3, 6, 6), conv=conv())
    plain = does(lambda m, x: (m.conv(x).relu() + 1) * 2, (3, 6, 6), conv=conv())
    assert kinds(ours) == kinds(plain) == ["conv", "relu", "add", "multiply"]
    assert total(ours) == total(plain)
    assert ours.shapes(ours.outputs) == [(1, 8, 6, 6)]


def _assigns(m: Any, x: Any) -> Any:
    out = torch.zeros(x.size(0), 16, 6, 6)
    out[:, :8] = m.a(x)
    out[:, 8:] = m.b(x)
    return out


def test_parts_written_into_a_buffer_are_its_value() -> None:
    graph = does(_assigns, (3, 6, 6), a=conv(), b=conv())
    assert kinds(graph) == ["conv", "scatter", "conv", "scatter"]
    assert total(graph, 2).traffic == 2 * 2 * 2 * 8 * 36  # each part read and written
    assert total(graph).serial == 2  # side by side


ONE = torch.tensor([7])
_BY_INDEX: list[
    tuple[Any, int]
] = [  # with the elements read and written for the 64 of one position
    (lambda x, y: x.index_copy_(1, ONE, y), 64 + 64 + 1),
    (lambda x, y: x.__setitem__((slice(None), ONE), y), 64 + 64 + 1),
    (lambda x, y: x.index_add_(1, ONE, y), 64 + 64 + 1),
    (lambda x, y: x.scatter_(1, ONE.expand(y.shape), y), 64 + 64 + 64),
    (lambda x, y: x.index_put_((torch.arange(x.size(0)), ONE), y[:, 0]), 64 + 64 + 1 + 1),
    (lambda x, y: x.put_(torch.arange(y.numel()), y), 64 + 64 + 64),
    (lambda x, y: x.__setitem__((slice(None), ONE), 0.0), 64),
    (lambda x, y: x.index_fill_(1, ONE, 0.0), 64),
]


@pytest.mark.parametrize(
    ("write", "moved", "is_buffer"),
    [(*one, is_buffer) for one in _BY_INDEX for is_buffer in (False, True)[: 1 + (one[1] > 64)]],
)
def test_a_write_by_index_in_place_moves_what_it_writes(
    write: Any, moved: int, is_buffer: bool
) -> None:
    """By hand: the elements written, those of a source as often, and the index; not the 2,047 others."""

    def written(m: Any, x: Any, y: Any) -> Any:
        out = m.cache if is_buffer else x.relu_()
        write(out, y * 2)
        return out

    network = Does(written)
    network.register_buffer("cache", torch.zeros(1, 2048, 64))
    graph = graph_of(network, (), (torch.zeros(1, 2048, 64), torch.zeros(1, 1, 64)))
    writes = [o.kind in ("scatter", "fill") for o in graph.operations]
    assert sum(count(graph).at(1)[writes][:, COLUMNS.index("traffic")]) == moved
    assert not [w for w in graph.warnings if "alone in each call" in w]


def test_a_write_by_a_mask_reads_the_whole_tensor() -> None:
    graph = does(lambda _, x: (y := x * 2).__setitem__(y > 0, 0.0) or y, (2048, 64))
    assert total(graph).traffic > 4 * 2048 * 64


def test_a_layer_that_is_a_number_has_its_kind_in_its_name() -> None:
    graph = graph_of(nn.Sequential(nn.Sequential(conv(), nn.ReLU())), (3, 6, 6))
    assert [o.full_name for o in graph.operations] == ["0/conv_0", "0/relu_1"]


# ---- modules -----------------------------------------------------------------------------------------


def test_a_module_or_weights_used_twice_count_twice() -> None:
    layer = conv(8)
    graph = does(lambda m, x: m.layer(F.relu(m.layer(x))), (8, 6, 6), layer=layer)
    once = counted(layer, (8, 6, 6))
    assert total(graph).flops == 2 * once.flops
    assert total(graph).weights == 2 * once.weights
    assert [o.name for o in graph.operations] == ["layer", "relu", "layer:2"]
    # Tied weights count where they are used.
    table = nn.Embedding(50, 8)
    graph = does(lambda m, x: F.linear(m.table(x), m.table.weight), (7,), table=table)
    assert kinds(graph) == ["embedding", "dense"]
    assert total(graph).weights == 7 * 8 + 50 * 8
    assert total(graph).flops == 7 * 50 * 8


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_bag_of_rows_reads_those_alone(mode: str, weighted: bool) -> None:
    """Not the table of a million; it stores one row for each bag, and for `max` its positions."""
    if weighted and mode != "sum":
        return  # PyTorch weights sums alone

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.EmbeddingBag(10**6, 64, mode=mode)

        def forward(self, i: Any, weights: Any = None) -> Any:
            return self.table(i, per_sample_weights=weights)

    weights = (torch.rand(1, 20),) * weighted
    graph = lolat.read((Bag(), (torch.zeros(1, 20, dtype=torch.int64), *weights)))
    assert kinds(graph)[-1:] == ["embedding"]
    assert "reduce" not in kinds(graph)
    assert total(graph, 3).weights == 3 * 20 * 64
    assert graph.shapes(graph.outputs)[0][-1] == 64
    inputs = 20 * (8 + 4 * weighted)
    written = 64 * (4 + 8 * (mode == "max"))
    assert alive_bytes(graph)[1].max() == inputs + written
    read = 4 * 20 * 64
    for launch in ("eager", "compiled"):
        moved = work_of(graph, 3, Mode(launch=launch)).bytes.sum()
        assert moved == pytest.approx(3 * (read + 4 * 64), rel=0.05)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("frozen", [False, True])
def test_pytorch_stores_no_rows_of_bags(mode: str, frozen: bool) -> None:
    """PyTorch's own run allocates a row for each bag, and at most three integers for each index."""
    bag = nn.EmbeddingBag(1000, 128, mode=mode).requires_grad_(not frozen)
    indices, offsets = torch.zeros(64 * 100, dtype=torch.int64), torch.arange(0, 6400, 100)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        bag(indices, offsets)
    allocated = sum(max(e.self_cpu_memory_usage, 0) for e in run.key_averages())
    graph = lolat.read((bag, (indices, offsets)))
    counted = alive_bytes(graph).sum(axis=0).max() - 8 * (6400 + 64)
    assert counted <= allocated < counted + 8 * 3 * 6400 < 4 * 6400 * 128


def test_the_module_is_read_as_in_evaluation_and_left_as_it_was() -> None:
    class Merging(nn.Conv2d):
        def train(self, mode: bool = True) -> Any:
            raise AssertionError("a user's class may change its weights here")

    layer = Merging(3, 8, 3)
    model = nn.Sequential(layer, nn.Dropout(), nn.BatchNorm2d(8).eval(), nn.Dropout2d())
    mean = model[2].running_mean.clone()
    weights = layer.weight.clone()
    graph = graph_of(model, (3, 6, 6))
    assert kinds(graph) == ["conv", "batch_norm"]
    assert [m.training for m in model.modules()] == [True, True, True, False, True]
    assert torch.equal(model[2].running_mean, mean)
    assert torch.equal(layer.weight, weights)
    assert set(vars(model)) == set(vars(nn.Sequential()))


def test_channels_last_and_half_precision() -> None:
    plain = graph_of(conv(), (3, 6, 6))
    half = graph_of(conv().to(torch.bfloat16), (3, 6, 6))
    assert total(plain) == total(half)
    assert {t.dtype for t in half.tensors} == {"bfloat16"}
    forced = does(
        lambda m, x: m.conv(x.to(memory_format=torch.channels_last)).contiguous(),
        (3, 6, 6), conv=conv(),
    )  # fmt: skip
    assert total(replace(forced, warnings=())) == total(plain)


def test_no_weights_and_no_memory_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    import tests.readers.torch_networks as nets

    with torch.device("meta"):
        large = nn.Sequential(nn.Linear(1 << 16, 1 << 18), nn.ReLU(), nn.Linear(1 << 18, 10))
    assert counted(large).weights == (1 << 34) + (1 << 18) + 10 * (1 << 18) + 10

    def looks() -> Any:
        rates = [float(r.item()) for r in torch.linspace(0, 0.1, 3)]
        return nn.Sequential(*(nn.Dropout(r) for r in rates), nn.Linear(4, 2))

    monkeypatch.setattr(nets, "looks", looks, raising=False)
    assert total(lolat.read("tests.readers.torch_networks:looks")).weights == 10


# ---- under PyTorch's contexts ------------------------------------------------------------------------


def test_no_grad_autocast_and_checkpoints_are_followed_inside() -> None:
    from torch.utils.checkpoint import checkpoint

    def forward(m: Any, x: Any) -> Any:
        with torch.no_grad():
            x = m.a(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = m.b(x)
        return checkpoint(m.c, x.float(), use_reentrant=False)

    graph = does(forward, (8, 6, 6), a=conv(8), b=conv(8), c=conv(8))
    assert kinds(graph).count("conv") == 3
    assert graph.autocast
    assert total(graph).flops == 3 * counted(conv(8), (8, 6, 6)).flops


@pytest.mark.parametrize(
    "island",
    [lambda: torch.autocast("cuda", enabled=False), lambda: torch.autocast("cpu", None, False),
     lambda: torch.autocast(device_type="cuda", dtype=torch.bfloat16, enabled=False)],
)  # fmt: skip
def test_products_that_amp_leaves_in_float32_are_told(island: Any) -> None:
    """By hand: 8 x 24 of them, of 8 x 8 before, 8 x 24 there and 24 x 8 behind; angles sum nothing."""

    def forward(m: Any, x: Any) -> Any:
        x = m.before(x)
        with island():
            x = m.inside(x.float()) + (x.float()[:, :1] @ torch.ones(1, 24)).sin()
            with torch.autocast("cuda", enabled=True):
                x = m.behind(x)
        return x

    layers = {"before": nn.Linear(8, 8), "inside": nn.Linear(8, 24), "behind": nn.Linear(24, 8)}
    network = (Does(forward, **layers), torch.zeros(1, 8))
    marked = [o.name for o in lolat.read(network).operations if "wide" in o.attributes]
    assert marked == ["inside"]
    device, told = (
        lolat.load("rtx-4090"),
        "of its multiply-accumulates are in torch.autocast(enabled=False)",
    )
    answers = {p: device.predict(network, 64, precision=p) for p in ("amp", "fp32")}
    macs = 8 * 8 + 8 * 24 + 24 * 8 + 24
    share = f"{100 * 8 * 24 / macs:.0f} % {told}, first in inside: in float32"
    assert any(w.startswith(share) for w in answers["amp"].warnings)
    assert not any(told in w for w in answers["fp32"].warnings)
    costs = device.cost(network, 64, precision="amp").to_dict()["warnings"]
    assert any(told in w for w in costs)


def pruned() -> nn.Module:
    network = nn.Sequential(nn.Linear(8, 8))
    prune.l1_unstructured(network[0], "weight", amount=0.5)
    return network


def in_8_bits() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8)), {nn.Linear})


@pytest.mark.parametrize(
    ("network", "is_told"),
    [(Does(lambda m, x: x.float().softmax(-1)), True), (pruned(), False), (in_8_bits(), False)],
)
def test_code_that_converts_its_activations_to_float32_is_told(network: Any, is_told: bool) -> None:
    """A mask of parameters, and the float32 that a quantized layer returns, are no such code."""
    answer = lolat.load("rtx-4090").predict((network, torch.zeros(1, 8)), 64, precision="fp16")
    assert any("its code converts to float32" in text for text in answer.warnings) == is_told


def test_an_interval_allows_for_products_in_float32() -> None:
    """On an A100 float32 takes 16 times as long by its data sheet: 312 and 19.5 TFLOPS."""

    def network(off: bool) -> Any:
        def forward(m: Any, x: Any) -> Any:
            x = m.before(x)
            with torch.autocast("cuda", enabled=False) if off else contextlib.nullcontext():
                return m.inside(x.float())

        large = {name: nn.Linear(4096, 4096) for name in ("before", "inside")}
        return Does(forward, **large), torch.zeros(1, 4096)

    device = lolat.load("a100")
    off, on = (device.predict(network(yes), 1024, precision="amp") for yes in (True, False))
    assert off.latency_ms == on.latency_ms
    assert off.interval_ms[1] > 2 * on.interval_ms[1]
    assert not off.in_domain
    assert not any("is off on this machine" in w for w in off.warnings)


def test_operations_of_others_are_reported_by_their_full_name() -> None:
    @torch.library.custom_op("lolat_test::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @double.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    counts = count(does(lambda m, x: double(m.conv(x)), (3, 6, 6), conv=conv()))
    assert "no formula for operation lolat_test.double" in counts.warnings[0]
    assert counts.total().traffic == 2 * 8 * 36


def test_weights_that_the_network_computes_are_computed() -> None:
    """Their operations must not get lost."""

    def forward(m: Any, x: Any) -> Any:
        kernel = m.make(x.mean((0, 2, 3)).unsqueeze(0)).view(3, 3, 1, 1)
        scale = m.scale(x.mean((0, 2, 3)).unsqueeze(0)).view(3)
        return F.batch_norm(F.conv2d(x, kernel), m.mean, m.var, scale)

    graph = does(
        forward, (3, 6, 6), make=nn.Linear(3, 9), scale=nn.Linear(3, 3), mean=torch.zeros(3),
        var=torch.ones(3),
    )  # fmt: skip
    assert kinds(graph).count("dense") == 2
    assert kinds(graph).count("conv") == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("bounds", [(-2.0, 2.0), (1.0, 2.0)])
def test_weights_drawn_until_they_fit_are_not_waited_for(bounds: tuple[float, float]) -> None:
    """Memory is filled with 1e9; the second bounds are PyTorch's other way of drawing."""

    def make() -> nn.Module:
        layer = nn.Linear(128, 64)
        layer.weight = nn.Parameter(torch.full((64, 128), 1e9))
        nn.init.trunc_normal_(layer.weight, 0.0, 1.0, *bounds)
        return layer

    weight = without_weights(make).weight
    assert weight.min() == 1e9
    nn.init.trunc_normal_(weight)
    assert weight.abs().max() <= 2  # as before


def test_attributes_that_the_code_changes_are_as_before() -> None:
    """A forward that keeps a tensor keeps a fake one while it is read."""

    def keeps(m: Any, x: Any) -> Any:
        m.calls.append(m.conv(x))
        m.last = m.calls[-1]
        m.register_buffer("cache", m.last)
        return m.last

    network = Does(keeps, conv=conv(), calls=[])
    before = set(vars(network))
    assert kinds(graph_of(network, (3, 6, 6))) == ["conv"]
    assert network.calls == []
    assert set(vars(network)) == before
    assert list(network.buffers()) == []


def _in_halves(m: Any, x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.conv2d(x, m.conv.weight).float()


@pytest.mark.parametrize(
    ("forward", "operations"),
    [(_in_halves, "cast conv cast"),
     (lambda m, x: torch.vmap(lambda t: t.sin())(m.conv(x)), "conv trigonometric"),
     (lambda m, x: torch.compile(m.conv)(x), "conv")],
)  # fmt: skip
def test_what_pytorch_runs_under_its_contexts_is_read(forward: Any, operations: str) -> None:
    graph = does(forward, (3, 6, 6), conv=conv())
    assert " ".join(kinds(graph)) == operations


# ---- in training only --------------------------------------------------------------------------------


class DropPath(nn.Module):
    """As timm has it."""

    def __init__(self) -> None:
        super().__init__()
        self.drop_prob = 0.1

    def forward(self, x: Any) -> Any:
        return x * torch.rand(len(x)) if self.training else x


class EagerAttention(nn.Module):
    """As transformers has it: evaluation passes a rate of 0."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(rate)

    def forward(self, x: Any) -> Any:
        weights = (x @ x.transpose(1, 2)).softmax(-1)
        p = self.dropout.p if self.training else 0.0
        return F.dropout(weights, p=p, training=self.training) @ x


def _attends(m: Any, x: Any) -> Any:
    return m.attention(x, x, x, need_weights=m.with_weights)[0]


@pytest.mark.parametrize(
    ("layer", "size", "told"),
    [
        (nn.Sequential(DropPath(), DropPath(), nn.Linear(8, 8)), (4, 8), "drops of 2 DropPath"),
        (nn.LSTM(8, 8, 2, batch_first=True, dropout=0.2), (4, 8), "drops of 1 LSTM"),
        (nn.Sequential(conv(), nn.SyncBatchNorm(8)), (3, 6, 6),
         "exchanges between devices of 1 SyncBatchNorm"),
        (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)), (4, 8), ""),  # in the graph, with its rate
    ],
)  # fmt: skip
def test_what_acts_in_training_only_is_told(
    layer: nn.Module, size: tuple[int, ...], told: str
) -> None:
    assert graph_of(layer, size).training_only == ((told,) if told else ())


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("rate", [0.1, 0.0])
def test_dropped_weights_of_an_attention_are_told(rate: float, by_hand: bool) -> None:
    attention = nn.MultiheadAttention(8, 2, dropout=rate, batch_first=True)
    graph = does(_attends, (4, 8), attention=attention, with_weights=by_hand)
    told, on_cpu = (
        [t.partition(" (")[0] for t in effects]
        for effects in (graph.training_only, graph.training_only_on_cpu)
    )
    assert told == ["drops of 1 MultiheadAttention"] * (rate > 0 and by_hand)
    assert on_cpu == ["drops of 1 MultiheadAttention on a CPU"] * (rate > 0 and not by_hand)


@pytest.mark.parametrize("rate", [0.1, 0.0])
def test_a_dropout_that_evaluation_turns_off_keeps_its_rate(rate: float) -> None:
    graph = graph_of(EagerAttention(rate), (4, 8))
    (dropout,) = [o for o in graph.operations if o.kind == "dropout"]
    assert dropout.attributes == ({"rate": rate} if rate else {})
    assert not graph.training_only


def test_layers_left_out_at_random_are_told() -> None:
    network = nn.Sequential(nn.Linear(8, 8))
    network.config = SimpleNamespace(layerdrop=0.1, decoder_layerdrop=0.0)
    assert graph_of(network, (8,)).training_only == ("layerdrop=0.1",)
    network.config = {"of": "the user's"}
    assert not graph_of(network, (8,)).training_only


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32])
def test_weights_that_are_converted_in_each_call(dtype: torch.dtype) -> None:
    network = Does(
        lambda m, x: F.linear(x, m.table.to(x.dtype)), table=torch.zeros(64, 64, dtype=dtype)
    )
    told = any(
        "weights of 1 operation anew" in r
        for r in graph_of(network, (), torch.zeros(1, 64)).warnings
    )
    assert told == (dtype == torch.int8)


def test_a_number_that_becomes_the_side_of_an_image_is_told() -> None:
    """No layer tells it: 64 features in a list are 64 x 32 products, 64 alone is an image."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.w = nn.LayerNorm(64), nn.Parameter(torch.rand(64, 32))

        def forward(self, x: Any) -> Any:
            return self.norm(x) @ self.w

    image, features = lolat.read(Scaled(), 64), lolat.read(Scaled(), [(64,)])
    assert any("image of 3x64x64" in w and "[(64,)]" in w for w in image.warnings)
    assert not any("image of" in w for w in features.warnings)
    assert count(features).total(1).flops == 64 * 32


def test_complex_products_are_told() -> None:
    layers = [nn.Linear(8, 8, dtype=torch.cfloat), nn.Linear(8, 8)]
    network = Does(
        lambda m, x: m.other(m.one(x.to(torch.cfloat)).real), one=layers[0], other=layers[1]
    )
    (remark,) = lolat.read((network, torch.zeros(1, 8))).warnings
    assert "complex64 count as one multiply-accumulate" in remark
