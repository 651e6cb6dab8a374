"""What cannot be read: one line that names what, and where in the user's code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lolat
from tests.processes import python
from tests.readers.counting import refused
from tests.readers.torch_networks import Does, kinds

HERE = Path(__file__).parents[2]

MODULE = """
import torch
from torch import nn

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

def pair():
    return Net(), torch.zeros(4, 3, 9, 9)

def tensor():
    return torch.zeros(3)

def script():
    return torch.jit.script(nn.ReLU())
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A working directory with a module."""
    (tmp_path / "lolat_torch_nets.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("lolat_torch_nets", None)


@pytest.mark.parametrize("name", ["made", "Net", "pair"])
def test_a_module_from_a_file_of_the_users(here: Path, name: str, capfd: Any) -> None:
    size = None if name == "pair" else 9
    graph = lolat.read(f"lolat_torch_nets:{name}", size)
    assert kinds(graph)[0] == "conv"
    assert graph.name == name
    assert graph.shapes(graph.inputs) == [(1, 3, 9, 9)]
    assert capfd.readouterr().out == ""  # what the network prints is not ours


def test_an_error_is_all_that_is_said(here: Path, capfd: Any) -> None:
    lolat.read("lolat_torch_nets:Net", 9)
    assert capfd.readouterr() == ("", "calling\n")
    line = MODULE.splitlines().index("        if y.sum() > 0:  # LINE") + 1
    refused(
        "lolat_torch_nets:Chooses", "'Chooses' cannot be read at input_size 9",
        "depends on the values of a tensor", f"at lolat_torch_nets.py:{line};", size=9,
    )  # fmt: skip
    assert capfd.readouterr() == ("", "")


def _raises(m: Any, x: Any) -> Any:
    raise KeyError("missing")


def _branches(m: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda y: y.relu(), lambda y: y * 2, (x,))


class Picks(nn.Module):
    def forward(self, x: Any) -> Any:
        return x[x > 0]


HERE_LINE = "test_torch_refusals.py:"


@pytest.mark.parametrize(
    ("network", "size", "parts"),
    [
        (Does(_branches), 8, ["chooses what it computes while it runs (cond", "one for each branch"]),
        (nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), (3, 4, 4),
         ["cannot be read at input_size 3,4,4: ", "48", "12", "give an input size that fits"]),
        (nn.Sequential(nn.Conv2d(3, 4, 3)), None,
         ["the input size of 'Sequential' is not known; give input_size"]),
        (Does(_raises), 8, ["missing", HERE_LINE]),
        (Picks(), 8, ["depends on the values of a tensor (as that of x[x > 0] does)", HERE_LINE]),
        (Does(lambda m, x: torch.zeros(3)), 8, ["returns no tensor that depends"]),
        (nn.Linear(5, 3), [(5,), (0,)], ["expected a positive whole number"]),
        ("lolat_torch_nets:tensor", None, ["a torch.Tensor, not a network"]),
        ("lolat_torch_nets:script", 8, ["TorchScript"]),
    ],
)  # fmt: skip
def test_what_cannot_be_read(here: Path, network: Any, size: Any, parts: list[str]) -> None:
    refused(network, *parts, size=size)


def test_without_pytorch_there_is_one_line(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\nimport lolat\n"
        "from lolat.errors import MissingPackageError\n"
        "try:\n    lolat.read('timm:resnet0')\nexcept MissingPackageError as e:\n    print(e)"
    )
    assert "[torch]'" in python(code).stdout


def test_an_old_pytorch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.1.0+cpu")
    refused(nn.Linear(2, 2), "PyTorch 2.1.0+cpu is too old")


def test_the_fallback_traces_what_export_cannot() -> None:
    """An export that fails is tried again on what FX makes of the module."""

    class Shy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Any) -> Any:
            assert not torch.compiler.is_compiling(), "not while exporting"
            return {"y": self.conv(x).relu()}

    graph = lolat.read(Shy(), 8)
    assert kinds(graph) == ["conv", "relu"]
    assert graph.operations[0].full_name == "conv"
