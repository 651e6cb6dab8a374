"""A learned model's answers, compared with the formulas written out plainly in the test."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lolat
from benchmarks import published_figures
from lolat.api import choosing, loading, profile_names, serving
from lolat.api.model import Model
from lolat.api.predicting import exceeded
from lolat.api.sheets import model_of_sheet
from lolat.api.table_rows import Comparison, compare_blocks
from lolat.device.limits import Limits
from lolat.errors import InputError, ModelFileError, arg
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import COLUMNS, FEATURES
from lolat.io.tables import read_table
from tests import synthetic
from tests.cli.commands import Command
from tests.strategies import graphs, models

BREAKPOINT, SLOPE = 6.0, 0.5


def by_hand(**changes: Any) -> dict[str, Any]:
    """A document whose coefficients are those of `synthetic`, with a breakpoint."""
    three = {n: synthetic.TRUE[n] for n in ("acts", "inp", "flops")}
    residuals = [i / 100 for i in range(-50, 50)]
    document = synthetic.document()
    document["domain"]["ratios"]["FLOPs per element"] = [0.2, 2000.0]  # with a head
    document["predictors"] = {
        "two-regime": {
            "coefficients": three | {"call": 0.5},
            "breakpoint_ms": BREAKPOINT,
            "slope": SLOPE,
            "offset_ms": BREAKPOINT * (1 - SLOPE),
            "residuals": residuals,
        },
        "extended": {
            "coefficients": synthetic.TRUE | {"call": synthetic.CALL_MS},
            "residuals": residuals,
        },
    }
    return document | changes


MODEL = Model(by_hand())


def plain(counts: Any) -> Any:
    """Extended, two-regime: as the documentation writes them."""
    linear = 0.5 + sum(synthetic.TRUE[n] * counts[n] for n in ("acts", "inp", "flops"))
    two = np.where(linear >= BREAKPOINT, linear, SLOPE * linear + BREAKPOINT * (1 - SLOPE))
    extended = synthetic.CALL_MS + sum(synthetic.TRUE[n] * counts[n] for n in FEATURES)
    return extended, two


COUNTS = {"acts": 1e6, "inp": 5e5, "flops": 1e8, "traffic": 2e6, "weights": 1e5, "ops": 20}
THREE = {n: COUNTS[n] for n in ("acts", "inp", "flops")}


class TestCounts:
    def test_six_numbers_are_answered_by_the_default(self) -> None:
        found = MODEL.predict_counts(**COUNTS)
        assert type(found) is float
        assert found == pytest.approx(float(plain(COUNTS)[0]), rel=1e-12)
        assert MODEL.predict_counts(*COUNTS.values()) == found

    def test_six_numbers_are_answered_by_the_fit_on_six_where_there_is_one(self) -> None:
        document = by_hand()
        entry = document["predictors"]["extended"]
        six = {"coefficients": dict.fromkeys(FEATURES, 1e-7) | {"call": 1.0}}
        longer = entry["coefficients"] | {"spatial_macs": 1e-6}
        document["predictors"]["extended"] = entry | {"coefficients": longer, "six_counts": six}
        model = Model(document)
        found = model.predict_counts(**COUNTS)
        assert found == pytest.approx(1.0 + 1e-7 * sum(COUNTS.values()), rel=1e-12)

    @pytest.mark.parametrize(("columns", "off"), [(FEATURES, 0.7), (tuple(THREE), 0.4)])
    def test_a_table_of_blocks_has_the_intervals_of_the_formula_that_answers(
        self, tmp_path: Path, columns: tuple[str, ...], off: float
    ) -> None:
        """All held-out errors of a formula are a factor of exp(+-off): so are its intervals."""
        document, points = by_hand(), synthetic.measured()
        predictors = document["predictors"]
        six = {
            "coefficients": predictors["extended"]["coefficients"],
            "residuals": [0.7, -0.7] * 50,
        }
        predictors["extended"] |= {"six_counts": six, "residuals": [0.1, -0.1] * 50}
        predictors["two-regime"] |= {"residuals": [0.4, -0.4] * 50}
        path = tmp_path / "blocks.csv"
        path.write_text(synthetic.table(points[:3], ("name", "batch_size", "latency_ms", *columns)))
        found = compare_blocks(Model(document), Comparison(str(path)))
        for row in found:
            low, high = row.interval_ms or (0.0, 0.0)
            assert math.log(high / row.predicted_ms) == pytest.approx(off)
            assert math.log(row.predicted_ms / low) == pytest.approx(off)

    def test_three_numbers_are_answered_by_two_regimes(self) -> None:
        for flops in (1e6, 1e9):  # below and above the breakpoint
            counts = THREE | {"flops": flops}
            found = MODEL.predict_counts(**counts)
            assert type(found) is float
            assert found == pytest.approx(two(counts))

    @pytest.mark.parametrize(
        ("names", "more"),
        [
            ([*THREE, "traffic", "weights"], {}),  # lacks ops
            ([*THREE, "ops"], {}),
            ([*THREE], {"predictor": "extended"}),
            ([*COUNTS], {"predictor": "best"}),
            ([*COUNTS], {"predictor": ""}),
        ],
    )
    def test_counts_and_predictors_that_do_not_go_together(
        self, names: list[str], more: dict[str, Any]
    ) -> None:
        with pytest.raises(InputError):
            MODEL.predict_counts(**{n: COUNTS[n] for n in names}, **more)

    def test_arrays(self) -> None:
        random = np.random.default_rng(0)
        columns = {n: random.uniform(0, 2 * v, 40_000) for n, v in COUNTS.items()}
        extended, two_regime = plain(columns)
        found = MODEL.predict_counts(**columns)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, extended, rtol=1e-12)
        three = {n: columns[n] for n in THREE}
        assert (two_regime < BREAKPOINT).any()
        assert (two_regime > BREAKPOINT).any()
        np.testing.assert_allclose(MODEL.predict_counts(**three), two_regime, rtol=1e-12)

    @pytest.mark.parametrize(
        "make",
        [
            lambda v: [v, 2 * v, 3 * v],
            lambda v: (int(v), int(2 * v), int(3 * v)),
            lambda v: np.array([v, 2 * v, 3 * v], np.uint32),
            lambda v: np.array([[v, 2 * v, 3 * v]] * 2).T,
            lambda v: np.array([v, 9, 2 * v, 9, 3 * v, 9])[::2],
            lambda v: np.empty((0, 3)),
        ],
        ids=["list", "tuple", "u4", "T", "strided", "0x3"],
    )
    def test_every_form_of_array(self, make: Any) -> None:
        columns = {n: make(v) for n, v in COUNTS.items()}
        wanted = plain({n: np.asarray(v, float) for n, v in columns.items()})[0]
        found = MODEL.predict_counts(**columns)
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-12)

    def test_arrays_broadcast_with_numbers_and_each_other(self) -> None:
        columns = COUNTS | {"flops": np.array([1e8, 2e8, 3e8]), "ops": np.array([[1], [2]])}
        found = MODEL.predict_counts(**columns)
        assert found.shape == (2, 3)
        np.testing.assert_allclose(found, np.broadcast_to(plain(columns)[0], (2, 3)), rtol=1e-12)

    @pytest.mark.parametrize(
        "wrong",
        [
            -1, -1e-9, math.nan, math.inf, np.float32("nan"), np.int8(-3), 10**400, "1e6", None,
            [[1], [1, 2]],
            ["a"], 1j, {"acts": 1}, np.array([True]),
        ],
    )  # fmt: skip
    def test_what_is_no_count(self, wrong: Any) -> None:
        with pytest.raises(InputError, match=r"^inp is .*: expected a number") as error:
            MODEL.predict_counts(**COUNTS | {"inp": wrong})
        assert len(str(error.value)) < 300

    @pytest.mark.parametrize("counts", [COUNTS, THREE])
    def test_a_nan_in_an_array_stays_where_it_is(self, counts: dict[str, float]) -> None:
        flops = np.array([1e5, math.nan, 3e9])
        answers = MODEL.predict_counts(**counts | {"flops": flops})
        assert np.isnan(answers).tolist() == np.isnan(flops).tolist() == [False, True, False]

    @given(st.dictionaries(st.sampled_from(FEATURES), st.integers(0, 10**12), min_size=6))
    def test_one_and_many_are_the_same(self, counts: dict[str, int]) -> None:
        one = MODEL.predict_counts(**counts)
        many = MODEL.predict_counts(**{n: [v] for n, v in counts.items()})
        assert many.shape == (1,)
        assert many[0] == pytest.approx(one, rel=1e-12)


def two(counts: dict[str, Any]) -> float:
    """The two-regime formula in plain Python."""
    t = 0.5 + sum(synthetic.TRUE[n] * counts[n] for n in ("acts", "inp", "flops"))
    return float(t if t >= BREAKPOINT else SLOPE * t + BREAKPOINT * (1 - SLOPE))


NETWORK = synthetic.network()


class TestNetworks:
    @pytest.mark.parametrize("predictor", ["two-regime", "extended", None])
    @pytest.mark.parametrize("size", [4, 224])  # below the breakpoint and above
    @pytest.mark.parametrize("batch_size", [1, 3])
    def test_the_blocks_add_up_to_the_whole(
        self, predictor: str | None, size: int, batch_size: int
    ) -> None:
        network = synthetic.network(size=size)
        found = MODEL.predict(network, batch_size, predictor)
        counts = synthetic.totals(network, batch_size)
        wanted = two(counts) if predictor == "two-regime" else float(plain(counts)[0])
        assert (two(counts) < BREAKPOINT) == (size == 4), "both regimes are tried"
        assert found.latency_ms == pytest.approx(wanted, rel=1e-9)
        assert sum(b.latency_ms for b in found.blocks) == pytest.approx(wanted, rel=1e-9)
        assert sum(b.share for b in found.blocks) == pytest.approx(1.0, rel=1e-9)
        assert found.blocks[-1].name == "call"
        assert found.blocks[-1].latency_ms > 0
        assert set(found.blocks[-1].counts.values()) == {0}
        assert dict(found.counts) == counts
        for name in COLUMNS:
            assert sum(b.counts[name] for b in found.blocks) == counts[name]
        for block in found.blocks[:-1]:
            assert sum(block.terms_ms.values()) == pytest.approx(block.latency_ms, rel=1e-9)

    def test_a_block_is_bound_by_what_takes_most_of_it(self) -> None:
        seen = set()
        for network in (NETWORK, synthetic.network(width=2)):
            *blocks, call = MODEL.predict(network).blocks
            assert call.bound_by == "call"
            for block in blocks:
                costs = {n: synthetic.TRUE[n] * block.counts[n] for n in FEATURES}
                memory = sum(costs.pop(n) for n in ("acts", "inp", "traffic"))
                costs["memory"] = memory
                assert block.bound_by == max(costs, key=lambda n: costs[n])
                seen.add(block.bound_by)
        assert seen >= {"memory", "ops"}

    def test_the_interval_is_that_of_the_residuals(self) -> None:
        found = MODEL.predict(NETWORK)
        assert found.in_domain
        assert found.interval_ms is not None
        low, high = found.interval_ms
        # 100 residuals: the 91st smallest of |-0.50 .. 0.49| is 0.45.
        assert low == pytest.approx(found.latency_ms * math.exp(-0.45))
        assert high == pytest.approx(found.latency_ms * math.exp(0.45))
        assert found.coverage == 0.9
        assert low < found.latency_ms < high

    def test_a_model_that_does_not_tell_has_no_interval_and_no_domain(self) -> None:
        document = by_hand(domain={})
        for predictor in document["predictors"].values():
            del predictor["residuals"]
        found = Model(document).predict(NETWORK)
        assert found.interval_ms is None
        assert found.coverage is None
        assert found.in_domain is None
        (doubt,) = found.warnings
        assert "too few blocks" in doubt
        with pytest.raises(InputError) as error:
            Model(document).predict(NETWORK, coverage=0.9)
        assert error.value.code == "coverage-range"
        assert json.loads(json.dumps(found.to_dict()))["interval_ms"] is None

    @pytest.mark.parametrize(
        "question",
        [
            *(
                {"batch_size": n}
                for n in (0, -1, True, 2.5, "8", None, np.float64(2), 10**12, 10**30)
            ),
            *({"coverage": c} for c in (0.0, 1.0, 0.999, -1, math.nan, "0.9")),
            {"predictor": "best"},
        ],
    )
    def test_a_question_without_an_answer(self, question: dict[str, Any]) -> None:
        with pytest.raises(InputError):
            MODEL.predict(NETWORK, **question)

    def test_nothing_to_compute(self) -> None:
        builder = GraphBuilder("empty")
        found = MODEL.predict(builder.build([builder.input((1, 3))]))
        assert found.latency_ms == pytest.approx(synthetic.CALL_MS)
        assert [b.name for b in found.blocks] == ["call"]

    def test_the_json_has_the_words_of_the_contract(self) -> None:
        found = MODEL.predict(NETWORK, 2).to_dict()
        assert set(found) >= {
            "network", "batch_size", "predictor", "latency_ms", "interval_ms", "coverage", "in_domain",
            "warnings", "counts", "blocks",
        }  # fmt: skip
        assert list(FEATURES) == ["acts", "inp", "flops", "traffic", "weights", "ops"]
        for counts in (found["counts"], *(b["counts"] for b in found["blocks"])):
            assert list(counts)[:6] == list(FEATURES)
        assert all(list(b)[:3] == ["name", "latency_ms", "share"] for b in found["blocks"])
        assert (found["network"], found["batch_size"]) == ("hand made", 2)
        assert found["input_shapes"] == [[2, 56, 56, 3]]
        assert json.loads(json.dumps(found, allow_nan=False)) == found


class TestLoading:
    def test_a_predictor_of_later_versions_is_passed_over(self) -> None:
        document = by_hand()
        document["predictors"]["quantum"] = {"coefficients": {}}
        assert set(Model(document).predictors) == {"two-regime", "extended"}
        document["default"] = "quantum"
        with pytest.raises(ModelFileError, match=r"'quantum' is unknown.*get a newer LoLat"):
            Model(document, "new.json")


@pytest.mark.parametrize(
    ("written_in", "learned", "is_other"),
    [
        (
            "torch",
            {"framework": "tensorflow", "framework_version": "2.21.0", "device": "cpu"},
            True,
        ),
        ("onnx", {"framework": "torch", "device": "gpu"}, True),
        ("keras", {"framework": "onnxruntime", "framework_version": None}, True),
        ("keras", {"framework": "tensorflow", "jit": True}, False),
        ("onnx", {"framework": "onnxruntime"}, False),
        ("", {"framework": "torch"}, False),  # a Graph made by hand
        ("torch", {}, False),  # a model from a table
        ("of a later version", {"framework": "torch"}, False),
    ],
)
def test_a_network_of_another_framework_is_remarked_on(
    written_in: str, learned: dict[str, Any], is_other: bool
) -> None:
    model = Model(synthetic.document() | {"environment": learned})
    graph = synthetic.network()
    written = model.predict(msgspec.structs.replace(graph, framework=written_in))
    by_hand = model.predict(graph)
    assert len(written.warnings) == len(by_hand.warnings) + is_other
    # The answer itself is the same: the counts are.
    assert (written.latency_ms, written.interval_ms) == (by_hand.latency_ms, by_hand.interval_ms)


@pytest.mark.parametrize(
    ("asked", "written_in", "other"),
    [
        ("epyc-2t", "torch", "epyc-2t-torch"),
        ("models/epyc-zen5-2t.json", "torch", "epyc-zen5-2t-torch"),
        ("epyc-2t-torch", "keras", "epyc-2t"),
        ("epyc-2t-onnxruntime", "torch", "epyc-2t-torch"),
        ("epyc-2t-torch", "onnx", "epyc-2t-onnxruntime"),
    ],
)
def test_the_model_of_the_other_framework_is_named_where_it_comes_along(
    asked: str, written_in: str, other: str
) -> None:
    graph = msgspec.structs.replace(synthetic.network(), framework=written_in)
    model = Model.load(asked)
    assert model.predict(graph).warnings[-1].endswith(f": the profile {other}")


def test_a_model_that_was_not_learned_with_training_is_not_named_for_a_training() -> None:
    def remedy(written_in: str) -> str:
        graph = msgspec.structs.replace(synthetic.network(), framework=written_in)
        remarks = Model.load("epyc-2t").cost(graph, 8).warnings
        return next(remark for remark in remarks if "this profile is of " in remark)

    # epyc-2t-torch has a section on training, epyc-2t-onnxruntime has none.
    assert remedy("torch").endswith("for PyTorch: the profile epyc-2t-torch")
    assert remedy("onnx").endswith("for ONNX Runtime: lolat learn cpu --backend onnxruntime")


def test_a_framework_whose_model_is_not_there_has_to_be_learned() -> None:
    graph = msgspec.structs.replace(synthetic.network(), framework="torch")
    elsewhere = Model(synthetic.document()).predict(graph).warnings[-1]
    assert elsewhere.endswith("lolat learn cpu --backend torch")


@settings(max_examples=60)
@given(models(), graphs(), st.integers(1, 300))
def test_any_model_of_any_network(document: dict[str, Any], graph: Graph, batch: int) -> None:
    """A time above 0 inside its interval, that is the sum of the blocks'; a formula that was not drawn."""
    found = Model(document).predict(graph, batch_size=batch)
    assert 0.0 < found.latency_ms < math.inf
    assert sum(block.latency_ms for block in found.blocks) == pytest.approx(found.latency_ms)
    assert found.interval_ms is not None
    assert found.interval_ms[0] <= found.latency_ms <= found.interval_ms[1]
    terms = document["predictors"]["extended"]["coefficients"]
    total = found.counts
    expected = terms["call"] + sum(terms[n] * total[n] for n in terms if n != "call")
    assert found.latency_ms == pytest.approx(expected)
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("max_ms", "sure", "exceeds"),
    [(10.0, False, 0), (9.99, False, 1), (12.5, True, 0), (12.4, True, 1), (None, False, 0)],
)
def test_limits(max_ms: float | None, sure: bool, exceeds: int) -> None:
    """Not more than the limit, with `sure` the upper end of the interval; the slower device is named."""
    devices = (Model(synthetic.document(), name) for name in "ab")
    a, b = (device.predict(synthetic.network(), 4) for device in devices)
    slow = replace(b, latency_ms=10.0, interval_ms=(8.0, 12.5))
    fast = replace(a, latency_ms=5.0, interval_ms=(4.0, 6.0))
    lines = exceeded([fast, slow], Limits(max_ms, sure=sure))
    assert len(lines) == exceeds
    says = "may take 12.5 ms" if sure else "takes 10.0 ms"
    assert all(f" on b {says}" in line and arg("max_ms") in line for line in lines)


