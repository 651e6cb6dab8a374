"""PyTorch layers of several operations, counted by hand; single ones are in tests/data/operations.toml."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrizations, prune
from torch.utils._python_dispatch import TorchDispatchMode

import lolat
from lolat.graph.analysis import analyze
from lolat.graph.counts import COLUMNS, count
from lolat.graph.edits import as_trained
from lolat.graph.weights import parameters
from lolat.readers import read
from tests.readers.counting import check, six
from tests.readers.torch_networks import Does, does, graph_of, kinds, total


def test_a_convolution_of_groups_and_how_one_is_padded() -> None:
    grouped = total(graph_of(nn.Conv2d(8, 16, 3, groups=4, padding=1), (8, 5, 5)))
    assert grouped.patches == 25 * 9 * 8
    strided = graph_of(nn.Conv2d(4, 6, 3, stride=2, padding=1), (4, 9, 7))
    assert strided.operations[0].attributes["padding"] == ((1, 1), (1, 1))
    dilated = graph_of(nn.Conv2d(1, 1, 3, padding="same", dilation=2), (1, 8, 8))
    assert dilated.operations[0].attributes["padding"] == "same"


# ---- attention ---------------------------------------------------------------------------------------

PACKED = "dense transpose slice slice slice transpose transpose transpose"
"""The three projections as one dense layer, then each in front of the heads."""
FUSED = "attention transpose dense"
EAGER = "multiply transpose matmul softmax matmul transpose dense"
"""PyTorch's operations if the weights of attention are asked for."""


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("weights", [True, False])
def test_multi_head_attention_is_what_pytorch_runs(batch_first: bool, weights: bool) -> None:
    """Three heads of two features: of 5 steps, 30 elements of queries, and 75 scores."""
    layer = nn.MultiheadAttention(6, 3, batch_first=batch_first)

    def forward(m: Any, x: Any) -> Any:
        x = x if batch_first else x.transpose(0, 1)
        y = m.layer(x, x, x, need_weights=weights)[0]
        return y if batch_first else y.transpose(0, 1)

    macs = 4 * 5 * 36 + 2 * 3 * 25 * 2
    projections = (
        (30 + 90) + 2 * 90 + 3 * 60 + 3 * 60
    )  # dense, all turned, cut into three, each turned
    products = 2 * (2 * 30 + 75) + 2 * 75 + 60 + 60  # both, softmax, turned back, dense
    scaled = 2 * 60 if weights else 2 * 75  # the queries, and the keys turned; or the scores
    check(
        does(forward, (5, 6), layer=layer),
        f"{PACKED} {EAGER if weights else FUSED}",
        (0, 0, macs, projections + products + scaled, 4 * (36 + 6), 15 if weights else 14),
    )


def test_cross_attention_with_keys_of_another_size() -> None:
    layer = nn.MultiheadAttention(6, 2, kdim=4, vdim=5, batch_first=True, bias=False)
    other = Does(lambda m, q, k, v: m.layer(q, k, v)[0], layer=layer)
    graph = graph_of(other, [(5, 6), (7, 4), (7, 5)])
    assert " ".join(kinds(graph)) == f"dense dense dense transpose transpose transpose {EAGER}"
    assert total(graph).weights == 36 + 24 + 30 + 36
    assert total(graph).flops == 5 * 36 + 7 * 24 + 7 * 30 + 5 * 36 + 2 * 2 * 5 * 7 * 3
    plain = nn.MultiheadAttention(6, 2, batch_first=True)
    graph = graph_of(Does(lambda m, q, k: m.layer(q, k, k)[0], layer=plain), [(5, 6), (7, 6)])
    assert kinds(graph).count("dense") == 3  # queries, keys and values together, the output
    assert total(graph).flops == 2 * 5 * 36 + 2 * 7 * 36 + 2 * 2 * 5 * 7 * 3


def test_weights_of_attention_that_are_returned_and_keys_of_its_own() -> None:
    layer = nn.MultiheadAttention(6, 3, batch_first=True)
    graph = does(lambda m, x: m.layer(x, x, x), (5, 6), layer=layer)
    assert " ".join(kinds(graph)) == f"{PACKED} {EAGER} reduce"  # the mean over heads
    assert graph.shapes(graph.outputs) == [(1, 5, 6), (1, 5, 5)]
    layer = nn.MultiheadAttention(6, 3, batch_first=True, add_bias_kv=True)
    graph = does(lambda m, x: m.layer(x, x, x, need_weights=False)[0], (5, 6), layer=layer)
    assert total(graph).flops == 4 * 5 * 36 + 2 * 3 * 5 * 6 * 2  # six keys


