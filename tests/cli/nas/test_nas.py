"""`lolat nas fit`, `search` and `score`: a story each, and wrong calls."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import lolat as library
from lolat.errors import InputError
from lolat.nas import rank
from lolat.units import between
from tests.cli.commands import Command
from tests.nas.few_devices import everything, only_needed, some_cells, write_samples

CELLS = "nasbench201"
MODULE = """
from lolat.nas import Part, Position, Space


def shape(*chosen):
    return (1, 16, 16, 8)


def write(layers, x, kernel, width):
    return layers.conv(layers.conv(x, width, kernel), 8, 1)


def space():
    print("a space that talks")
    positions = [Position("kernel", (1, 3, 5)), Position("width", (8, 16, 32))]
    return Space.of_parts("tiny", positions, [Part("only", (0, 1), shape, write)])


def score(choices):
    print("an objective that talks")
    return choices["kernel"] * 10 + choices["width"]


def never(kernel, width):
    raise ValueError("it was built")


def unbuilt():
    return Space.from_factory(never, {"kernel": (1, 3, 5), "width": (8, 16, 32)})


def two(first, second):
    return 1.0


def wrong(choices):
    return 1 / 0


def nothing(choices):
    pass


def one(kernel, width):
    return None


def sized(kernel, width):
    return space().network([(1, 3, 5).index(kernel), (8, 16, 32).index(width)])


def built():
    return Space.from_factory(sized, {"kernel": (1, 3, 5), "width": (8, 16, 32)})


def scalar():
    return Space.from_factory(one, {"kernel": 3, "width": (8, 16)})


def letters():
    return Space.from_factory(one, {"kernel": "35", "width": (8, 16)})


def empty():
    return Space.from_factory(one, {"kernel": (), "width": (8, 16)})