def test_several_precisions_are_a_row_each() -> None:
    """Each is the answer of that precision alone; one that a device has not is told."""
    asked = ["fp32", "float16"]
    found = lolat.predict(synthetic.network(), on="v100", precision=asked)
    assert [(p.device, p.profile, p.row_name, p.precision) for p in found] == [
        ("v100", "v100-fp32", "v100 in fp32", "fp32"), ("v100", "v100-fp32", "v100 in fp16", "fp16"),
    ]  # fmt: skip
    for p, one in zip(found, asked, strict=True):
        assert (
            p.latency_ms == lolat.predict(synthetic.network(), on="v100", precision=one).latency_ms
        )
    without = lolat.predict(synthetic.network(), on="t4", precision=("bf16", "amp"))
    assert ([p.precision for p in without], [*without.left_out]) == (["amp"], ["t4 in bf16"])


def test_models_that_serve_are_chosen_by_names_and_all() -> None:
    assert [*serving.serving_models("h100-vllm, b200-vllm").models] == ["h100-vllm", "b200-vllm"]
    every, left_out = serving.serving_models("all")
    assert {"h100-vllm", "b200-trtllm", "l4"} <= {*every}
    assert {"rtx-4090", "rtx-5090", "mi300x"} <= {*every}  # by their data sheets
    assert {"rtx-pro-6000-max-q", "h100-pcie", "rtx-a6000"} <= {
        *left_out
    }  # each answers by its name
    assert "rtx-pro-6000" in every  # its profile is of the Max-Q, which is not for rent
    (why,) = {*left_out.values()}
    assert why.endswith("to add one: all,a100-pcie-40gb")
    assert {"h100-sxm", "h200-sxm", "rtx-4090", "t4"}.isdisjoint(left_out)
    assert {"rtx-4090-amp", "a100-pcie-40gb", "t4"}.isdisjoint(
        every
    )  # another A100 serves; no bfloat16
    assert all("llm" in model.file.document for model in every.values())
    one = {*serving.serving_models("all", of_any=True).models}
    assert {"h100-vllm", "rtx-4090"} <= one < {*every}