def test_a_transformer_with_masks_by_hand() -> None:
    """Four projections, two products of attention and two dense layers; those of the source in between."""
    transformer = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = transformer

        def forward(self, source: Any, target: Any) -> Any:
            causal = map(nn.Transformer.generate_square_subsequent_mask, (10, 6))
            return self.transformer(
                source, target, *causal, src_key_padding_mask=source[..., 0] > 0
            )

    def layer(target: int, source: int) -> int:
        return 2 * (target + source) * 32 * 32 + 2 * target * source * 32

    graph = lolat.read((Masked(), (torch.zeros(1, 10, 32), torch.zeros(1, 6, 32))))
    dense = 2 * (10 + 6) * 32 * 64
    expected = 2 * (layer(10, 10) + layer(6, 6) + layer(6, 10) + dense)
    assert count(graph).total(3).flops == 3 * expected


@pytest.mark.parametrize("frozen", [False, True])
def test_a_transformer_encoder(frozen: bool) -> None:
    """Frozen, PyTorch would run it as one fused operation, which hides what is in it."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).requires_grad_(not frozen)
    graph = graph_of(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (5, 8))
    (told,) = graph.warnings
    assert "fused at inference" in told
    one = f"{PACKED} {FUSED} add layer_norm dense relu dense add layer_norm"
    assert kinds(graph) == 2 * one.split()
    assert count(graph).total(1).flops == 2 * (4 * 5 * 64 + 2 * 25 * 8 + 2 * 5 * 128)
    assert graph.operations[1].full_name == "layers.0.self_attn/dense"


# ---- recurrent layers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "kind", "gates"), [(nn.LSTM, "lstm", 4), (nn.GRU, "gru", 3), (nn.RNN, "simple_rnn", 1)]
)
def test_recurrent_layers(make: Any, kind: str, gates: int) -> None:
    layer = make(3, 4, batch_first=True)
    graph = graph_of(Does(lambda m, x: m.layer(x)[0], layer=layer), (5, 3))
    assert kinds(graph) == [kind]
    counts = total(graph, 2)
    assert (counts.flops, counts.ops) == (2 * 5 * gates * 4 * (3 + 4), 5)
    assert counts.weights == sum(p.numel() for p in layer.parameters())
    deep = make(3, 4, num_layers=2, bidirectional=True, batch_first=True, bias=False)
    graph = graph_of(Does(lambda m, x: m.layer(x)[0], layer=deep), (5, 3))
    assert kinds(graph) == [kind, kind, "concatenate"] * 2
    assert total(graph).flops == 2 * 5 * gates * 4 * ((3 + 4) + (8 + 4))
    assert total(graph).weights == sum(p.numel() for p in deep.parameters())
    assert graph.shapes(graph.outputs) == [(1, 5, 8)]


STEPS_IN_FRONT = {
    "a layer": (nn.LSTM(3, 4), (5, 3), None),
    "in a module": (Does(lambda m, x: m.layer(x)[0][-1], layer=nn.LSTM(3, 4)), (5, 3), None),
    "an example": (nn.LSTM(3, 4), (), (torch.zeros(5, 2, 3), (torch.zeros(1, 2, 4),) * 2)),
    "tokens": (Does(lambda m, x: m.layer(m.table(x))[0], table=nn.Embedding(9, 3), layer=nn.LSTM(3, 4)),
               (5,), None),
}  # fmt: skip


@pytest.mark.parametrize("case", STEPS_IN_FRONT)
def test_steps_in_front_are_steps(case: str) -> None:
    """Unless batch_first says otherwise: one sequence of five steps, not five sequences of one."""
    graph = graph_of(*STEPS_IN_FRONT[case])
    assert graph.shapes(graph.inputs)[0][:2] == (5, 1)
    assert graph.input_sizes[0][0] == 5
    assert read(graph, graph.input_sizes) == graph
    assert [o.attributes["timesteps"] for o in graph.operations if o.kind == "lstm"] == [5]
    for batch in (1, 2):
        counts = count(graph).total(batch)
        assert counts.flops == batch * 5 * 4 * 4 * (3 + 4)
        assert counts.ops == 5 + len(kinds(graph)) - 1
    assert "second axis" in graph.warnings[0]


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_batch_that_is_taken_as_steps_is_said(batch_first: bool) -> None:
    """No other axis is the batch: an image's rows, a sequence without a batch."""
    layer, conv = nn.LSTM(3, 4, batch_first=batch_first), nn.Conv2d(2, 3, 1)
    rows = does(lambda m, x: m.layer(m.conv(x).flatten(2).mT)[0], (2, 4, 4), layer=layer, conv=conv)
    flat = graph_of(layer, (), torch.zeros(2, 3))
    assert [bool(g.warnings) for g in (rows, flat)] == [not batch_first, True]
    assert all("(batch, steps, features)" in g.warnings[0] for g in (rows, flat) if g.warnings)