"""


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module of the user's."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "searched.py").write_text(MODULE)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "searched", raising=False)
    return folder


# ---- fit


@pytest.mark.parametrize("device", [everything, only_needed])
def test_a_fitted_space(lolat: Command, tmp_path: Path, device: Any) -> None:
    samples, output = write_samples(tmp_path / "s.csv", some_cells(12), device), tmp_path / "m.json"
    ask = ("nas", "fit", CELLS, samples, "--output", output)
    answer = lolat.json(*ask)
    assert (answer["samples"], answer["space"], answer["warnings"]) == (12, CELLS, [])
    assert 0.0 < answer["typical_error"] < 0.05
    assert answer["typical_error"] < answer["error_of_90_percent"] < 0.2
    lines = lolat.text(*ask).splitlines()
    assert lines[-1] == f"written: {output}"
    assert max(map(len, lines[:-1])) <= 80
    archs, result = some_cells(30, seed=9), tmp_path / "latencies.csv"
    among = write_samples(tmp_path / "archs.csv", archs)
    ask = ("nas", "score", CELLS, output, "--among", among, "--output", result)
    found = lolat.done(*ask, "--json")
    told = json.loads(found.out)
    assert told["predictor"] == "samples"
    assert (found.err, told["warnings"]) == (
        "",
        [f"{among}: columns that are not read: latency_ms"],
    )
    for row, arch in zip(rows(result), archs, strict=True):
        assert row["arch"] == arch
        assert float(row["low_ms"]) < device(arch) < float(row["high_ms"])


@pytest.mark.parametrize("read", ["among", "model"])
def test_a_ranking_is_not_written_over_what_it_reads(
    lolat: Command, tmp_path: Path, model: Path, read: str
) -> None:
    among = write_samples(tmp_path / "archs.csv", some_cells(9), everything)
    path = {"among": among, "model": model}[read]
    before = path.read_bytes()
    assert path.name in lolat.refused(
        "nas", "score", CELLS, model, "--among", among, "--output", path
    )
    assert path.name in lolat.refused(
        "nas", "search", CELLS, model, "--objective", among, "--output", path
    )
    with pytest.raises(InputError, match="is read here"):
        rank(CELLS, model, path, among=among)
    assert path.read_bytes() == before


def test_what_samples_were_fitted_without_is_told_in_each_answer(
    lolat: Command, tmp_path: Path
) -> None:
    """Their column of a precision is not read: what was timed in half precision answers any question."""
    table = write_samples(tmp_path / "s.csv", some_cells(12), everything)
    first, *others = table.read_text().splitlines()
    table.write_text("\n".join([f"{first},precision", *(f"{row},fp16" for row in others)]))
    output = tmp_path / "m.json"
    lolat.done("nas", "fit", CELLS, table, "--output", output)
    ask = ("nas", "score", CELLS, output, "--output", tmp_path / "o.csv", "--best", 1)
    assert any("not read: precision" in remark for remark in lolat.json(*ask)["warnings"])


def test_a_space_of_ones_own_is_fitted_and_searched(
    lolat: Command, here: Path, model: Path
) -> None:
    def device(kernel: int, width: int) -> float:
        return 0.5 + (kernel**2 + 5) * width / 100

    pairs = itertools.product(enumerate((1, 3, 5)), enumerate((8, 16, 32)))
    samples = [f"{i}-{j},{device(kernel, width):.4f}" for (i, kernel), (j, width) in pairs]
    (here / "s.csv").write_text("\n".join(["arch,latency_ms", *samples]))
    lolat.done("nas", "fit", "searched:space", "s.csv", "--output", model)
    ask = ("nas", "search", "searched:space", model, "--objective", "searched:score")
    answer = lolat.answer(*ask)
    assert answer["predictor"] == "samples"
    for found in answer["front"]:
        assert found["latency_ms"] == pytest.approx(device(**found["choices"]), rel=0.1)
    lowest = lolat.answer(*ask, "--lower-is-better")["front"]
    assert [found["arch"] for found in lowest] == ["0-0"]
    (here / "few.csv").write_text("\n".join(["arch,latency_ms", *samples[:4]]))
    lolat.done("nas", "fit", "searched:space", "few.csv", "--output", "few.json")
    said = lolat.done(
        "nas", "search", "searched:space", "few.json", *ask[4:], "--accuracy", "x.csv"
    ).out
    assert "OUTSIDE" in said
    assert "to the samples, and `lolat nas fit` again" in said
    shown = lolat.done("show", "few.json").out
    assert shown.startswith("few: device not named\n")
    assert "tiny: 4 measured networks" in shown


# ---- search


def test_a_search(lolat: Command, model: Path, here: Path) -> None:
    ask = ("nas", "search", "searched:space", model, "--objective", "searched:score")
    found = lolat.done(*ask, "--output", "front.csv")
    assert "talks" not in found.out
    assert "talks" in found.err
    assert all(len(line) <= 80 for line in found.out.replace(str(model), "desk").splitlines())
    assert {(row["arch"], float(row["score"])) for row in rows(here / "front.scores.csv")} == {
        (f"{k}-{w}", kernel * 10.0 + width)
        for k, kernel in enumerate((1, 3, 5))
        for w, width in enumerate((8, 16, 32))
    }
    again = lolat(*ask, "--output", "front.csv", "--max-ms", 500, "--json")
    answer = json.loads(again.out)
    assert (answer["method"], answer["max_ms"], answer["scored"]) == ("exhaustive", 500.0, 9)
    assert "front.scores.csv has 9 scores already, 0 to go" in again.err
    assert "in place of another front" not in again.err
    larger = lolat.done(*ask, "--output", "front.csv", "--batch-size", 2)
    assert "written: front.csv, in place of another front" in larger.err
    lolat.done(*ask, "--output", "front.csv")
    assert "kernel=5 width=32" in found.out
    for row, candidate in zip(rows(here / "front.csv"), answer["front"], strict=True):
        assert row.items() >= {k: str(v) for k, v in candidate["choices"].items()}.items()
        assert row["arch"] == candidate["arch"]
        assert float(row["latency_ms"]) == pytest.approx(candidate["latency_ms"], rel=1e-5)
        assert float(row["score"]) == candidate["score"]


def test_a_launch_of_several_devices_is_of_those_that_have_it(
    lolat: Command, model: Path, here: Path
) -> None:
    """The times of each are those of a search on it alone, the CPU's without the launch."""
    call = ("--objective", "searched:score", "--candidates", "9")
    both = lolat.answer(
        "nas", "search", "searched:space", f"{model},rtx-4090", *call, "--launch", "graph"
    )
    alone = lolat.answer("nas", "search", "searched:space", str(model), *call)
    times = {c["arch"]: c["latency_ms"] for c in alone["front"]}
    for candidate in both["front"]:
        assert candidate["latency_ms"] == times.get(candidate["arch"], candidate["latency_ms"])
        assert any("launch graph does not apply" in note for note in candidate["warnings"])
        assert not any("apply" in note for note in candidate["others"][0]["warnings"])
    assert "graph" in both["others"][0]["source"]
    search = ("nas", "search", "searched:space", f"{model},{model}", *call)
    assert "--launch graph" in lolat.refused(*search, "--launch", "graph")


