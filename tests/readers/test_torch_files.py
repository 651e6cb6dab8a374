"""`.pt2` files: the counts of the module, and nothing of the file that could run is run."""

from __future__ import annotations

import io
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
from lolat.errors import NetworkError
from lolat.readers.torch.program import is_formula
from tests.readers import torch_networks as nets
from tests.readers.torch_networks import graph_of, total


def saved(path: Path, model: nn.Module, *shape: int, dynamic: Any = None) -> str:
    """A file of torch.export.save."""
    program = torch.export.export(
        model.eval(), (torch.zeros(shape),), dynamic_shapes=dynamic, strict=False
    )
    torch.export.save(program, path)
    return str(path)


def refused(network: Any, size: Any = None) -> str:
    with pytest.raises(NetworkError) as caught:
        lolat.read(network, size)
    message = str(caught.value)
    assert message.isprintable()
    return message


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
    assert "has an open size (3x?x32); give it with --input-size" in refused(both)
    assert lolat.read(both, (3, 20, 32)).shapes([0]) != []
    graph = lolat.read(both, (3, 20, 32))
    assert graph.shapes(graph.outputs) == [(1, 4, 10, 16)]


def test_another_size_than_the_file_is_for(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt2", nn.Conv2d(3, 4, 3), 1, 3, 8, 8)
    for size in (9, (3, 9, 9), (3, 8)):
        message = refused(path, size)
        assert "was exported for 3x8x8; leave it out, or export the network" in message


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


@pytest.mark.parametrize("name", ["net.pt", "net.pth", "net.PKL", "net.ckpt", "net.bin"])
def test_a_pickle_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    trap = tmp_path / "sprung"
    (tmp_path / name).write_bytes(pickle.dumps(Bomb(trap)))
    for path in (str(tmp_path / name), tmp_path / name, name):
        message = refused(path)
        assert "is a pickle, and opening a pickle runs whatever code is in it" in message
        assert "module:callable" in message
        assert ".pt2" in message
    assert not trap.exists()


def test_a_pickle_by_another_name_is_refused_too(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    path = tmp_path / "net.pt2"
    path.write_bytes(pickle.dumps(Bomb(trap)))
    assert "is a pickle, which LoLat never opens" in refused(str(path))
    torch.save(nn.Linear(2, 2), path)
    assert "is an archive of torch.save or TorchScript with a pickle in it" in refused(str(path))
    assert not trap.exists()


def test_what_is_no_file_of_export(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    assert "no file" in refused(str(path))
    path.write_text("weights")
    assert "no .pt2 file, or a damaged one" in refused(str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "hello")
    assert "without an exported program" in refused(str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/models/model.json", "{")
    assert "is damaged" in refused(str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/models/one.json", "{}")
        archive.writestr("a/models/two.json", "{}")
    assert "holds 2 networks (one, two)" in refused(str(path))


def changed(path: str, change: Callable[[dict[str, Any]], None], extra: bytes | None = None) -> str:
    """The file with its document changed, and all pickles in it replaced by `extra`."""
    with zipfile.ZipFile(path) as archive:
        records = {n: archive.read(n) for n in archive.namelist()}
    names = ("models/model.json", "serialized_exported_program.json")  # now, and before PyTorch 2.8
    (name,) = (n for n in records if n.endswith(names))
    document = json.loads(records[name])
    change(document)
    records[name] = json.dumps(document).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for record, data in records.items():
            archive.writestr(
                record, extra if extra is not None and record.endswith(".pt") else data
            )
    other = path.replace(".pt2", "_changed.pt2")
    Path(other).write_bytes(buffer.getvalue())
    return other


@pytest.fixture
def dynamic(tmp_path: Path) -> str:
    batch = torch.export.Dim("batch")
    return saved(tmp_path / "a.pt2", nn.Conv2d(3, 4, 3), 2, 3, 8, 8, dynamic=({0: batch},))


def test_another_version(dynamic: str) -> None:
    def change(document: dict[str, Any]) -> None:
        document["schema_version"]["major"] = 3

    message = refused(changed(dynamic, change))
    assert "was written by another PyTorch" in message
    assert "version 3 of the file" in message
    assert "torch.export.save" in message


def test_a_document_that_lacks_things(dynamic: str) -> None:
    def change(document: dict[str, Any]) -> None:
        del document["graph_module"]["graph"]["tensor_values"]["conv2d"]

    assert "cannot be read (" in refused(changed(dynamic, change))

    def replaced(document: dict[str, Any]) -> None:
        document["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.nobody.knows.default"

    message = refused(changed(dynamic, replaced))
    assert (
        "has the operation torch.ops.nobody.knows.default, which PyTorch does not know" in message
    )


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
        size = document["graph_module"]["graph"]["tensor_values"]["conv2d"]["sizes"][0]
        size["as_expr"]["expr_str"] = f"__import__('os').mkdir('{trap}')"

    def target(document: dict[str, Any]) -> None:
        document["graph_module"]["graph"]["nodes"][0]["target"] = "torch.os.system"

    def ranges(document: dict[str, Any]) -> None:
        document["range_constraints"] = {"eval('1')": {"min_val": 1, "max_val": 2}}

    assert "'__import__" in refused(changed(dynamic, sizes)).replace('"', "'")
    assert "torch.os.system" in refused(changed(dynamic, target))
    assert "eval" in refused(changed(dynamic, ranges))
    assert not trap.exists()


@pytest.mark.parametrize(
    "text",
    ["s0", "2*s0 + 1", "Symbol('s77', positive=True, integer=True)", "FloorDiv(s1, Integer(2))",
     "Max(1, s0) - u3**2", "Eq(Mod(s0, 4), 0)"],
)  # fmt: skip
def test_formulas(text: str) -> None:
    assert is_formula(text)


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "s0.__class__", "open('x')", "Symbol('s0').func", "[i for i in s0]", "lambda: 0",
     "eval", "Symbol('__import__(1)')", "(s0)(1)", "f'{s0}'", "1 +", "Max(*s0)", "s0[0]", "(x := 1)"],
)  # fmt: skip
def test_what_is_no_formula(text: str) -> None:
    assert not is_formula(text)