def test_states_and_cells() -> None:
    """The last states of several layers are stacked; a cell is what PyTorch takes it apart into."""
    deep = nn.LSTM(3, 4, 2, batch_first=True)
    states = does(lambda m, x: m.layer(x)[1][0], (5, 3), layer=deep)
    assert kinds(states) == ["lstm", "lstm", "stack"]
    step = graph_of(Does(lambda m, x: m.cell(x)[0], cell=nn.LSTMCell(3, 4)), (), torch.zeros(1, 3))
    assert kinds(step)[:2] == ["dense", "dense"]
    assert "as the single operations that a CPU runs" in "".join(step.warnings)
    assert count(step).total(1).flops == 4 * 4 * 7


# ---- the rest ----------------------------------------------------------------------------------------


def test_where_the_channels_are_moved_nothing_is() -> None:
    """A transposition that only moves the channels is a view; others count."""
    stem = nn.Conv2d(3, 8, 2, 2)
    tokens = does(lambda m, x: m.stem(x).flatten(2).transpose(1, 2), (3, 8, 8), stem=stem)
    assert kinds(tokens) == ["conv"]
    back = does(
        lambda m, x: m.conv(m.ln(m.stem(x).flatten(2).transpose(1, 2)).transpose(1, 2).view(-1, 8, 4, 4)),
        (3, 8, 8), stem=stem, ln=nn.LayerNorm(8), conv=nn.Conv2d(8, 2, 1),
    )  # fmt: skip
    assert kinds(back) == ["conv", "layer_norm", "conv"]
    mixer = does(lambda m, x: m.fc(m.ln(x).transpose(1, 2)), (16, 8), ln=nn.LayerNorm(8),
                 fc=nn.Linear(16, 4))  # fmt: skip
    assert kinds(mixer) == ["layer_norm", "transpose", "dense"]
    as_files_have_it = does(lambda m, x: m.stem(x.permute(0, 3, 1, 2)), (8, 8, 3), stem=stem)
    assert kinds(as_files_have_it) == ["conv"]


@pytest.mark.parametrize(
    ("part", "size", "named", "traffic"),
    [
        (lambda m, x: torch.einsum("...j,...j,...j->...j", x, x, x), (2, 2), "aten.einsum", 4 * 4),
        (lambda m, x: torch.cdist(x, x), (5, 3), "no formula for operation aten.", 15 + 15 + 25),
    ],
)
def test_what_has_no_rule_is_reported_and_counts(
    part: Any, size: Any, named: str, traffic: int
) -> None:
    counts = count(does(part, size))
    assert len(counts.warnings) == 1
    assert named in counts.warnings[0]
    assert counts.total().traffic >= traffic


