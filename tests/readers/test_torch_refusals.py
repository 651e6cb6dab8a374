"""PyTorch networks that cannot be read, or not be trained: the code, the line of the user's code."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import lolat
from lolat.errors import NetworkError
from lolat.graph.counts import count
from lolat.readers.torch.named import without_weights
from tests.processes import python
from tests.readers.counting import refused
from tests.readers.torch_networks import Does, kinds, total

MODULE = """
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        print("calling")
        return self.conv(x)

class Chooses(Net):
    def forward(self, x):
        y = self.conv(x)
        if y.sum() > 0:  # LINE
            return y
        return -y

class Wrong(nn.Module):
    def __init__(self):
        super().__init__()
        self.wrong = nn.Linear(10, 5)

    def forward(self, x):
        return self.wrong(x)  # LINE

def pair():
    return Net(), torch.zeros(4, 3, 9, 9)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A working directory with a module."""
    (tmp_path / "lolat_torch_nets.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("lolat_torch_nets", None)


def test_a_module_without_forward_is_told_so_alone() -> None:
    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

    with pytest.raises(
        NetworkError, match=r'"forward" function; write the method forward\(self, x\)'
    ) as error:
        lolat.read(Empty(), 32)
    assert "input_size" not in str(error.value)


def test_channels_in_the_order_of_another_framework_are_put_right(here: Path) -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(768, 8))
    assert lolat.read(flat, 16).input_sizes == [(3, 16, 16)]
    with pytest.raises(
        NetworkError, match=r"an image of 3 channels is input_size=\(3, 15, 15\)\)$"
    ):
        lolat.read(flat, 15)
    with pytest.raises(
        NetworkError, match=r"; PyTorch has the channels first: input_size=\(3, 32, 48\)$"
    ):
        lolat.read("lolat_torch_nets:made", (32, 48, 3))


def test_numbers_that_were_taken_for_tokens_are_asked_for_with_their_features() -> None:
    class Positions(nn.Module):
        """Steps of 24 features, each with a learned position."""

        def __init__(self) -> None:
            super().__init__()
            self.position, self.features = nn.Embedding(16, 32), nn.Linear(24, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.features(x) + self.position(torch.arange(16))

    with pytest.raises(NetworkError, match=r"not of tokens, give input_size=\(16, 24\)$"):
        lolat.read(Positions(), sequence_length=16)
    assert total(lolat.read(Positions(), (16, 24))).flops == 16 * 24 * 32


def test_a_side_is_an_image_to_a_network_that_gets_its_numbers_flat() -> None:
    """28 x 28 = 784: one image, as torch.utils.flop_counter counts it; steps are told as such."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(784, 256), nn.Linear(256, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x.view(-1, 784)).relu())

    class Digits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(1, 4, 28), nn.Linear(4, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.conv(x.view(-1, 1, 28, 28)).flatten(1))

    graph = lolat.read(Flat(), 28)
    with FlopCounterMode(display=False) as counter:
        Flat()(torch.zeros(1, 1, 28, 28))
    assert count(graph).total().flops == counter.get_total_flops() / 2
    assert graph.input_sizes == [(1, 28, 28)]
    assert "which its first layer gets flat" in " ".join(graph.warnings)
    steps = lolat.read(nn.Sequential(nn.Linear(256, 8)), 16)  # 16 x 16 = 256, and it takes steps
    assert steps.input_sizes == [(16, 256)]
    assert "read as 16 steps of 256 features" in " ".join(steps.warnings)
    assert "which its first layer gets flat" not in " ".join(steps.warnings)
    assert "gives 784 rows" in " ".join(lolat.read(Digits(), 784).warnings)
    assert "rows" not in " ".join(lolat.read(Digits(), 28).warnings)


