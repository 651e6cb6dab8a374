"""PyTorch networks whose own code or inputs tell how they run: layout of images, compiled or eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import lolat
from lolat.graph.counts import COLUMNS, count
from tests.readers.torch_networks import Does

LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


@pytest.mark.parametrize("axes", LAST)
@pytest.mark.parametrize("where", ["nowhere", "weights", "input", "to", "contiguous"])
def test_channels_last_of_its_own_is_told(where: str, axes: int) -> None:
    """PyTorch lays out an image as its convolution's input or weights; a video on a GPU alone."""
    last, image = LAST[axes], torch.zeros(1, 3, *[9] * axes)
    conv = (nn.Conv2d if axes == 2 else nn.Conv3d)(3, 8, 3)
    changes = {
        "to": lambda m, x: m.conv(x.to(memory_format=last)),
        "contiguous": lambda m, x: m.conv(x.contiguous(memory_format=last)),
    }
    network = Does(changes.get(where, lambda m, x: m.conv(x)), conv=conv).eval()
    network = network.to(memory_format=last) if where == "weights" else network
    image = image.contiguous(memory_format=last) if where == "input" else image
    if axes == 2:
        assert network(image).is_contiguous(memory_format=last) == (where != "nowhere")
    said = lolat.load("rtx-4090").predict((network, image)).warnings
    told = [w for w in said if str(last).removeprefix("torch.") in w]
    assert bool(told) == (where != "nowhere"), said
    assert all(("--channels-last" in w) == (axes == 2) for w in told)


def _mixed(tokens: Any) -> Any:
    """Tokens -> (batch, channels, height, width), as a decoder behind a transformer takes them."""
    return tokens.transpose(1, 2).reshape(len(tokens), -1, 8, 8)


def _first(image: Any) -> Any:
    """An image whose channels lie first in memory."""
    return image.permute(0, 3, 1, 2).contiguous()