class Made(TorchDispatchMode):
    """The elements that PyTorch's copies and products write, in the order in which it runs them."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[tuple[str, int]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if kind := {"aten::clone": "transpose", "aten::bmm": "matmul"}.get(func._schema.name):
            self.found.append((kind, result.numel()))
        return result


@pytest.mark.parametrize(
    "equation",
    ["bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bqd,bkd->bqk", "bhqd,bhkd->bhqk", "bhqd,bhqe->bhde",
     "bchq,bchk->bqk", "bhd,bqhd->bqh", "bqd,bqe->bde", "bdq,bdk->bkq"],
)  # fmt: skip
def test_an_einsum_copies_the_operands_that_pytorch_copies(equation: str) -> None:
    sizes, terms = dict(zip("bhqkdec", range(2, 9), strict=True)), equation.partition("->")[0]
    made = [torch.rand([sizes[c] for c in term]) for term in terms.split(",")]
    with Made() as run:
        torch.einsum(equation, made[0].requires_grad_(), made[1])
    does_einsum = Does(lambda _, x, y: torch.einsum(equation, x, y))
    graph = lolat.read((does_einsum, tuple(t[:1] for t in made)))
    found = [(o.kind, graph.tensors[o.outputs[0]].elements(2)) for o in graph.operations]
    behind = found[len(run.found) :]
    assert found[: len(run.found)] == run.found
    assert [kind for kind, _ in behind] in ([], ["transpose"])  # of the result


def test_what_was_turned_before_an_einsum_is_copied_once() -> None:
    graph = does(
        lambda m, x: torch.einsum("bhqd,bhkd->bhqk", x.transpose(1, 2), x.transpose(1, 2)),
        (5, 3, 4),
    )
    assert kinds(graph) == ["transpose", "transpose", "matmul"]


@pytest.mark.parametrize("device", ["epyc-2t-torch", "v100-fp32", "rtx-4090-amp"])
@pytest.mark.parametrize(
    "part",
    [
        lambda m, x: torch.einsum("...j,...j,...j->...j", x, x, x), lambda m, x: torch.cdist(x, x),
        lambda m, x: torch.linalg.svdvals(x), lambda m, x: torch.linalg.inv(x),
        lambda m, x: torch.fft.fft2(x).real,
    ],
    ids=["einsum", "distances", "singular values", "inverse", "Fourier transform"],
)  # fmt: skip
def test_what_hides_products_is_outside_the_measured_range(part: Any, device: str) -> None:
    """Each takes more than its traffic: n times the elements of a matrix, or their logarithm."""
    answer = lolat.load(device).predict(does(part, (64, 64)), 16)
    assert not answer.in_domain
    assert any("without its products" in said for said in answer.warnings)


def test_an_operation_without_a_formula_is_outside_the_measured_range_on_a_gpu() -> None:
    """Of a network, its part of the time, by the times of the parts alone."""

    def bins(x: Any) -> Any:
        return torch.bucketize(x, torch.linspace(0, 1, 9))

    device, layer = lolat.load("v100-fp32"), nn.Conv2d(3, 64, 3)
    alone, rest = (
        device.predict(does(part, (3, 256, 256), conv=layer), 64)
        for part in (lambda m, x: bins(x), lambda m, x: m.conv(x).relu())
    )
    assert (alone.inside_share, rest.inside_share) == (0.0, pytest.approx(1.0, abs=0.02))
    assert any("no formula for operation aten.bucketize" in said for said in alone.warnings)
    both = does(lambda m, x: (m.conv(x).relu(), bins(x)), (3, 256, 256), conv=layer)
    share = rest.latency_ms / (rest.latency_ms + alone.latency_ms)
    assert device.predict(both, 64).inside_share == pytest.approx(share, abs=0.02)


def test_a_product_of_integers_hides_as_one_of_floats_does() -> None:
    def forward(m: Any, x: Any) -> Any:
        return torch._int_mm(x.to(torch.int8), m.weight).to(x.dtype)

    network = Does(forward)
    network.register_buffer("weight", torch.zeros(64, 32, dtype=torch.int8))
    answer = lolat.load("epyc-2t-torch").predict((network, torch.rand(32, 64)), batch_size=32)
    assert any("without its products" in said for said in answer.warnings)


def test_a_projected_lstm_has_the_parameters_of_pytorch_and_their_products() -> None:
    """A step: four gates of 8 units from the input and 2 projected features, and the projection itself."""
    layer = nn.LSTM(3, 8, 2, batch_first=True, bidirectional=True, proj_size=2)
    graph = graph_of(layer, (5, 3))
    assert parameters(graph) == sum(p.numel() for p in layer.parameters())
    first, second = (4 * 8 * (features + 2) + 8 * 2 for features in (3, 2 * 2))
    assert total(graph).flops == 5 * 2 * (first + second)


def test_a_logsumexp_takes_the_passes_of_its_operations() -> None:
    """PyTorch finds the largest, subtracts it, sums exponentials in place, and adds it to the logarithm."""

    def by_hand(m: Any, x: Any) -> Any:
        most = x.amax(-1, keepdim=True)
        return (x - most).exp_().sum(-1, keepdim=True).log() + most

    ours = does(lambda m, x: x.logsumexp(-1, keepdim=True), (5, 8))
    theirs = does(by_hand, (5, 8))
    assert kinds(ours) == kinds(theirs)
    assert total(ours) == total(theirs)


def test_a_dynamically_quantized_linear_is_a_dense_layer_in_8_bits() -> None:
    """Used twice, it is there once: 8 x 8 bytes and 8 biases in float32."""
    plain = nn.Sequential(*[nn.Linear(8, 8)] * 2).eval()
    quantized = torch.ao.quantization.quantize_dynamic(plain)
    quantized[1] = quantized[0]
    ours, in_float = (graph_of(m, (8,)) for m in (quantized, plain))
    assert (kinds(ours), count(ours).total()) == (kinds(in_float), total(in_float))
    assert [analyze(g).memory(1).weights_bytes for g in (ours, in_float)] == [64 + 4 * 8, 4 * 72]
    assert ours.warnings == ()


def test_complex_weights_beside_others_have_their_own_bytes() -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.layer(torch.view_as_real(torch.complex(x, x) @ m.weight).flatten(-2))

    network = Does(forward, layer=nn.Linear(12, 4))
    network.weight = nn.Parameter(torch.zeros(8, 6, dtype=torch.complex64))
    own = sum(p.numel() * p.element_size() for p in network.parameters())
    assert analyze(graph_of(network, (5, 8))).memory(1).weights_bytes == own


def test_a_dropout_that_the_code_turns_on_is_counted() -> None:
    """30 elements in and out, behind a product of 30."""
    on, off = (
        does(lambda m, x, on=on: torch.nn.functional.dropout(x * 2, 0.3, on), (5, 6))
        for on in (True, False)
    )
    assert count(on).total()[3:6] == (4 * 30, 0, 2)
    assert count(off).total()[3:6] == (2 * 30, 0, 1)
    told = [any("drop elements at inference" in said for said in g.warnings) for g in (on, off)]
    assert told == [True, False]


def test_a_batch_norm_of_the_batch_is_trained_as_any_other() -> None:
    own, kept = (
        graph_of(nn.BatchNorm2d(4, track_running_stats=k), (4, 6, 6)) for k in (False, True)
    )
    assert [kinds(g) for g in (own, kept)] == [["instance_norm"], ["batch_norm"]]
    assert kinds(as_trained(own)) == ["batch_norm"]


def test_attention_without_fused_kernels_is_single_operations() -> None:
    """Two heads of 3 on 5 steps: two products of 2 x 5 x 5 x 3."""

    def forward(m: Any, x: Any, **more: Any) -> Any:
        x = x.view(-1, 2, 5, 3)
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, **more)

    with sdpa_kernel(SDPBackend.MATH):
        single = does(forward, (10, 3))
    fused = does(forward, (10, 3))
    assert [kinds(g) for g in (single, fused)] == [
        ["matmul", "scale", "softmax", "matmul"],
        ["attention"],
    ]
    assert total(single).flops == total(fused).flops == 2 * 2 * 5 * 5 * 3
    # In PyTorch's order the single operations come before cuDNN's kernel.
    order = [SDPBackend(int(one)) for one in torch._C._get_sdp_priority_order()]
    assert order.index(SDPBackend.MATH) < order.index(SDPBackend.CUDNN_ATTENTION)
    for on in ([SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION], [SDPBackend.CUDNN_ATTENTION]):
        with sdpa_kernel(on):
            found = does(forward, (10, 3))
        assert (kinds(found) == kinds(single)) == (SDPBackend.MATH in on)
        assert any("cuDNN" in said for said in found.warnings) == (SDPBackend.MATH in on)
    dropping = does(lambda m, x: forward(m, x, dropout_p=0.1), (10, 3))
    assert any("drop elements" in said for said in dropping.warnings)


def _pruned(layer: nn.Module) -> nn.Module:
    return prune.random_unstructured(layer, "weight", 0.5)


class Standardized(nn.Conv2d):
    def forward(self, x: Any) -> Any:
        return self._conv_forward(x, self.weight - self.weight.mean((1, 2, 3), True), self.bias)


@pytest.mark.parametrize(
    "layer",
    [
        parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
        parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)),
        _pruned(nn.Conv2d(3, 4, 3)),
        Standardized(3, 4, 3),
    ],
)
def test_weights_that_are_computed_anew_are_told(layer: nn.Module) -> None:
    """They are weights of a convolution of 3 to 4 channels on 6 x 6, before one of 4 to 4 on 4 x 4."""
    graph = graph_of(nn.Sequential(layer, nn.Conv2d(4, 4, 3)), (3, 8, 8))
    assert sum("weights of 1 operation anew" in said for said in graph.warnings) == 1
    assert six(count(graph).total())[2:5:2] == (
        9 * 3 * 4 * 36 + 9 * 4 * 4 * 16,
        9 * 3 * 4 + 4 + 9 * 4 * 4 + 4,
    )
    same = does(lambda m, x: m.fc(x) @ m.fc.weight.float().t(), (6,), fc=nn.Linear(6, 6))
    assert same.warnings == ()


def test_an_average_and_a_norm_of_weights_are_told() -> None:
    def averaged(m: Any, x: Any) -> Any:
        m.mean.mul_(0.99).add_(m.fc.weight, alpha=0.01)
        return m.fc(x)

    fc, mean = nn.Linear(1100, 1000, bias=False), nn.Buffer(torch.zeros(1000, 1100))
    (told,) = does(averaged, (1100,), fc=fc, mean=mean).warnings
    assert "2,200,000 elements from parameters" in told  # multiplied, then added to
    (told,) = does(lambda m, x: m.fc(x) + (m.fc.weight**2).sum(), (1100,), fc=fc).warnings
    assert "1,100,001 elements from parameters" in told
    assert does(lambda m, x: x @ m.fc.weight.t(), (1100,), fc=fc).warnings == ()


def test_tables_that_depend_on_parameters_alone_are_constants() -> None:
    def forward(m: Any, x: Any) -> Any:
        bias = m.table[torch.arange(9) % 4].view(3, 3).contiguous()
        return x + bias.unsqueeze(0)

    graph = does(forward, (3, 3), table=nn.Parameter(torch.zeros(4)))
    assert kinds(graph) == ["add"]
    assert six(graph, 2) == (0, 0, 0, 2 * 18 + 9, 0, 1)


def test_one_sample_on_the_second_axis_of_a_layer_with_steps_first() -> None:
    """As of PyTorch's tutorials: 128 steps of one sample, not 128 samples of a step each."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128), 2)
    graph = lolat.read((encoder.eval(), torch.zeros(128, 1, 64)))
    of_layer = 128 * (4 * 64 * 64 + 2 * 64 * 128) + 2 * 128 * 128 * 64
    for batch in (1, 3):
        assert count(graph).total(batch).flops == batch * 2 * of_layer
    assert any("the batch is the second axis" in said for said in graph.warnings)
    rows = lolat.read((nn.LSTM(8, 8, batch_first=True), torch.zeros(5, 1, 8)))
    assert not any("second axis" in said for said in rows.warnings)