def test_scores_by_choices_are_those_by_text(lolat: Command, model: Path, here: Path) -> None:
    """The table that `nas score` writes, with a score by hand in place of the text."""
    lolat.done("nas", "score", "searched:space", model, "--output", "all.csv")
    every = rows(here / "all.csv")
    assert [(row["arch"], row["kernel"], row["width"]) for row in every] == [
        (f"{k}-{w}", f"{kernel}", f"{width}")
        for k, kernel in enumerate((1, 3, 5))
        for w, width in enumerate((8, 16, 32))
    ]
    scores = {row["arch"]: 10 * int(row["kernel"]) + int(row["width"]) for row in every}
    texts = [f"{arch},{score}" for arch, score in scores.items()]
    chosen = [f"{row['width']},{row['kernel']},{scores[row['arch']]}" for row in every]
    (here / "texts.csv").write_text("\n".join(["arch,score", *texts]))
    (here / "chosen.csv").write_text("\n".join(["width,kernel,score", *chosen]))
    by_text, by_choice = (
        lolat.answer("nas", "search", "searched:space", model, "--objective", name)
        for name in ("texts.csv", "chosen.csv")
    )
    assert by_text["front"] == by_choice["front"]
    assert by_text["scored"] == len(every)


def test_a_space_of_a_function_is_called_as_it_is_asked_for(
    lolat: Command, model: Path, here: Path
) -> None:
    """Not by the function of one candidate, whose name may be that of any other's."""
    ask = ("nas", "search", "searched:built", model, "--objective", "searched:score")
    done = lolat.done(*ask)
    assert done.out.startswith("searched:built on ")
    assert "searched:built: 9 networks built; the counts of each are exact" in done.err
    assert (here / "searched.built.scores.csv").exists()
    assert lolat.answer(*ask)["space"] == "searched:built"
    samples = "".join(f"{i}-{j},{1 + i + j}\n" for i in range(3) for j in range(3))
    (here / "s.csv").write_text(f"arch,latency_ms\n{samples}")
    lolat.done("nas", "fit", "searched:built", "s.csv", "--output", "made.json")
    assert "searched:built: 9 measured networks" in lolat.done("show", "made.json").out
    again = lolat.done("nas", "fit", "searched:built", "s.csv", "--output", "made.json").out
    assert "from 9 samples, 1.00 ms .. 5.00 ms · noise" in again
    assert "knows networks of searched:built" in lolat("predict", "made.json", "keras:ResNet50").err


def test_a_wrong_call_is_refused_before_a_network_is_built(
    lolat: Command, model: Path, here: Path
) -> None:
    (here / "wrong.csv").write_text("arch,score,latency_ms\n9-9,1,1\n")
    score, space = ("--objective", "searched:score"), "searched:unbuilt"
    for name, *rest in (
        ("search", "no-model", *score),
        ("search", model, "--objective", "score"),
        ("search", model, *score, "--output", "no/f.csv"),
        ("search", model, *score, "--accuracy", "no/s.csv"),
        ("search", model, "--objective", "searched:missing"),
        ("search", model, "--objective", "searched:two"),
        ("search", model, "--objective", "wrong.csv"),
        ("score", model, "--output", "o.csv", "--among", "wrong.csv"),
        ("score", "rtx-4090,h100"),
        ("fit", "wrong.csv", "--output", "o.json"),
        ("fit", "wrong.csv", "--output", "wrong.csv"),
    ):
        said = lolat.refused("nas", name, space, *rest)
        assert "it was built" not in str(said)
    lolat.refused("nas", "score", "fbnet", model, "--output", "o.csv")  # more than a table takes
    assert not (here / "o.csv").exists()
    said = lolat.refused("nas", "search", space, model, *score)
    assert "never (searched.py, line " in str(said)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (
            "searched:scalar",
            "position 'kernel': 3 is no list of choices; expected one, such as (3,)",
        ),
        ("searched:letters", "position 'kernel': '35' is no list"),
        ("searched:empty", "position 'kernel' has no choices"),
        ("searched:one", "takes kernel, width, as the function of one candidate does"),
        ("searched", "searched.py:space"),
    ],
)
def test_what_is_no_space_is_told_how_to_become_one(
    lolat: Command, model: Path, here: Path, space: str, words: str
) -> None:
    said = lolat.refused("nas", "score", space, model, "--output", "o.csv")
    assert words in str(said)