def test_channels_behind_a_rearrangement_are_not_taken_for_the_inputs() -> None:
    """PixelUnshuffle(4) makes 3 x 16 = 48 channels of an image's 3."""
    stem = nn.Sequential(nn.PixelUnshuffle(4), nn.Conv2d(48, 8, 3))
    graph = lolat.read(stem, 32)
    assert graph.shapes(graph.inputs) == [(1, 3, 32, 32)]
    assert "its first convolution, 1 (48)" in " ".join(graph.warnings)
    with pytest.raises(NetworkError, match=r"channels of its first convolution, 1 \(48\), is 48x"):
        lolat.read(stem)
    four = nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(4, 8, 3))
    with pytest.raises(NetworkError, match=r"taken from its first convolution, 1 \(4\); give them"):
        lolat.read(four, 32)
    wrong = nn.Sequential(stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(10, 5))
    with pytest.raises(
        NetworkError, match="the layer '3' expects 10 features, gets 8; try another"
    ):
        lolat.read(wrong, 32)


def test_more_tokens_than_positions_are_told_with_the_option_of_tokens() -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(100, 8)
            self.positions = nn.Parameter(torch.zeros(1, 16, 8))

        def forward(self, x: Any) -> Any:
            return self.words(x) + self.positions[:, : x.shape[1]]

    assert len(lolat.read(Text(), 16).operations) > 1
    with pytest.raises(NetworkError) as caught:
        lolat.read(Text(), 32)
    assert str(caught.value).endswith("or try another sequence_length")


def test_an_error_of_a_networks_code_is_answered_by_its_kind() -> None:
    """A side that PyTorch itself runs is named, channels that it runs, and no input where none mends it."""
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(4 * 36, 5))
    with pytest.raises(NetworkError, match=r"expects 144 features, gets 64; try input_size 28$"):
        lolat.read(made, 20)
    with pytest.raises(
        NetworkError, match=r"expects 144 features, gets 80; try input_size=\(3, 28, 28\)$"
    ):
        lolat.read(made, (3, 20, 24))
    assert made(torch.zeros(1, 3, 28, 28)).shape == (1, 5)
    halves = Does(
        lambda m, x: torch.cat([x, nn.functional.interpolate(m.conv(x), scale_factor=2.0)], 1)
    )
    halves.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    remedy = r"at [^;]*; try input_size=\(3, 32, 32\), or mend its code there$"
    with pytest.raises(NetworkError, match=f"Sizes of tensors must match .*{remedy}"):
        lolat.read(halves, (3, 31, 31))
    assert halves(torch.zeros(1, 3, 32, 32)).shape == (1, 7, 32, 32)
    gray = nn.Sequential(nn.Conv2d(1, 4, 3))
    with pytest.raises(
        NetworkError, match=r"1 channels, but got 3 .*; try input_size=\(1, 28, 28\)$"
    ):
        lolat.read(gray, (3, 28, 28))
    assert gray(torch.zeros(1, 1, 28, 28)).shape == (1, 4, 26, 26)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(16, 8, 3))  # no input mends it
    for size in (32, (3, 32, 32)):
        with pytest.raises(NetworkError, match=r"mend '1': it gets 8 channels and takes 16$"):
            lolat.read(layers, size)
    with pytest.raises(NetworkError, match=r"no attribute 'missing' at [^;]*$"):
        lolat.read(Does(lambda m, x: m.missing(x)), 8)
    with pytest.raises(
        NetworkError, match=r"\.numpy\(\) fails at [^;]*; expected PyTorch's operations"
    ):
        lolat.read(Does(lambda m, x: torch.from_numpy(x.numpy())), 8)
    with pytest.raises(NetworkError, match="pins memory of the CPU"):
        lolat.read(Does(lambda m, x: LAYER(x).pin_memory()), 8)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (
            nn.Embedding(9, 4),
            "needs sequence_length: its input is ?; for example sequence_length 128",
        ),
        (nn.Conv2d(3, 4, 3), "is 3x?x?; for example input_size=224 or input_size=(3, 224, 224)"),
        (nn.Conv3d(3, 4, 3), "is 3x?x?x?; for example input_size=(3, 16, 224, 224)"),
    ],
)
def test_the_size_that_a_network_needs_is_one_that_it_takes(network: nn.Module, words: str) -> None:
    with pytest.raises(NetworkError, match=re.escape(words) + "$"):
        lolat.read(network)
    example = words.rpartition("example ")[2].rpartition(" or ")[2]
    name, *numbers = re.findall(r"sequence_length|input_size|\d+", example)
    graph = lolat.read(network, {name: tuple(map(int, numbers))})
    assert graph.input_sizes[0][-1] in (128, 224)