TURNS = {
    "plain": lambda m, x: m.convs(_first(x)),
    "permuted": lambda m, x: m.convs(x.permute(0, 3, 1, 2)),
    "tokens": lambda m, x: m.convs(_mixed(m.norm(x.flatten(1, 2)))),
    "tokens as they lie": lambda m, x: m.convs(_mixed(_first(x).flatten(2).mT)),
    "around a norm": lambda m, x: m.convs(
        m.norm(_first(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    ),
}


@pytest.mark.parametrize("name", TURNS)
def test_convolutions_of_a_permuted_image_are_told(name: str) -> None:
    """PyTorch's own run with two samples says in which layout its last convolution is."""
    convs = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
    network = Does(TURNS[name], convs=convs, norm=nn.LayerNorm(4)).eval()
    with torch.no_grad():
        result = network(torch.rand(2, 8, 8, 4))
    is_last = not result.is_contiguous() and result.is_contiguous(memory_format=LAST[2])
    said = lolat.read((network, torch.zeros(1, 8, 8, 4))).warnings
    told = any("100 % of the work of its convolutions is in channels_last" in w for w in said)
    assert told == is_last, said
    assert is_last == (name not in ("plain", "tokens as they lie"))


@pytest.mark.parametrize("converts", [True, False])
def test_a_move_or_a_layout_is_no_conversion(converts: bool) -> None:
    def does(m: Any, x: Any) -> Any:
        x = x.to(x.device).to(memory_format=torch.channels_last)
        return m.conv(x.to(torch.float32) if converts else x)

    network = Does(does, conv=nn.Conv2d(3, 8, 3))
    said = lolat.load("rtx-4090").predict((network, torch.zeros(1, 3, 9, 9))).warnings
    assert any("converts to float32" in w for w in said) == converts


COMPILING = {
    "is_compiling": torch.compiler.is_compiling,
    "is_exporting": torch.compiler.is_exporting,
    "is_dynamo_compiling": torch.compiler.is_dynamo_compiling,
}


@pytest.mark.parametrize("asked", [*COMPILING, "nothing"])
def test_the_branch_of_eager_code_is_read(asked: str) -> None:
    """Its products are those of the network's own run."""
    asks = COMPILING.get(asked, bool)

    def does(m: Any, x: Any) -> Any:
        return m.one(x) if asks() else m.two(m.one(x))

    network = Does(does, one=nn.Linear(8, 8), two=nn.Linear(8, 8)).eval()
    x = torch.zeros(1, 8)
    with FlopCounterMode(display=False) as counter:
        network(x)
    graph = lolat.read((network, x))
    flops = count(graph).at(1)[:, COLUMNS.index("flops")].sum()
    assert 2 * flops == counter.get_total_flops() == 2 * 2 * 64
    told = any("is_compiling" in w for w in graph.warnings)
    assert told == (asked in ("is_compiling", "is_exporting"))


def test_a_library_may_still_ask_whether_it_is_compiled() -> None:
    """A decoder of PyTorch's own compares a mask's values unless it is compiled."""
    layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True)
    x, mask = torch.zeros(1, 4, 16), nn.Transformer.generate_square_subsequent_mask(4)
    network = Does(lambda m, x: m.layer(x, x, tgt_mask=mask), layer=layer)
    assert not any("is_compiling" in w for w in lolat.read((network, x)).warnings)


ON_GPU = {"is_cuda": lambda x: x.is_cuda, "is_available": lambda x: torch.cuda.is_available()}


@pytest.mark.parametrize("asked", [*ON_GPU, "nothing"])
def test_code_that_asks_for_a_gpu_is_told(asked: str) -> None:
    asks = ON_GPU.get(asked, lambda x: x.device == x.device)
    network = Does(
        lambda m, x: m.two(m.one(x)) if asks(x) else m.one(x),
        one=nn.Linear(8, 8),
        two=nn.Linear(8, 8),
    )
    told = any(
        "whether it runs on a GPU" in w for w in lolat.read((network, torch.zeros(1, 8))).warnings
    )
    assert told == (asked in ON_GPU)


COPIES: dict[str, Any] = {
    "clone": lambda m, x: x.clone(),
    "clone of what was turned": lambda m, x: x.transpose(1, 2).clone().transpose(1, 2),
    "to, as a copy": lambda m, x: x.to(x.dtype, copy=True),
    "nothing": lambda m, x: x,
    "detach": lambda m, x: x.detach(),
    "contiguous": lambda m, x: x.contiguous(),
    "to": lambda m, x: x.to(x.dtype),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_takes_time_where_eager_pytorch_makes_one(name: str) -> None:
    """PyTorch's profiler sees the copies; on a GPU each takes at least the time of its bytes."""
    network = Does(lambda m, x: torch.sigmoid(torch.relu(COPIES[name](m, x))))
    image = torch.zeros(1, 64, 64, 64)
    with torch.profiler.profile() as profile:
        network(image)
    ran = sum(event.name == "aten::copy_" for event in profile.events())
    gpu = lolat.load("rtx-4090")
    took, alone = (
        gpu.predict((n, image), batch_size=256, precision="fp32").latency_ms
        for n in (network, Does(lambda m, x: torch.sigmoid(torch.relu(x))))
    )
    least = 2 * 256 * image.nbytes / 1008e9 * 1e3  # by the data sheet's bandwidth
    assert took - alone >= ran * least
    assert ran or took == pytest.approx(alone)
    if "turned" not in name:
        each = (gpu.predict((n, image), batch_size=256, launch="compiled").latency_ms
                for n in (network, Does(lambda m, x: torch.sigmoid(torch.relu(x)))))  # fmt: skip
        assert next(each) == pytest.approx(next(each))


PLACED: dict[str, tuple[Any, int, int]] = {
    "nowhere": (lambda m, x: m.conv(x), 0, 0),
    "where the input is": (lambda m, x: m.conv(x).to(x.device, non_blocking=True), 0, 0),
    "on the GPU": (lambda m, x: m.conv(x.cuda()).to("cuda"), 0, 0),
    "on the device of the module": (lambda m, x: m.conv(x.to(m.device)), 0, 0),
    "where it is compared": (lambda m, x: m.conv(x.to(m.device)) * (m.device == "cpu"), 0, 0),
    "cpu()": (lambda m, x: m.conv(x).cpu(), 1, 0),
    "to": (lambda m, x: {"a": m.conv(x).to("cpu")}, 1, 0),
    "by name": (lambda m, x: m.conv(x).to(device="cpu", non_blocking=True), 1, 0),
    "each of two": (lambda m, x: [(y := m.conv(x)).cpu(), y.relu().cpu()], 2, 0),
    "between": (lambda m, x: m.conv(x).cpu().relu().to(x.device), 1, 1),
    "a second GPU": (lambda m, x: m.conv(x).to("cuda:1").relu(), 0, 1),
    "two GPUs": (lambda m, x: m.conv(x).cuda(1).relu().cuda(0), 0, 2),
}  # fmt: skip
"""What is done -> the function; copies of a result to the CPU; copies back, or between GPUs."""


@pytest.mark.parametrize("where", PLACED)
def test_copies_between_devices_are_told(where: str) -> None:
    """With the bytes of the tensors that are copied: a result of 8 x 256 x 256 has 2 MiB."""
    function, to_cpu, others = PLACED[where]
    network, image = Does(function, conv=nn.Conv2d(3, 8, 1)).eval(), torch.zeros(1, 3, 256, 256)
    network.device = "cpu"
    each = network.conv(image).nbytes // 2**20
    graph = lolat.read((network, image))
    told = [w for w in graph.warnings if "copies" in w]
    assert len(told) == bool(to_cpu or others)
    if to_cpu:
        back = f" and {each * others}.00 MiB back" * bool(others)
        assert f"copies {each * to_cpu}.00 MiB a sample to the CPU{back}: not counted" in told[0]
    elif others:
        assert (
            f"(cuda:1): read as on one; copies between GPUs, of {each * others}.00 MiB" in told[0]
        )


def test_an_embedding_kept_on_the_cpu_is_told() -> None:
    """It gets 512 indices of 8 bytes, and gives 512 rows of 64 numbers."""
    network = Does(lambda m, x: m.head(m.table(x.cpu()).to("cuda")),
                   table=nn.Embedding(9, 64), head=nn.Linear(64, 8))  # fmt: skip
    said = lolat.read((network, torch.zeros(1, 512, dtype=torch.long))).warnings
    assert any("copies 4.00 KiB a sample to the CPU and 128 KiB back" in w for w in said)


def _block(how: str) -> nn.Module:
    """A dense layer, compiled in one of the ways that users do."""
    layer = nn.Linear(8, 8)
    if how == "module":
        return torch.compile(layer)  # type: ignore[return-value]
    if how == "compile()":
        layer.compile()
    if how == "function":
        relu = torch.compile(torch.relu)
        return Does(lambda m, x: relu(m.layer(x)), layer=layer)
    return layer


@pytest.mark.parametrize("how", ["module", "compile()", "function", "not"])
def test_compiled_parts_are_told(how: str) -> None:
    """Three of three layers; each runs twice."""
    blocks = [_block(how) for _ in range(3)]
    graph = lolat.read((nn.Sequential(*blocks, *blocks), torch.zeros(1, 8)))
    told = [w for w in graph.warnings if "torch.compile" in w]
    assert len(told) == (how != "not")
    assert all("it has 3 parts that PyTorch compiles" in w for w in told)
    assert sum(o.kind == "dense" for o in graph.operations) == 6


def test_a_network_that_is_compiled_as_a_whole_has_one_remark() -> None:
    whole = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    whole.compile()
    said = lolat.read((whole, torch.zeros(1, 8))).warnings
    assert ["it is compiled" in w for w in said if "torch.compile" in w] == [True]


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_tf32_that_code_turns_on_is_told(precision: str) -> None:
    """By PyTorch's own word on it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        said = lolat.read((nn.Linear(8, 8), torch.zeros(1, 8))).warnings
        is_on = torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before)
    assert any("--precision tf32" in w for w in said) == is_on == (precision != "highest")