@pytest.mark.parametrize("command", ["score --output o.csv", "search --objective searched:score"])
def test_a_space_in_the_devices_place_is_told_its_own(
    lolat: Command, here: Path, command: str
) -> None:
    name, *rest = command.split()
    said = lolat.refused("nas", name, "epyc-2t-torch", "searched:space", *rest)
    assert "expected searched:space epyc-2t-torch" in str(said)


# ---- score


def test_no_candidate_is_within_the_time(lolat: Command, model: Path, here: Path) -> None:
    ask = ("nas", "score", "searched:space", model, "--output", "none.csv", "--max-ms", "1e-6")
    found = lolat(*ask, "--json")
    assert (found.code, "the fastest takes" in found.err) == (3, True)
    assert json.loads(found.out)["within"] == 0
    assert not (here / "none.csv").exists()


@pytest.mark.parametrize("option", ["--batch-size=8", "--precision=fp16"])
def test_samples_alone_answer_without_options(lolat: Command, tmp_path: Path, option: str) -> None:
    samples = write_samples(tmp_path / "s.csv", some_cells(8), everything)
    lolat.done("nas", "fit", CELLS, samples, "--output", tmp_path / "phone.json")
    ask = (CELLS, tmp_path / "phone.json", "--output", tmp_path / "out.csv", option)
    said = str(lolat.refused("nas", "score", *ask))
    assert f"{option.partition('=')[0]}: " in said
    assert "leave" in said


def test_the_fastest_of_a_space(lolat: Command, model: Path, here: Path) -> None:
    ask = ("nas", "score", "searched:space", model, "--output", "best.csv", "--best", 2)
    best = [row["arch"] for row in lolat.answer(*ask)["best"]]
    assert best == [row["arch"] for row in rows(here / "best.csv")]
    assert len(best) == 2
    lines = lolat.done(*ask).out.splitlines()
    assert lines[0] == f"tiny on {model}, batch 1: 9 candidates"
    assert "the 2 fastest:" in lines
    assert "fastest:\n" not in lolat.done(*ask[:-2]).out  # of nine all are shown
    assert lines[-1] == "written: best.csv"


