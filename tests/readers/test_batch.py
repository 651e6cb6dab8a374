"""Work that does not grow as the batch does, in each framework; what is right follows from the shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lolat
from lolat.errors import InputError
from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.readers import read

ACROSS, KEPT = "grows faster than the batch", "as large for any batch"


def of_torch(name: str) -> Graph:
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = torch.nn.Linear(3000, 128), torch.nn.Linear(3000, 128)

        def forward(self, x: Any) -> Any:
            one, other = self.one(x), self.other(x)
            if name == "scores":  # (batch, batch)
                return one @ other.T
            if name == "attention":  # batch x batch scores
                made = torch.nn.functional.scaled_dot_product_attention
                return made(
                    *(t.view(1, len(x), 4, 32).transpose(1, 2) for t in (one, other, other))
                )
            if name == "covariance":  # (128, 128)
                return (one.T @ other).pow(2).sum()
            return one, other, one.mean()

    return read((Network(), torch.zeros(1, 3000)))


def of_keras(name: str) -> Graph:
    import keras

    x = keras.Input((3000,))
    one, other = keras.layers.Dense(128)(x), keras.layers.Dense(128)(x)
    ops = keras.ops
    made = {
        "scores": lambda: ops.matmul(one, ops.transpose(other)),
        "covariance": lambda: ops.matmul(ops.transpose(one), other),
        "usual": lambda: [one, other, ops.mean(one)],
    }
    return read(keras.Model(x, made[name]()))


def of_onnx(name: str) -> Graph:
    import onnx

    inputs = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3000])]
    weights = [
        onnx.helper.make_tensor(
            f"w{i}", onnx.TensorProto.FLOAT, (3000, 128), bytes(4 * 3000 * 128), raw=True
        )
        for i in range(2)
    ]
    make = onnx.helper.make_node
    nodes = [make("MatMul", ["x", f"w{i}"], [f"y{i}"]) for i in range(2)]
    nodes += {
        "scores": [make("Transpose", ["y1"], ["t"]), make("MatMul", ["y0", "t"], ["out"])],
        "covariance": [make("Transpose", ["y0"], ["t"]), make("MatMul", ["t", "y1"], ["out"])],
        "usual": [make("Add", ["y0", "y1"], ["out"])],
    }[name]
    out = onnx.helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph(nodes, "g", inputs, [out], weights)
    return read(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]))


@pytest.mark.parametrize(
    ("make", "package", "name", "told"),
    [
        (make, package, name, told)
        for make, package, names in (
            (of_torch, "torch", ("scores", "attention", "covariance", "usual")),
            (of_keras, "keras", ("scores", "covariance", "usual")),
            (of_onnx, "onnx", ("scores", "covariance", "usual")),
        )
        for name in names
        for told in [{"covariance": KEPT, "usual": ""}.get(name, ACROSS)]
    ],
)
def test_work_that_does_not_grow_as_the_batch_does(
    make: Any, package: str, name: str, told: str
) -> None:
    pytest.importorskip(package)
    remarks = [w for w in make(name).warnings if "batch size 1 only" in w]
    assert [told in w for w in remarks] == [True] * bool(told), remarks


def test_a_file_made_for_one_batch_size_is_read_once(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    of_three = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 3]) for n in ("x", "out")
    ]
    node = onnx.helper.make_node("Relu", ["x"], ["out"])
    graph = onnx.helper.make_graph([node], "g", of_three[:1], of_three[1:])
    path = tmp_path / "g.onnx"
    onnx.save(onnx.helper.make_model(graph), path)
    assert read(path).warnings == ()


def _shared(package: str, first: int | None, second: int) -> Graph:
    """Products of two inputs, (first, 5, 8) and (second, 7, 8), with weights of 8 x 4, and their sum."""
    if package == "torch":
        import torch

        class Both(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.one, self.other = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)

            def forward(self, x: Any, y: Any) -> Any:
                return self.one(x).sum(1) + self.other(y).sum(1)

        return read((Both(), (torch.zeros(first or 3, 5, 8), torch.zeros(second, 7, 8))))
    if package == "keras":
        import keras

        x, y = (keras.Input(batch_shape=(n, t, 8)) for n, t in ((first, 5), (second, 7)))
        one, other = (keras.ops.sum(keras.layers.Dense(4)(t), 1) for t in (x, y))
        return read(keras.Model([x, y], one + other))
    from tests.readers.onnx_networks import model, node

    nodes = [node("MatMul", f"{n} w{n}", f"d{n}") for n in "xy"]
    nodes += [node("ReduceSum", f"d{n} axis", f"s{n}", keepdims=0) for n in "xy"]
    of = {"x": (first or "batch", 5, 8), "more": {"y": (second, 7, 8)}, "axis": [1]}
    return read(
        model([*nodes, node("Add", "sx sy", "y0")], outputs="y0", wx=(8, 4), wy=(8, 4), **of)
    )


@pytest.mark.parametrize("package", ["torch", "keras", "onnx"])
@pytest.mark.parametrize(("first", "second"), [(None, 1), (3, 1), (1, 1), (3, 3)])
def test_an_input_of_one_beside_a_batch_stays_one(
    package: str, first: int | None, second: int
) -> None:
    """A context or a step that all samples share; where all inputs are of one, all grow. By hand."""
    pytest.importorskip(package)
    graph = _shared(package, first, second)
    grows = first == second
    assert [graph.tensors[i].batched for i in graph.inputs] == [True, grows]
    for n in (1, 6):
        assert count(graph).total(n).flops == (n * 5 + (n if grows else 1) * 7) * 8 * 4
    assert any("as large for any batch" in w for w in graph.warnings) is False


def test_tensors_without_elements_cost_nothing() -> None:
    """The part of a rotary embedding that is not rotated, registers of which there are none. By hand."""
    torch = pytest.importorskip("torch")
    from tests.readers.torch_networks import Does, kinds

    def forward(m: Any, x: Any) -> Any:
        turned, rest = m.layer(x).split([32, 0], -1)
        return torch.cat([turned.tanh(), rest.relu() * 2], -1)

    graph = read((Does(forward, layer=torch.nn.Linear(16, 32)), torch.zeros(1, 10, 16)))
    assert kinds(graph) == ["dense", "split", "tanh", "concatenate"]
    totals = count(graph).total(3)
    assert (totals.flops, totals.ops) == (3 * 10 * 16 * 32, 4)
    assert totals.traffic == 3 * 10 * (16 + 7 * 32)


SIZES = {
    "fewer": lambda x: x.shape[0] < 4, "exactly": lambda x: x.size(0) != 16,
    "length": lambda x: len(x) <= 6, "elements": lambda x: x.numel() <= 10 * 32 * 5,
    "even": lambda x: x.shape[0] % 2, "least": lambda x: min(x.shape[0], 9) == x.shape[0],
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_a_branch_on_the_batch_size_is_told(name: str) -> None:
    """PyTorch itself runs the second layer with 16 samples, and not with one."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from tests.readers.torch_networks import Does

    def forward(m: Any, x: Any) -> Any:
        x = m.one(x)
        return x if SIZES[name](x) else m.other(x)

    network, macs = Does(forward, one=torch.nn.Linear(32, 32), other=torch.nn.Linear(32, 32)), []
    for samples in (1, 16):
        with FlopCounterMode(display=False) as counter:
            network(torch.zeros(samples, 10, 32))
        macs.append(counter.get_total_flops() // 2)
    *_, told = read((network, torch.zeros(1, 10, 32))).warnings
    assert told.startswith(f"a batch of 16 has {macs[1]:,} MACs in 2 layers, not {16 * macs[0]:,}")
    assert told.endswith("so the answer holds for batch size 1 only")


@pytest.mark.parametrize(
    ("form", "runs"),
    [
        (lambda x: x.tanh(), True),
        (lambda x: x.reshape(1, -1), False),
        (lambda x: x if len(x) < 9 else x[:, :-1], True),
    ],
    ids=["any", "one", "not of 16"],
)
def test_a_batch_that_the_code_does_not_take_is_refused(form: Any, runs: bool) -> None:
    """PyTorch itself runs it with one sample, and raises with two."""
    torch = pytest.importorskip("torch")
    from tests.readers.torch_networks import Does

    network = Does(lambda m, x: m.layer(form(x)), layer=torch.nn.Linear(40, 4))
    network(torch.zeros(1, 40))
    try:
        network(torch.zeros(2, 40))
    except RuntimeError:
        assert not runs
    else:
        assert runs
    graph = read((network, torch.zeros(1, 40)))
    for device in (lolat.load("rtx-4090"), lolat.load("epyc-2t-torch")):
        assert device.predict(graph, "auto").batch_size == 1 or runs
        for ask in (device.predict, device.explain) + (device.cost,) * (
            device.name != "epyc-2t-torch"
        ):
            ask(graph, 1)
            if runs:
                ask(graph, 2)
                continue
            with pytest.raises(InputError, match="does not run at batch_size 2") as refused:
                ask(graph, 2)
            assert refused.value.code == "one-sample"
            with pytest.raises(InputError, match="does not run at batch_size 2"):
                ask(graph, (1, 2))


def test_an_answer_that_holds_for_one_sample_alone_says_so_first() -> None:
    graph = of_torch("covariance")
    graph = type(graph).from_dict(graph.to_dict())  # as a file has it
    for device in ("rtx-4090", "epyc-2t-torch"):
        first, *_ = lolat.load(device).predict(graph, 4).warnings
        assert first.endswith("so the answer holds for batch size 1 only")
    first, *_ = lolat.load("rtx-4090").cost(graph, 4).warnings
    assert first.endswith("so the answer holds for batch size 1 only")
