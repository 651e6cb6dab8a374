"""`.pt2` files: the counts of the module, and nothing of the file that could run is run."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lolat
from lolat.readers.torch.file import is_formula
from tests.readers import torch_networks as nets
from tests.readers.counting import refused
from tests.readers.torch_networks import graph_of, total


def saved(path: Path, model: nn.Module, *shape: int, dynamic: Any = None) -> str:
    """A file of torch.export.save."""
    program = torch.export.export(
        model.eval(), (torch.zeros(shape),), dynamic_shapes=dynamic, strict=False
    )
    torch.export.save(program, path)
    return str(path)


@pytest.mark.parametrize(
    ("make", "size", "batch"),
    [(nets.efficientnet, 32, 1), (nets.vit, 32, 4), (nets.shufflenet, 32, 4)],
)
def test_a_file_counts_as_the_module(
    tmp_path: Path, make: Callable[[], nn.Module], size: int, batch: int
) -> None:
    model = make()
    expected = graph_of(model, (3, size, size))
    graph = lolat.read(saved(tmp_path / "a.pt2", model, batch, 3, size, size))
    assert graph.name == "a"
    for batch_size in (1, 3):
        assert total(graph, batch_size) == total(expected, batch_size)
    assert graph.shapes(graph.inputs) == [(1, 3, size, size)]
    assert [o.full_name for o in graph.operations] == [o.full_name for o in expected.operations]


def test_open_sizes(tmp_path: Path) -> None:
    model = nets.mobilenet()
    batch, side = torch.export.Dim("batch"), torch.export.Dim("side", min=4, max=64)
    path = saved(tmp_path / "a.pt2", model, 2, 3, 32, 32, dynamic=({0: batch},))
    expected = graph_of(model, (3, 32, 32))
    assert total(lolat.read(path), 5) == total(expected, 5)
    assert total(lolat.read(path, 32)) == total(lolat.read(path, (3, 32, 32))) == total(expected)
    both = saved(
        tmp_path / "b.pt2", nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU()), 2, 3, 32, 32,
        dynamic=({0: batch, 2: side},),
    )  # fmt: skip
    refused(both, "has an open size (3x?x32); give it with --input-size")
    graph = lolat.read(both, (3, 20, 32))
    assert graph.shapes(graph.outputs) == [(1, 4, 10, 16)]
    closed = saved(tmp_path / "c.pt2", nn.Conv2d(3, 4, 3), 1, 3, 8, 8)
    for size in (9, (3, 9, 9), (3, 8)):
        refused(closed, "was exported for 3x8x8; leave it out, or export the network", size=size)


def test_an_exported_program_in_memory() -> None:
    program = torch.export.export(nn.Conv2d(3, 4, 3), (torch.zeros(2, 3, 8, 8),))
    assert total(lolat.read(program), 2).acts == 2 * 4 * 36
    decomposed = torch.export.export(nets.convnext().eval(), (torch.zeros(1, 3, 32, 32),))
    core = lolat.read(decomposed.run_decompositions())
    whole = graph_of(nets.convnext, (3, 32, 32))
    assert total(core).flops == total(whole).flops
    assert total(core).weights == total(whole).weights


# ---- what is refused ---------------------------------------------------------------------------------


class Bomb:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_refused_by_its_name_and_by_its_content(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    for name in ("net.pt", "net.pth", "net.PKL", "net.ckpt", "net.bin"):
        (tmp_path / name).write_bytes(pickle.dumps(Bomb(trap)))
        for path in (str(tmp_path / name), tmp_path / name, name):
            refused(path, "is a pickle, and opening a pickle runs", "module:callable", ".pt2")
    path = tmp_path / "net.pt2"
    path.write_bytes(pickle.dumps(Bomb(trap)))
    refused(path, "is a pickle, which LoLat never opens")
    torch.save(nn.Linear(2, 2), path)
    refused(path, "is an archive of torch.save or TorchScript with a pickle in it")
    assert not trap.exists()


def test_what_is_no_file_of_export(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    refused(path, "no file")
    path.write_text("weights")
    refused(path, "no .pt2 file, or a damaged one")
    for records, part in (
        ({"readme": "hello"}, "without an exported program"),
        ({"a/models/model.json": "{"}, "is damaged"),
        ({"a/models/one.json": "{}", "a/models/two.json": "{}"}, "holds 2 networks (one, two)"),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in records.items():
                archive.writestr(name, text)
        refused(path, part)


def changed(path: str, change: Callable[[dict[str, Any]], None], extra: bytes | None = None) -> str:
    """The file with its document changed, and all pickles in it replaced by `extra`."""
    with zipfile.ZipFile(path) as archive:
        records = {n: archive.read(n) for n in archive.namelist()}
    names = ("models/model.json", "serialized_exported_program.json")  # now, and before PyTorch 2.8
    (name,) = (n for n in records if n.endswith(names))
    document = json.loads(records[name])
    change(document)
    records[name] = json.dumps(document).encode()
    other = path.replace(".pt2", "_changed.pt2")
    with zipfile.ZipFile(other, "w") as archive:
        for record, data in records.items():
            replaced = extra is not None and record.endswith(".pt")
            archive.writestr(record, extra if replaced else data)
    return other


@pytest.fixture
def dynamic(tmp_path: Path) -> str:
    batch = torch.export.Dim("batch")
    return saved(tmp_path / "a.pt2", nn.Conv2d(3, 4, 3), 2, 3, 8, 8, dynamic=({0: batch},))


def _graph(document: dict[str, Any]) -> Any:
    return document["graph_module"]["graph"]


STRIDES = {"name": "weight", "arg": {"as_ints": [1, 1]}, "kind": 2}
NOBODY = {"target": "torch.ops.nobody.knows.default"}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda d: _graph(d)["nodes"][0]["inputs"].append(STRIDES),
         ["(conv2d)", "cannot be (", "write it again"]),
        (lambda d: d["schema_version"].update(major=3),
         ["written by another PyTorch", "version 3 of the file", "torch.export.save"]),
        (lambda d: _graph(d)["tensor_values"].pop("conv2d"), ["cannot be read ("]),
        (lambda d: _graph(d)["nodes"][0].update(NOBODY),
         ["has the operation torch.ops.nobody.knows.default"]),
    ],
)  # fmt: skip
def test_a_document_that_is_not_as_pytorch_writes_it(
    dynamic: str, change: Any, parts: list[str]
) -> None:
    refused(changed(dynamic, change), *parts)


def test_an_operation_that_no_rule_can_read() -> None:
    program = torch.export.export(nn.AvgPool2d(2), (torch.zeros(2, 3, 8, 8),))
    (node,) = (n for n in program.graph.nodes if n.op == "call_function")
    node.args = (node.args[0], "wide")
    refused(program, "(avg_pool2d)", "cannot be read (", "export it again")


@pytest.mark.parametrize("open_batch", [False, True])
@pytest.mark.parametrize(
    ("tensor", "axis", "size", "words"),
    [
        ("conv2d", 3, 60, "(conv2d) of 'a_changed' makes (2, 4, 6, 6), not (2, 4, 6, 60) by"),
        ("p_0_weight", 1, 1, "conv2d (conv2d) of 'a_changed' cannot be ("),
        ("x", 3, 80, "makes (2, 4, 6, 78), not (2, 4, 6, 6)"),
        ("p_2_weight", 1, 5, "linear (linear) of 'a_changed' cannot be ("),
        ("linear", 1, 6, "makes (2, 5), not (2, 6)"),
        ("flatten", 1, 145, "(flatten) of 'a_changed' makes (2, 144), not (2, 145)"),
    ],
)
def test_shapes_that_no_operation_makes(
    open_batch: bool, tensor: str, axis: int, size: int, words: str, tmp_path: Path
) -> None:
    """The counts would be those of a network that cannot be."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))
    batch = {"dynamic": ({0: torch.export.Dim("batch")},)} if open_batch else {}

    def change(document: dict[str, Any]) -> None:
        values = _graph(document)["tensor_values"]
        (name,) = (n for n in values if n == tensor or (tensor == "x" and n == "input"))
        values[name]["sizes"][axis] = {"as_int": size}

    path = saved(tmp_path / "a.pt2", model, 2, 3, 8, 8, **batch)
    assert total(lolat.read(path)).flops in (4 * 36 * 27 + 144 * 5, 2 * (4 * 36 * 27 + 144 * 5))
    refused(changed(path, change), words, "write it again")