@pytest.mark.parametrize("numbers", [(3, 32, 32), 32, None])
def test_a_length_of_a_network_without_steps_is_left_out(numbers: Any) -> None:
    sizes = {"input_size": numbers, "sequence_length": 77}
    with pytest.raises(NetworkError, match=r"sequence_length .*: leave it out$"):
        lolat.read(nn.Conv2d(3, 4, 3), {k: n for k, n in sizes.items() if n})


@pytest.mark.parametrize("size", [(1, 3, 32, 48), (8, 3, 32, 48)])
def test_a_size_with_the_batch_in_front_is_told(size: tuple[int, ...]) -> None:
    with pytest.raises(NetworkError, match=r"leave out the batch: input_size=\(3, 32, 48\)"):
        lolat.read(nn.Sequential(nn.Conv2d(3, 4, 3)), size)


@pytest.mark.parametrize("name", ["made", "Net", "pair"])
def test_a_module_from_a_file_of_the_users(here: Path, name: str, capfd: Any) -> None:
    size = None if name == "pair" else 9
    graph = lolat.read(f"lolat_torch_nets:{name}", size)
    assert kinds(graph)[0] == "conv"
    assert graph.name == name
    assert graph.shapes(graph.inputs) == [(1, 3, 9, 9)]
    assert capfd.readouterr().out == ""  # a network that prints does not disturb JSON on stdout


def test_the_line_of_the_users_code_is_named(here: Path) -> None:
    line = MODULE.splitlines().index("        if y.sum() > 0:  # LINE") + 1
    with pytest.raises(NetworkError, match=f"at lolat_torch_nets.py:{line};"):
        lolat.read("lolat_torch_nets:Chooses", 9)
    line = MODULE.splitlines().index("        return self.wrong(x)  # LINE") + 1
    with pytest.raises(NetworkError, match=f"at lolat_torch_nets.py:{line}; mend its code there"):
        lolat.read("lolat_torch_nets:Wrong", (3, 9, 9))


def _raises(m: Any, x: Any) -> Any:
    raise KeyError("missing")


class Two(nn.Module):
    def forward(self, image: Any, text: Any, scale: float = 1.0) -> Any:
        return scale * image.mean() + text.mean()


@pytest.mark.parametrize(
    ("network", "size", "code"),
    [
        (Does(lambda m, x: x[x > 0]), 8, "data-dependent"),
        (Does(lambda m, x: x if x.sum() > 0 else -x), 8, "data-dependent"),
        (Does(_raises), 8, "network"),
        (Does(lambda m, x: torch.zeros(3)), 8, "network"),
        (torch.zeros(3), None, "network"),
        (nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), (3, 4, 4), "network"),
        (nn.Sequential(nn.Conv2d(3, 4, 3)), None, "input-size"),
        (nn.Conv2d(3, 4, 3), (3, 2**31, 2**31), "input-size"),
        (Two(), 8, "input-size"),
        (nn.Linear(5, 3), [(5,), (0,)], "input"),
    ],
)
def test_what_cannot_be_read(network: Any, size: Any, code: str) -> None:
    with pytest.raises(lolat.InputError) as caught:
        lolat.read(network, size)
    assert caught.value.code == code
    assert str(caught.value).isprintable()  # so it is one line
    assert "parts" not in str(caught.value)  # none of these has any


BUNDLED = {
    ("timm:resnet0", None): "no network 'timm:resnet0'; did you mean timm:resnet",
    ("timm:ResNet50", None): "timm:ResNet50 is not bundled (did you mean timm:resnet50?); ",
    ("timm:resnet50", 288): "timm:resnet50 is bundled at 3x224x224 alone; ",
}