def test_results_in_a_dataclass_are_results() -> None:
    """A network may return its tensors in a dataclass, also in one within another."""

    @dataclasses.dataclass
    class Inner:
        y: torch.Tensor

    @dataclasses.dataclass
    class Outer:
        inner: Inner
        z: list[torch.Tensor]

    def forward(m: Any, x: Any) -> Any:
        h = m.layer(x)
        return Outer(Inner(h), [h.relu()])

    graph = does(forward, (6,), layer=nn.Linear(6, 4))
    assert [o.kind for o in graph.operations] == ["dense", "relu"]
    assert len(graph.outputs) == 2


@pytest.mark.parametrize("how", ["mean", "norm", "gate", "buffer"])
def test_a_scalar_of_the_input_keeps_what_it_is_computed_from(how: str) -> None:
    """PyTorch's own count; a scalar that is a constant is no operand."""
    from torch.utils.flop_counter import FlopCounterMode

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)
            self.register_buffer("factor", torch.tensor(0.5))

        def forward(self, x: Any) -> Any:
            y, z = self.a(x), self.b(x)
            if how == "buffer":
                return y * self.factor + z
            if how == "mean":
                return y + z.mean()
            return y * z.norm() if how == "norm" else torch.sigmoid(z.mean()) * y

    network = Network().eval()
    with FlopCounterMode(display=False) as counter:
        network(torch.rand(1, 3, 32, 32))
    graph = lolat.read(network, (3, 32, 32))
    macs = int(analyze(graph).block_counts(1)[:, COLUMNS.index("flops")].sum())
    assert 2 * macs == counter.get_total_flops()
    assert not graph.warnings