def test_example_inputs_and_weights_are_never_unpickled(dynamic: str, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    path = changed(dynamic, lambda document: None, pickle.dumps(Bomb(trap)))
    assert total(lolat.read(path)).acts == 4 * 36
    assert not trap.exists()


def test_a_formula_is_not_evaluated_before_it_is_known_to_be_one(
    dynamic: str, tmp_path: Path
) -> None:
    """PyTorch hands the texts of sizes to sympy, which evaluates them as Python."""
    trap = tmp_path / "sprung"

    def sizes(document: dict[str, Any]) -> None:
        size = _graph(document)["tensor_values"]["conv2d"]["sizes"][0]
        size["as_expr"]["expr_str"] = f"__import__('os').mkdir('{trap}')"

    target, ranges = {"target": "torch.os.system"}, {"eval('1')": {"min_val": 1, "max_val": 2}}
    assert "'__import__" in refused(changed(dynamic, sizes)).replace('"', "'")
    refused(changed(dynamic, lambda d: _graph(d)["nodes"][0].update(target)), "torch.os.system")
    refused(changed(dynamic, lambda d: d.update(range_constraints=ranges)), "eval")
    assert not trap.exists()


FORMULAS = ["s0", "2*s0 + 1", "Symbol('s77', positive=True, integer=True)", "FloorDiv(s1, Integer(2))",
            "Max(1, s0) - u3**2", "Eq(Mod(s0, 4), 0)"]  # fmt: skip
NONE = ["__import__('os')", "s0.__class__", "open('x')", "Symbol('s0').func", "[i for i in s0]",
        "lambda: 0", "eval", "Symbol('__import__(1)')", "(s0)(1)", "f'{s0}'", "1 +", "Max(*s0)", "s0[0]",
        "(x := 1)"]  # fmt: skip


@pytest.mark.parametrize("text", [*FORMULAS, *NONE])
def test_formulas(text: str) -> None:
    assert is_formula(text) == (text in FORMULAS)