@pytest.mark.parametrize("package", ["torch", "torchvision"])
def test_without_pytorch(package: str) -> None:
    if find_spec("timm") is None:  # which knows the names of its networks
        pytest.skip("could not import 'timm'")
    code = (
        f"import sys; sys.modules[{package!r}] = None\nimport lolat\n"
        f"from lolat.errors import LolatError\nfor asked in {[*BUNDLED]!r}:\n"
        "    try: lolat.read(*asked)\n    except LolatError as e: print(e)"
    )
    end = "[torch]'" if package == "torch" else "pip install torchvision"
    for said, message in zip(BUNDLED.values(), python(code).stdout.splitlines(), strict=True):
        assert message.startswith(said)
        assert message.endswith("?" if "no network" in said else end)


def test_beside_tensorflow_triton_is_not_imported(tmp_path: Path) -> None:
    """The real one ends the process there, and comes with PyTorch's CUDA build alone."""
    clash = "import os, sys\nif 'tensorflow' in sys.modules: os._exit(9)\n"
    (tmp_path / "triton.py").write_text(clash)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport tensorflow, lolat\n"
        "from torch import nn\nlolat.read(nn.Linear(8, 8), (8,))\nimport torch._dynamo\nprint('read')"
    )
    ended = python(code)
    assert (ended.returncode, ended.stdout.strip()) == (0, "read"), ended.stderr[-500:]


class Unread(nn.Module):
    """One of three layers is read, and a product of two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(3))
        self.u, self.v = (nn.Parameter(torch.zeros(64, 64)) for _ in range(2))

    def forward(self, x: Any) -> Any:
        return self.layers[0](x) @ (self.u @ self.v)


class Decoder(nn.Module):
    """A layer whose second attention has nothing to look at, and that may be computed again in training."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = nn.Linear(64, 64), nn.Linear(64, 64)
        self.gradient_checkpointing = False

    def forward(self, x: Any, other: Any = None) -> Any:
        if self.gradient_checkpointing and self.training:
            raise NotImplementedError
        x = nn.functional.dropout(self.own(x), 0.1 if self.training else 0.0)
        return x if other is None else x + self.cross(other)


class Casting(nn.Linear):
    def forward(self, x: Any) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return super().forward(x)


def _dropping() -> Any:
    """As one asks for several answers of one network (Monte Carlo dropout)."""
    network = nn.Sequential(nn.Linear(8, 8), nn.Dropout()).eval()
    network[1].train()
    return network


def _compiled_in_place() -> Any:
    network = nn.Sequential(nn.Linear(8, 8))
    network.compile()
    return network


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Unread, f"{2 * 64 * 64:,} of its {5 * 64 * 64:,} parameters are the weights of no operation"),
        (_dropping, "1 module in training mode inside one in evaluation mode, such as Dropout"),
        (Decoder, "4,160 of its 8,320 parameters are the weights of no operation"),
        pytest.param(
            lambda: Casting(8, 8), "torch.autocast of CUDA",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="it runs there"),
        ),
        (lambda: torch.compile(nn.Sequential(nn.Linear(8, 8))), "--launch compiled"),
        (_compiled_in_place, "torch.compile"),
        (lambda: nn.Sequential(nn.Linear(8, 8), Does(lambda _, x: x.half()), nn.Linear(8, 8).half()),
         "float16 and float32"),
    ],
)  # fmt: skip
def test_what_the_reading_leaves_out_is_told(make: Any, said: str) -> None:
    network = make()
    width = next(network.parameters()).shape[-1]
    graph = lolat.read((network, torch.zeros(1, width)))
    assert sum(said in remark for remark in graph.warnings) == 1
    plain = nn.Sequential(nn.Linear(8, 8), nn.Dropout())
    for mode in (True, False):
        assert not lolat.read((plain.train(mode), torch.zeros(1, 8))).warnings


def _sparse() -> nn.Module:
    network = nn.Sequential(nn.Linear(8, 8))
    network[0].weight = nn.Parameter(torch.eye(8).to_sparse(), requires_grad=False)
    return network


@pytest.mark.parametrize(("steps", "causal"), [(512, True), (2048, True), (2048, False)])
def test_causal_attention_is_told_where_it_takes_less_time(steps: int, causal: bool) -> None:
    """On a CPU of two threads: as long as a full one of 512 steps, 0.64 of one of 2,048."""
    attention = nn.functional.scaled_dot_product_attention
    network = Does(lambda _, x: attention(x, x, x, is_causal=causal))
    said = lolat.read((network, torch.zeros(1, 2, steps, 64))).warnings
    assert any("causal attention of 2,048 steps" in w for w in said) == (causal and steps > 512)