def test_a_damaged_file_is_no_reason_to_refuse_a_question_about_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is named is refused; of all devices it is told."""
    (tmp_path / "broken.json").write_text("{")
    monkeypatch.setattr("lolat.io.paths.local_folder", lambda: tmp_path)
    assert lolat.load("rtx-3080").predict("timm:resnet50").latency_ms > 0.0
    assert lolat.load("epyc-2t").explain("keras:MobileNetV2").prediction.latency_ms > 0.0
    assert lolat.load("rtx-4080").llm("qwen3-8b").best
    with pytest.raises(ModelFileError, match=r"broken\.json"):
        lolat.load("broken")
    _, left_out = choosing.devices(["all"])
    assert "broken.json" in left_out["broken"]
    served = serving.serving_models("all")
    assert "h100-vllm" in served.models
    assert "damaged" in served.left_out["broken"]


@pytest.mark.parametrize("name", ["a10", "a10g", "l4", "l40s", "b200", "h200", "mi250", "mi300x"])
def test_a_bundled_file_by_a_data_sheet_is_that_of_today(name: str) -> None:
    """Nothing was measured for it, so that it has to follow the sheet and the fit, which differ in the last
    digits between processors.
    """
    stored, fitted = (m.file.kernels for m in (Model.load(name), model_of_sheet(name)))
    assert stored is not None
    assert fitted is not None
    assert stored.tf32 == pytest.approx(fitted.tf32)
    assert {*stored.classes} == {*fitted.classes}
    for of, costs in fitted.classes.items():
        assert stored.classes[of] == pytest.approx(costs), of


def test_a_model_of_networks_leads_to_those_that_serve() -> None:
    model = Model.load(profile_names.full_name("h100"))
    for ask in (lambda: model.llm("qwen3-8b"), lambda: model.cost("qwen3-8b", 1, input_size=99)):
        with pytest.raises(ModelFileError) as caught:
            ask()
        assert "ask `h100-sglang` or `h100-trtllm` or `h100-vllm`" in caught.value.message


@pytest.mark.parametrize("name", ["h200-nvl", "rtx-4090", "mi300x"])
def test_a_gpu_by_its_data_sheet_serves_in_python_as_in_the_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "llm", name, "llama-3.1-8b", "--concurrency", 8, "--json"
    command = json.loads(Command(capsys).done(*asked).out)
    found = json.loads(json.dumps(loading.load(name).llm("llama-3.1-8b", concurrency=8).to_dict()))
    assert found["rows"] == command["rows"]
    assert found["warnings"] == command["warnings"]


def test_nine_in_ten_published_times_lie_inside_the_interval_of_a_data_sheet() -> None:
    """Image networks on V100, T4 and A100 in float32 and TF32, asked by the sheets alone.

    docs/explanation/intervals.md says that all of them do.
    """
    rows = [
        r for r in read_table(published_figures.FIGURES, ("gpu", "network"), rows="network")
        if r["pass"] == "inference" and r["precision"] in ("fp32", "tf32")
    ]  # fmt: skip
    sheets = {
        gpu: model_of_sheet(published_figures.MODELS[gpu]) for gpu in {row["gpu"] for row in rows}
    }
    keys = {(row["network"], row.whole("input_size")) for row in rows}
    graphs, inside = {key: lolat.read(*key) for key in keys}, []
    for row in rows:
        model = sheets[row["gpu"]].run_as(row["precision"])
        graph = graphs[row["network"], row.whole("input_size")]
        low, high = model.predict(graph, row.whole("batch_size")).interval_ms or (0.0, 0.0)
        inside.append(low <= row.number("step_ms") <= high)
    assert (len(inside), sum(inside)) == (89, 89)


def test_a_missing_argument_and_a_function_are_refused_with_the_remedy() -> None:
    model: Any = loading.load("rtx-4090-amp")
    with pytest.raises(InputError, match=r"^network is missing"):
        model.predict(batch_size=8)
    with pytest.raises(InputError, match=r"is a function, no network; call it: made\(\)"):
        model.predict(made)


def made() -> None:
    """Never called."""


def test_a_language_model_is_not_served_in_another_mode() -> None:
    for mode in ({"precision": "fp32"}, {"launch": "eager"}, {"channels_last": True}):
        with pytest.raises(InputError) as caught:
            loading.load("h100-vllm").run_as(**mode).llm("qwen3-8b", concurrency=1)  # type: ignore[arg-type]
        assert caught.value.code == "run-as"


@pytest.mark.parametrize("ask", [lolat.predict, lolat.compare])
def test_a_mistake_in_a_call_is_told_with_its_mend(ask: Any) -> None:
    with pytest.raises(
        ModelFileError, match="first; did you mean network='timm:resnet50', on='a100'"
    ):
        ask("a100", on=["l4", "timm:resnet50"], batch_size=64)
    with pytest.raises(ModelFileError, match=r"looks like a network, .*first; expected a device"):
        ask("timm:resnet18", batch_size=64, on="timm:resnet50")
    with pytest.raises(InputError, match=r"^batch: no such argument; did you mean batch_size[?]$"):
        ask("timm:resnet50", on="a100", batch=64)


def test_a_precision_for_a_predictor_is_told() -> None:
    with pytest.raises(
        InputError, match=r"^predictor 'amp': expected kernels, .* precision 'amp'[?]$"
    ):
        lolat.predict("timm:resnet50", "rtx-4090", 64, "amp")
    with pytest.raises(InputError, match=r"^predictor 'best': expected kernels, [^;]*$"):
        lolat.predict("timm:resnet50", "rtx-4090", 64, "best")


@pytest.mark.parametrize("value", [None, 3, {"device": "a100"}])
def test_what_is_no_name_and_no_path_is_refused(value: Any) -> None:
    with pytest.raises(ModelFileError, match="expected a device's name or a profile's path"):
        lolat.load(value)