def edited(here: Path, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of the user's, changed as in an editor and imported anew."""
    text = (here / "searched.py").read_text()
    assert text.count(old) == 1
    (here / "searched.py").write_text(text.replace(old, new))
    monkeypatch.delitem(sys.modules, "searched")
    shutil.rmtree(here / "__pycache__", ignore_errors=True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"width", (8, 16, 32))', '"width", (32, 16, 8))'),
        ("layers.conv(x, width, kernel), 8", "layers.conv(x, 2 * width, kernel), 8"),
    ],
)
def test_scores_and_samples_of_other_networks_are_refused(
    before: str,
    after: str,
    lolat: Command,
    model: Path,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The integers of a candidate name another network once the choices, or the function, change."""
    ask = ("nas", "search", "searched:space", model, "--objective", "searched:score")
    lolat.done(*ask)
    written = (here / "tiny.scores.csv").read_text()
    samples = "".join(f"{i}-{j},{1 + i + j}\n" for i in range(3) for j in range(3))
    (here / "s.csv").write_text(f"arch,latency_ms\n{samples}")
    lolat.done("nas", "fit", "searched:space", "s.csv", "--output", "fitted.json")
    edited(here, before, after, monkeypatch)
    refused = lolat(*ask)
    assert refused.code == 2
    assert "networks of the space have changed" in refused.err
    assert (here / "tiny.scores.csv").read_text() == written
    said = lolat("nas", "score", "searched:space", "fitted.json", "--output", "o.csv")
    assert said.code == 2
    assert "lolat nas fit" in said.err
    edited(here, after, before, monkeypatch)
    lolat.done(*ask)
    lolat.done("nas", "score", "searched:space", "fitted.json", "--output", "o.csv")


def test_an_objective_that_fails_is_told_with_its_line(
    lolat: Command, model: Path, here: Path
) -> None:
    done = lolat("nas", "search", "searched:space", model, "--objective", "searched:wrong")
    assert done.code == 2
    number = (here / "searched.py").read_text().splitlines().index("    return 1 / 0") + 1
    assert f"searched.py:{number}" in done.err
    assert "nan" in done.err
    done = lolat("nas", "search", "searched:space", model, "--objective", "searched:nothing")
    assert "it returned None: does it lack a `return`?" in done.err


def test_a_score_without_output_lists_the_same_and_writes_nothing(
    lolat: Command, model: Path, here: Path
) -> None:
    written = lolat.answer("nas", "score", "searched:space", model, "--output", "o.csv")
    (here / "o.csv").unlink()
    before = {*here.iterdir()}
    shown = lolat.answer("nas", "score", "searched:space", model)
    assert shown == written | {"output": None}
    assert {*here.iterdir()} == before
    assert "written" not in lolat.done("nas", "score", "searched:space", model).out


@pytest.mark.parametrize(
    ("words", "run", "how"),
    [
        ("", {}, "outside, host-bound"),
        (
            "--launch graph --batch-size 4000",
            {"launch": "graph"},
            "outside",
        ),
        (
            "--host-us 300 --channels-last --precision amp",
            {"host_us": 300.0, "channels_last": True, "precision": "amp"},
            "outside, host-bound",
        ),
    ],
)
def test_the_first_of_a_score_is_as_sure_as_its_prediction(
    lolat: Command, here: Path, words: str, run: dict[str, Any], how: str
) -> None:
    """A tiny network on a GPU of large batches: the host decides, and that is said."""
    ask = ("searched:space", "rtx-4090-amp", "--output", "o.csv", *words.split())
    found = lolat.answer("nas", "score", *ask)
    import searched  # type: ignore[import-not-found]

    model = library.load("rtx-4090-amp").run_as(**run)
    row = searched.space().parse([found["best"][0]["arch"]])[0]
    size = found["batch_size"]
    whole = model.predict(searched.space().network(row), size)
    assert found["interval_ms"] == pytest.approx(list(whole.interval_ms or ()))
    assert found["in_domain"] is whole.in_domain is False
    told = lolat.done("nas", "score", *ask)
    assert f"  {between(*found['interval_ms'], whole.latency_ms)}  " in told.out
    assert f"Measured range of the fastest: {how}\n" in told.out
    assert told.out.count("note: ") == len(whole.warnings[:3])
    objective = ("--objective", "searched:score", "--candidates", "9", *words.split())
    search = ("nas", "search", "searched:space", "rtx-4090-amp", *objective)
    for candidate in lolat.answer(*search)["front"]:
        row = searched.space().parse([candidate["arch"]])[0]
        whole = model.predict(searched.space().network(row), size)
        assert candidate["host_bound"] is whole.host_bound is ("host" in how)
        assert candidate["latency_ms"] == pytest.approx(whole.latency_ms)
        assert candidate["warnings"] == list(whole.warnings)
    shown = lolat.done(*search).out
    lines = [line for line in shown.splitlines() if "kernel=" in line and "Best" not in line]
    assert all(f"  {how}  " in line for line in lines)


def test_candidates_that_do_not_fit_are_marked(lolat: Command, here: Path) -> None:
    """By hand: at most 16 x 16 x (8 + width + 8) floats a sample, with the input; a T4 has 15 GiB."""
    batch = 500_000
    run = ("searched:space", "t4-fp32", "--output", "o.csv", "--batch-size", str(batch))
    search = ("nas", "search", *run, "--objective", "searched:score", "--candidates", "9")
    found = lolat.answer(*search)["front"]
    for candidate in found:
        needed = 4 * 16 * 16 * (16 + candidate["choices"]["width"]) * batch
        assert candidate["memory_bytes"] == pytest.approx(needed, rel=1e-3)
        assert candidate["fits"] is (needed < 14e9)
    without = [c["fits"] for c in found].count(False)
    assert 0 < without < len(found)
    assert f"{without} of {len(found)} DO NOT FIT" in (told := lolat.done(*search).out)
    assert told.count("DOES NOT FIT") == without
    with Path("o.csv").open() as file:
        assert [row["fits"] for row in csv.DictReader(file)] == [str(c["fits"]) for c in found]
    score = ("nas", "score", *run)
    assert "memory: the slowest one DOES NOT FIT, it takes 22.9 GiB" in lolat.done(*score).out
    assert "FIT" not in lolat.done(*score[:-1], "1000").out