def test_other_quantized_layers_are_refused_by_name() -> None:
    """A float network with the operations that a quantizer wants is read."""
    recurrent = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.LSTM(3, 4)), {nn.LSTM})
    with pytest.raises(NetworkError, match=r"^0, a LSTM of torch, is quantized.*network in float"):
        lolat.read((recurrent, torch.zeros(1, 5, 3)))
    ready = Does(lambda m, x: m.sum.add(m.layer(x), x))
    ready.layer, ready.sum = nn.Linear(8, 8), torch.ao.nn.quantized.FloatFunctional()
    assert lolat.load("v100-fp32").cost((ready, torch.zeros(1, 8)), 4).options


@pytest.mark.skipif(find_spec("torchvision") is None, reason="could not import 'torchvision'")
def test_a_quantized_name_of_torchvision_is_refused() -> None:
    with pytest.raises(NetworkError, match="expected torchvision:resnet50,"):
        lolat.read("torchvision:quantized_resnet50")


def test_the_axis_that_is_the_batch_is_told() -> None:
    """A graph of 27 nodes: with a batch of 1 it is read as one node."""
    several, one = (lolat.read((nn.Linear(8, 4), torch.zeros(n, 8))) for n in (27, 1))
    assert sum("first axis of the example, of 27, is the batch" in w for w in several.warnings) == 1
    assert not one.warnings


TOWERS = [nn.Linear(8, 4), nn.Linear(8, 4)]
LAYER = TOWERS[0]


def _kept(module: Any, x: Any) -> Any:
    module.side = TOWERS[1](x)
    return LAYER(x)


def _measured(module: Any, x: Any) -> Any:
    y = LAYER(x)
    module.side = y[:, :, None] @ y[:, None]
    return y


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (lambda _, x: TOWERS[0](x) @ TOWERS[1](x).T, "a batch of 16 has "),
        (lambda _, x: torch.stack([LAYER(one) for one in x]), "a batch of 16 has "),
        (lambda _, x: LAYER(x[:1]), "has 32 MACs in 1 layers, not 512"),
        (lambda _, x: LAYER(x.view(1, 8)), "does not take a batch of 16"),
        (_kept, "depends on 1 layer, which eager PyTorch runs all the same"),
        (_measured, "depends on 1 operation, which eager PyTorch runs all the same"),
        (lambda _, x: LAYER(x), ""),
    ],
)
def test_a_forward_that_is_not_of_samples_is_told(forward: Any, said: str) -> None:
    graph = lolat.read((Does(forward), torch.zeros(1, 8)))
    assert [said in remark for remark in graph.warnings] == [True] * bool(said)


class OnDevice(nn.Module):
    """A network that is put on a device, as code for one GPU does it."""

    def __init__(self, device: str, number: Any) -> None:
        super().__init__()
        self.layer, self.device, self.number = nn.Linear(8, 8, device=device), device, number

    def forward(self, x: Any) -> Any:
        steps = torch.arange(8, device=self.device) + torch.ones(1).to(self.number)
        x = x.to(torch.device(self.device), torch.float32)
        return (
            self.layer(x + steps) if self.device == "cpu" else self.layer(x.cuda() + steps.cuda(0))
        )


def _without_driver(_: Any, x: Any) -> Any:
    """What PyTorch's CUDA build says where there is no GPU; its CPU build has other words."""
    raise RuntimeError("Found no NVIDIA driver on your system. Please check that you have one")


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is built there")
def test_code_that_names_a_gpu_is_read_as_on_the_cpu() -> None:
    def read(device: str, number: Any) -> Any:
        network = without_weights(lambda: OnDevice(device, number).to(device))
        return lolat.read((network, torch.zeros(1, 8)))

    assert read("cuda", 0) == read("cpu", "cpu")
    for forward in (lambda _, x: LAYER(x) * torch.cuda.current_device(), _without_driver):
        refused((Does(forward), torch.zeros(1, 8)), "x.device")


