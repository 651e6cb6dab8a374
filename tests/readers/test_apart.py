"""Networks' files read in a process of their own, as the command line does, and files that are hostile."""

from __future__ import annotations

import json
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper

import lolat
from lolat.cli import main as command_line
from lolat.errors import InputError, NetworkError
from lolat.io.apart import FILES_APART
from lolat.readers import apart
from lolat.readers.apart import read_apart


def network(*nodes: object, functions: tuple[object, ...] = (), size: int = 8) -> bytes:
    """An ONNX file of nodes from x to y."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3, size, size]) for n in "xy"]
    graph = helper.make_graph(list(nodes), "g", ends[:1], ends[1:])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    made = helper.make_model(graph, functions=functions, opset_imports=imports)
    content: bytes = made.SerializeToString()
    return content


def relu(path: Path) -> Path:
    path.write_bytes(network(helper.make_node("Relu", ["x"], ["y"])))
    return path


def test_a_file_is_read_as_in_this_process(tmp_path: Path) -> None:
    path = str(relu(tmp_path / "n.onnx"))
    assert read_apart(path, ()) == lolat.read(path)


def test_the_command_line_reads_files_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr(apart, "read_apart", lambda path, size: asked.append((path, size)))
    path = str(relu(tmp_path / "n.onnx"))
    monkeypatch.setenv("LOLAT_DEBUG", "")
    with pytest.raises(SystemExit):
        command_line.main(["predict", "epyc-2t", path, "--input-size", "8"])
    assert asked == [(path, (8,))]
    assert not FILES_APART.get()  # as it was
    lolat.read(path)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("LOLAT_READ_S", "0.0001", r"no answer within 0\.0001 s; .*LOLAT_READ_S"),
        ("LOLAT_READ_GIB", "0.000001", r"more than 1e-06 GiB of memory|LOLAT_READ_GIB"),
    ],
)
def test_limits_of_time_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(NetworkError, match=said) as caught:
        read_apart(str(relu(tmp_path / "n.onnx")), ())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "much", "1e99"])
def test_a_limit_that_is_none(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOLAT_READ_S", value)
    with pytest.raises(InputError, match="expected a number above 0, such as 60"):
        read_apart("n.onnx", ())


def test_a_large_configuration_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "n.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", b" " * 100 * 2**20)
    with pytest.raises(NetworkError, match="a zip bomb"):
        read_apart(str(path), ())


def calling(depth: int, width: int, last: str = "Relu") -> bytes:
    """Functions that each call the next `width` times, `depth` of them."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for level in range(depth):
        op, domain = (
            (last, "own" if last != "Relu" else "") if not level else (f"f{level - 1}", "own")
        )
        names = ["a", *(f"t{i}" for i in range(width - 1)), "b"]
        nodes = [helper.make_node(op, [x], [y], domain=domain) for x, y in pairwise(names)]
        functions.append(helper.make_function("own", f"f{level}", ["a"], ["b"], nodes, imports))
    call = helper.make_node(f"f{depth - 1}", ["x"], ["y"], domain="own")
    return network(call, functions=tuple(functions))


@pytest.mark.parametrize(
    ("depth", "width", "last"), [(40, 10, "Relu"), (7, 10, "Relu"), (3, 1, "f2"), (1500, 2, "Relu")]
)
def test_functions_that_grow_without_end(tmp_path: Path, depth: int, width: int, last: str) -> None:
    path = tmp_path / "n.onnx"
    path.write_bytes(calling(depth, width, last))
    with pytest.raises(NetworkError, match="more than 1,000,000 operations come of it"):
        lolat.read(path)


def test_functions_in_each_other(tmp_path: Path) -> None:
    path = tmp_path / "n.onnx"
    path.write_bytes(calling(3, 5))
    assert len(lolat.read(path).operations) == 5**3


CONV = {
    "kernel": [3, 3], "strides": [1, 1], "in_channels": 3, "out_channels": 4, "groups": 1, "bias": True,
}  # fmt: skip


def written(tmp_path: Path, attributes: dict[str, object], *shapes: list[int]) -> str:
    """What `lolat read` would write of one convolution, changed."""
    tensors = [[shape, True, "float32"] for shape in shapes or ([1, 8, 8, 3], [1, 8, 8, 4])]
    operation = {
        "name": "c", "kind": "conv", "inputs": [0], "outputs": [1], "attributes": {**CONV, **attributes},
    }  # fmt: skip
    path = tmp_path / "n.json"
    path.write_text(
        json.dumps(
            {
                "schema": "lolat-network", "version": 1, "name": "n", "tensors": tensors,
                "operations": [operation], "inputs": [0], "outputs": [1],
            }
        )
    )  # fmt: skip
    return str(path)


def test_what_lolat_wrote_is_read(tmp_path: Path) -> None:
    assert lolat.read(written(tmp_path, {})).operations[0].attributes["kernel"] == (3, 3)


@pytest.mark.parametrize(
    ("attributes", "shapes", "said"),
    [
        ({"strides": ["1", 1]}, (), r"`strides\[0\]` is '1'; expected a whole number"),
        ({"out_channels": {}}, (), "`out_channels` is an object; expected a whole number"),
        ({"groups": 0}, (), "`groups` is 0; expected a whole number of 1 or more"),
        ({"in_channels": 2**62}, (), "`in_channels` is 4611686018427387904"),
        ({"kernel": [3, float(2**60)]}, (), r"`kernel\[1\]` is 1152921504606846976|1.15"),
        ({"bias": "yes"}, (), "`bias` is 'yes'; expected true or false"),
        ({"groups": 2}, (), "2 groups of 3 and 4 channels"),
        ({"kernel": [3]}, (), "a kernel of 1 sizes, reads 1x8x8x3 and writes 1x8x8x4"),
        ({"strides": [1]}, (), "a kernel of 2 sizes and strides of 1"),
        ({}, ([1, 8, 8, 3], [1, 8, 0, 4]), "writes a tensor of 1x8x0x4; expected sizes of at least 1"),
        ({}, ([3], [1, 8, 8, 4]), "a kernel of 2 sizes, reads 3"),
        ({"axis": 9}, (), "works along axis 9 of tensors of 4 sizes"),
        ({"permutation": [0, 0, 1, 2]}, (), r"puts the axes of 1x8x8x3 in the order \(0, 0, 1, 2\)"),
    ],
)  # fmt: skip
def test_operations_that_cannot_be(
    tmp_path: Path, attributes: dict[str, object], shapes: tuple[list[int], ...], said: str
) -> None:
    with pytest.raises(NetworkError, match=said) as caught:
        lolat.read(written(tmp_path, attributes, *shapes))
    assert "\n" not in str(caught.value)


def test_sizes_of_nothing_in_an_onnx_file(tmp_path: Path) -> None:
    path = tmp_path / "n.onnx"
    kernel = helper.make_tensor("w", TensorProto.FLOAT, [0, 3, 3, 3], [])
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
        for n, shape in (("x", [1, 3, 8, 8]), ("y", None))
    ]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [kernel]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path.write_bytes(model.SerializeToString())
    with pytest.raises(NetworkError):
        lolat.read(path)