def test_the_nodes_of_a_graph_are_a_batch_unless_there_is_an_axis_in_front() -> None:
    """Six nodes of 8 features, with a matrix of edges, or 9 edges by their ends."""
    along, nodes, matrix = Does(lambda _, x, a: a @ LAYER(x)), torch.zeros(6, 8), torch.zeros(6, 6)
    ends = Does(lambda _, x, e: torch.zeros(6, 4).index_add(0, e[1], LAYER(x).relu()[e[0]]))
    refused((along, (nodes, matrix)), "cannot be read")
    assert total(lolat.read((along, (nodes[None], matrix[None])))).flops == 6 * 8 * 4 + 6 * 6 * 4
    told = lolat.read((ends, (nodes, torch.zeros(2, 9, dtype=torch.int64)))).warnings
    assert any("first axis of the example, of 6, is the batch" in w for w in told)
    assert any("batch size 1 only" in w for w in told)


def test_a_batch_of_several_is_of_the_inputs_that_the_module_takes() -> None:
    """Indices, and steps in front of the batch."""
    steps_first = Does(lambda m, x: m.lstm(x)[0])
    steps_first.lstm = nn.LSTM(8, 4)
    for network in (nn.Sequential(nn.Embedding(50, 8), LAYER), steps_first):
        remarks = lolat.read(network, (7,) if network is not steps_first else (7, 8)).warnings
        assert not [w for w in remarks if "batch of 16" in w]


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (nn.Sequential(nn.LazyLinear(4)), r"0\.weight has no size before the first call"),
        (torch.jit.script(nn.Sequential(nn.Linear(8, 4))), "TorchScript is not read"),
        (_sparse(), r"0\.weight is sparse.*expected dense"),
        (Unread, r"a class, no network; call it: Unread\(\)"),
        ((nn.ReLU(), nn.ReLU()), "or a list of several networks"),
        ((LAYER.forward, torch.zeros(1, 8)), r"Linear\.forward is a method, no module; expected"),
    ],
)
def test_modules_without_sizes_code_or_dense_weights_are_refused(network: Any, said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        lolat.read(network if isinstance(network, type | tuple) else (network, torch.zeros(1, 8)))


def test_an_attention_whose_mask_is_code_is_refused_in_words() -> None:
    """flex_attention is an operation on a function, for which PyTorch's error names LoLat's tracer."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")

    def attends(m: Any, x: Any) -> Any:
        q = m.project(x)[:, None]
        return flex.flex_attention(q, q, q)

    network = Does(attends, project=nn.Linear(16, 16))
    with pytest.raises(NetworkError, match=r"calls flex_attention .* scaled_dot_product") as error:
        lolat.read((network, torch.zeros(1, 128, 16)))
    assert "Tracer" not in str(error.value)
    assert "input_size" not in str(error.value)


TABLE = nn.Embedding(50, 8)
ANY_LENGTH: dict[str, Any] = {
    "plain": lambda x, steps: TABLE(steps),
    "of each sample": lambda x, steps: TABLE(steps[None].expand(len(x), -1)),
    "shifted": lambda x, steps: TABLE(steps + 2),
    "indexed": lambda x, steps: TABLE.weight[steps],
    "selected": lambda x, steps: TABLE.weight.index_select(0, steps),
    "limited": lambda x, steps: TABLE(steps.clamp(max=49)),
    "in place": lambda x, steps: TABLE(steps.clone().remainder_(50)),
    "backward": lambda x, steps: TABLE(49 - steps.flip(0) // 2),
}


@pytest.mark.parametrize("length", [48, 50, 51])
@pytest.mark.parametrize("name", ANY_LENGTH)
def test_positions_behind_a_table_are_refused_where_pytorch_raises(name: str, length: int) -> None:
    """The module has no sizes that differ: a table of 50 rows gives any number of them."""

    def forward(_: Any, x: Any) -> Any:
        return LAYER(x + ANY_LENGTH[name](x, torch.arange(x.shape[1])))

    network, x = Does(forward), torch.zeros(1, length, 8)
    try:
        network(x)
    except IndexError:
        refused((network, x), "of a table of 50 rows", "sequence_length")
    else:
        lolat.read((network, x))


@pytest.mark.parametrize(
    "size", [None, 8, [(3, 8, 8)], {"input_size": 8, "sequence_length": 5}], ids=str
)
def test_a_network_of_two_inputs_names_them(size: Any) -> None:
    refused(Two(), "takes 2 inputs: image, text;", "input_size=[", size=size)


def test_a_traced_module_is_torchscript() -> None:
    refused(
        torch.jit.trace(nn.Linear(3, 3), torch.zeros(1, 3)), "TorchScript is not read", size=[(3,)]
    )


@pytest.mark.parametrize(
    "make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.zeros(1, 3))]
)
def test_a_part_in_torchscript_is_refused_by_its_name(make: Any) -> None:
    network = Does(lambda m, x: m.inner(x), inner=make(nn.Linear(3, 3)))
    refused(network, "TorchScript is not read (its module 'inner')", size=[(3,)])


@pytest.mark.parametrize("size", [[(32,)], [(3, 32, 32)]])
def test_two_images_are_proposed_as_two_images(size: Any) -> None:
    class TwoImages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, left: Any, right: Any) -> Any:
            return self.conv(left) - self.conv(right)

    network = TwoImages()
    with pytest.raises(NetworkError) as error:
        lolat.read(network, size[0])
    assert "(torch.zeros(1, 3, 32, 32), torch.zeros(1, 3, 32, 32))" in error.value.message
    shapes = error.value.message.partition("input_size=")[2]
    assert lolat.read(network, eval(shapes)).input_sizes == [(3, 32, 32)] * 2


@pytest.mark.parametrize("quantized", [True, False])
def test_quantized_weights_are_not_advised_to_be_merged(quantized: bool) -> None:
    """A network is quantized to keep its weights so."""
    dtype = torch.int8 if quantized else torch.float64
    network = Does(lambda m, x: nn.functional.linear(x, m.w.to(x.dtype)))
    network.register_buffer("w", torch.zeros(8, 8, dtype=dtype))
    said = " ".join(lolat.read((network, torch.zeros(1, 8))).warnings)
    assert "anew in each call" in said
    assert ("can be merged" in said) != quantized


def test_shapes_in_the_place_of_tensors_are_refused() -> None:
    refused((Two(), [(3, 8, 8), (5,)]), "[(3, 8, 8), (5,)]; expected tensors")
    read = lolat.read(Two(), [(3, 8, 8), (5,)])
    assert read.input_sizes == [(3, 8, 8), (5,)]


def test_positions_for_another_size_name_the_size_that_fits() -> None:
    """14 x 14 patches of 16 pixels: 196 positions, of images of 224."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.positions = (
                nn.Conv2d(3, 8, 16, 16),
                nn.Parameter(torch.zeros(1, 196, 8)),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.patch(x).flatten(2).transpose(1, 2) + self.positions

    with pytest.raises(NetworkError, match="try input_size 224"):
        lolat.read(Patches(), 512)
    assert Patches()(torch.zeros(1, 3, 224, 224)).shape == (1, 196, 8)


def test_a_state_dict_is_no_network() -> None:
    with pytest.raises(
        NetworkError, match="a state_dict holds weights, not layers: give the module"
    ):
        lolat.predict(nn.Linear(3, 4).state_dict(), on="rtx-4090")


def test_tokens_are_proposed_beside_an_image() -> None:
    class ImageAndText(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.conv = nn.Embedding(9, 4), nn.Conv2d(3, 4, 3)

        def forward(self, image: Any, input_ids: Any) -> Any:
            return self.conv(image).mean((2, 3)) + self.table(input_ids).mean(1)

    with pytest.raises(NetworkError) as error:
        lolat.read(ImageAndText(), 32)
    proposed = "(torch.zeros(1, 3, 32, 32), torch.zeros(1, 16, dtype=torch.long))"
    assert proposed in error.value.message
    lolat.read((ImageAndText(), eval(proposed)))
