"""A few training steps that somebody timed: alone, beside inference, and beside a device's file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import lolat
from lolat.device.summary import fitted_on_words
from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from tests.training import known_device

HEADER = "network,batch_size,latency_ms,precision,pass\n"
MACS_PER_MS = 5e9
SAMPLES = 64


def encoder(width: int, tokens: int) -> Graph:
    """Four dense layers with an activation after each."""
    b = GraphBuilder(f"net{width}x{tokens}", "torch")
    x = b.input((1, tokens, width))
    for inside, out in ((width, 4 * width), (4 * width, width)) * 2:
        x = b.add("dense", [x], (1, tokens, out), in_features=inside, out_features=out, bias=False)
        x = b.add("relu", [x], (1, tokens, out))
    return b.build([x])


def table(folder: Path, sizes: Sequence[tuple[int, int]], back: float | None, name: str) -> Path:
    """Rows of a GPU that multiplies at one rate; `back`: times of the forward pass, that the backward pass
    takes; None: inference. Networks of different first letters, as each is a family of its own.
    """
    path, lines = folder / name, []
    for number, (width, tokens) in enumerate(sizes):
        network = folder / f"{chr(97 + number % 26)}{name[0]}{number}.json"
        network.write_text(json.dumps(encoder(width, tokens).to_dict()))
        forward = SAMPLES * 16 * width * width * tokens / MACS_PER_MS
        ms = forward * (1.0 + (back or 0.0))
        lines.append(f"{network},{SAMPLES},{ms:.6f},fp16,{'training' if back else 'inference'}\n")
    path.write_text(HEADER + "".join(lines))
    return path


def sizes(number: int, seed: int) -> list[tuple[int, int]]:
    draw = np.random.default_rng(seed)
    pairs = (64 * draw.integers(4, 24, number), 64 * draw.integers(2, 9, number))
    return [(int(w), int(t)) for w, t in zip(*pairs, strict=True)]


def off(model: lolat.Model, given: Sequence[tuple[int, int]], back: float) -> float:
    """The median error of `cost`, relative, but for the update."""
    found = []
    for width, tokens in given:
        parts = model.cost(encoder(width, tokens), SAMPLES).options[0].parts_ms
        expected = SAMPLES * 16 * width * width * tokens / MACS_PER_MS * (1.0 + back)
        found.append(((parts["forward"] or 0) + (parts["backward"] or 0)) / expected - 1.0)
    return float(np.median(np.abs(found)))


@pytest.mark.parametrize("back", [1.8, 3.2])
def test_twelve_steps_set_the_level(tmp_path: Path, back: float) -> None:
    """Given and other networks; the file claims the error of those held out of its fit."""
    given, others = sizes(12, 1), sizes(8, 2)
    model = lolat.fit(table(tmp_path, given, back, "steps.csv"))
    assert off(model, given, back) < 0.05
    assert off(model, others, back) < 0.1
    claimed = model.file.document["predictors"]["kernels"]["error"]
    assert claimed["fitted"]["median"] < claimed["left_out"]["median"] < 0.05


def test_a_few_steps_beside_inference_set_their_level(tmp_path: Path) -> None:
    given, back = sizes(30, 3), 4.0
    tables = [
        table(tmp_path, given, None, "inference.csv"),
        table(tmp_path, given[:6], back, "training.csv"),
    ]
    model = lolat.fit(tables)
    width, tokens = given[9]
    forward = SAMPLES * 16 * width * width * tokens / MACS_PER_MS
    predicted = model.predict(encoder(width, tokens), SAMPLES).latency_ms
    assert predicted == pytest.approx(forward, rel=0.1)
    assert off(model, given[10:], back) < 0.15


def test_a_file_made_from_tables_has_the_level_of_a_few_rows(tmp_path: Path) -> None:
    """Drawn to the rows by their number, of inference and of training each; judged on rows left out."""
    file = tmp_path / "gpu.json"
    document = known_device.document(measured=["dense", "elements", "norm"])
    file.write_text(json.dumps(document))
    before, net = lolat.load(file), tmp_path / "net.json"
    net.write_text(json.dumps(known_device.network().to_dict()))
    steps = {n: before.cost(net, n).options[0].parts_ms for n in (64, 128, 256)}
    passes = {n: (p["forward"] or 0.0) + (p["backward"] or 0.0) for n, p in steps.items()}
    lines = [f"{net},{n},{1.5 * ms},fp32,training\n" for n, ms in passes.items()]
    rows = tmp_path / "rows.csv"
    rows.write_text(HEADER + "".join(lines))
    trained = lolat.fit([file, rows], tmp_path / "trained.json")
    for n, ms in passes.items():
        parts = trained.cost(net, n).options[0].parts_ms
        found = (parts["forward"] or 0.0) + (parts["backward"] or 0.0)
        assert found == pytest.approx(1.5 * ms, rel=1e-4)
        assert trained.predict(net, n).latency_ms == before.predict(net, n).latency_ms
    # All rows are of one network: left out with the others, it has the level of none.
    error = trained.file.document["predictors"]["kernels"]["error"]["left_out"]["median"]
    assert error == pytest.approx(1 - 1 / 1.5)
    assert any("1.50 times" in text for text in trained.file.document["warnings"])
    ms = before.predict(net, 64).latency_ms
    rows.write_text(HEADER + f"{net},64,{2 * ms},fp32,inference\n")
    slower, again = lolat.fit([file, rows], tmp_path / "one.json"), tmp_path / "two"
    again.mkdir()
    lolat.fit([tmp_path / "one.json", rows], again / "one.json")
    once, twice = (json.loads((f / "one.json").read_text()) for f in (tmp_path, again))
    assert once == twice
    assert slower.predict(net, 64).latency_ms == pytest.approx(math.sqrt(2) * ms)
    wider = slower.predict(net, 64).interval_ms, before.predict(net, 64).interval_ms
    assert wider[0][1] / wider[0][0] > wider[1][1] / wider[1][0]


@pytest.mark.parametrize(("by_host", "by_device"), [(6, 0), (0, 6), (6, 6)])
def test_rows_that_the_host_bounds_come_out_as_they_were_timed(
    tmp_path: Path, by_host: int, by_device: int
) -> None:
    """Times of small batches tell the host's time, 1.6 times the file's, others the device's, 1.3 times; n
    rows each move it by n / (n + 1) of the logarithm, and the fit claims the error that they then have.
    """
    bundled, lines, true = (
        lolat.load("rtx-4090-amp"),
        ["network,batch_size,latency_ms,precision"],
        {},
    )
    for number, (width, tokens) in enumerate(sizes(by_host + by_device, 3)):
        network = tmp_path / f"{chr(97 + number)}.json"
        batch_size, factor = (1, 1.6) if number < by_host else (512, 1.3)
        graph = encoder(64, 1 + number) if number < by_host else encoder(width, tokens)
        network.write_text(json.dumps(graph.to_dict()))
        was = bundled.predict(str(network), batch_size)
        assert was.host_bound == (number < by_host)
        true[str(network)] = batch_size, was.latency_ms, factor
        lines.append(f"{network},{batch_size},{factor * was.latency_ms},amp")
    (path := tmp_path / "own.csv").write_text("\n".join(lines))
    said: list[str] = []
    fitted = lolat.fit(["rtx-4090-amp", path], warn=said.append)
    assert said == [fitted.file.warnings[-1]]
    for network, (batch_size, ms, factor) in true.items():
        now = fitted.predict(network, batch_size).latency_ms
        assert now / ms == pytest.approx(factor ** (6 / 7), rel=0.02)
    claimed = fitted.file.document["predictors"]["kernels"]["error"]["left_out"]["median"]
    found = fitted.evaluate_table(path).summary["median"]
    assert claimed == pytest.approx(found, abs=0.02)
    assert "; its times are now" in fitted.file.warnings[-1]
    assert ("the host bounds 6 of them" in fitted.file.warnings[-1]) == (by_host > 0)


def mlp(folder: Path, layers: int = 4) -> Path:
    """A file of dense layers, each 1024 x 1024, of 512 tokens."""
    b = GraphBuilder(f"mlp{layers}", "torch")
    x = b.input((1, 512, 1024))
    for _ in range(layers):
        x = b.add("dense", [x], (1, 512, 1024), in_features=1024, out_features=1024, bias=False)
    net = folder / f"mlp{layers}.json"
    net.write_text(json.dumps(b.build([x]).to_dict()))
    return net


@pytest.mark.parametrize(
    ("gpus", "share", "why"),
    [
        (1, 1.05, r"line 2: .* 328 TFLOPS on each GPU, 105 %"),
        (1, 0.95, ""),
        (8, 0.95, "times as long"),
    ],
)
def test_steps_of_another_number_of_gpus_are_refused(
    tmp_path: Path, gpus: int, share: float, why: str
) -> None:
    """An A100 has 312 TFLOPS; a sample takes six FLOPs a weight and token, but for the first input."""
    rate = share * 312e12 / ((6 * 4 - 2) * 512 * 1024**2)
    rows = tmp_path / "rows.csv"
    header = "network,batch_size,precision,gpus,optimizer,samples_per_s"
    rows.write_text(f"{header}\n{mlp(tmp_path)},256,amp,{gpus},sgd,{rate}\n")
    if why:
        with pytest.raises(InputError, match=why):
            lolat.fit(["a100-sxm-80gb", rows])
    else:
        lolat.fit(["a100-sxm-80gb", rows])


def test_the_log_of_a_run_sets_the_level_of_its_precision(tmp_path: Path) -> None:
    """Of a GPU by its name: 1.5 times the passes, beside the update and the exchange, which stay.

    Others have half of it, as one row tells little.
    """
    net = mlp(tmp_path)
    asked = {"optimizer": "adamw", "replicas": 4, "accumulate": 2, "samples": 10**6}

    def parts(model: lolat.Model, network: Path = net) -> tuple[float, float]:
        found = model.cost(network, 256, **asked).options[0].parts_ms
        passes = (found["forward"] or 0.0) + (found["backward"] or 0.0)
        return passes, (found["update"] or 0.0) + (found["exchange"] or 0.0)

    def width(model: lolat.Model, network: Path) -> float:
        low, high = model.cost(network, 256, **asked).options[0].interval_s or (1.0, 1.0)
        return math.log(high / low)

    before = lolat.load("a100-sxm-80gb").run_as("amp")
    passes, rest = parts(before)
    rate = 1e3 * 256 * 4 * 2 / (1.5 * passes + rest)
    log = {"log_history": [{"loss": 1.0}, {"train_samples_per_second": rate}]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(log))
    rows, header = tmp_path / "rows.csv", "network,batch_size,gpus,accumulate,precision"
    rows.write_text(f"{header},samples_per_s\n{net},256,4,2,amp,trainer_state.json\n")
    fitted = lolat.fit(["a100-sxm-80gb", rows], tmp_path / "mine.json")
    assert fitted.file.document["device"] == "a100-sxm-80gb (amp)"
    other = mlp(tmp_path, 6)
    for network, expected in ((net, 1.5), (other, 1.5**0.5)):
        pairs = zip(parts(fitted, network), parts(before, network), strict=True)
        level, rest = (now / was for now, was in pairs)
        assert (level, rest) == (pytest.approx(expected, rel=0.01), pytest.approx(1.0, rel=0.1))
    assert width(fitted, net) < 0.6 * width(before, net)
    assert width(fitted, other) > width(before, other)
    for network, of in ((net, "at the level of 1 own run"), (other, "no own run is like this one")):
        assert any(text.startswith(of) for text in fitted.cost(network, 256, **asked).warnings)
    (step,) = fitted.evaluate_table([rows], training=True).rows()
    assert step["predicted_ms"] == pytest.approx(1e3 * 256 * 4 * 2 / rate, rel=1e-3)
    with pytest.raises(InputError, match="a training step; --training"):
        fitted.evaluate_table([rows])
    # A step is evidence of training that network, and of nothing else.
    mine = lolat.load(tmp_path / "mine.json")
    assert [mine.cost(n, 256, **asked).in_domain for n in (net, other)] == [True, False]
    for now, was in (
        (mine.predict(net), before.predict(net)),
        (mine.predict(other), before.predict(other)),
    ):
        assert now.in_domain is was.in_domain is False
        assert now.warnings == was.warnings
        assert any(text.startswith("measured on a100") for text in now.warnings)
    # In the precision of the measurements it is as before, from the file too, and then in amp again.
    found = mine.run_as("fp32")
    plain = lolat.load("a100-sxm-80gb").run_as("fp32")
    assert parts(found, net) == parts(plain, net)
    assert not any("measured in " in text for text in found.cost(net, 256).warnings)
    assert parts(found.run_as("amp"), net) == parts(fitted, net)
    assert found.device == plain.device
    # A step that trains less, or of a far batch size, is another one.
    for far in ({"batch_size": 2048}, {"batch_size": 256, "tune": "frozen"}):
        warnings = fitted.cost(net, **far).warnings
        assert any(text.startswith("no own run is like this one") for text in warnings)
    for factor, is_wider in ((1.0, False), (3.0, True)):
        lines = [
            f"{net},{n},amp,adamw,{4e3 * n / rate * by}" for n, by in ((512, factor), (513, 1.0))
        ]
        rows.write_text("\n".join(["network,batch_size,precision,optimizer,iteration_ms", *lines]))
        two = lolat.fit(["a100-sxm-80gb", rows])
        assert (width(two, net) > 1.5 * width(fitted, net)) is is_wider


@pytest.mark.parametrize(("timed", "asked"), [("fp16", "amp"), ("fp32", "fp16"), ("fp32", "amp")])
def test_own_rows_set_the_level_of_every_precision(tmp_path: Path, timed: str, asked: str) -> None:
    """Rows that take 1.5 times as long as the file says are of a slower host, in whatever precision."""
    bundled, batch_size = lolat.load("rtx-4090-amp"), 256
    lines = ["network,batch_size,latency_ms,precision"]
    for number, (width, tokens) in enumerate(sizes(6, 3)):
        network = tmp_path / f"{chr(97 + number)}.json"
        network.write_text(json.dumps(encoder(width, tokens).to_dict()))
        ms = 1.5 * bundled.predict(str(network), batch_size, precision=timed).latency_ms
        lines.append(f"{network},{batch_size},{ms},{timed}")
    (path := tmp_path / "own.csv").write_text("\n".join(lines))
    fitted = lolat.fit(["rtx-4090-amp", path])
    level = {}
    for precision in (timed, asked):
        now, was = (
            model.predict(str(tmp_path / "a.json"), batch_size, precision=precision)
            for model in (fitted, bundled)
        )
        level[precision] = now.latency_ms / was.latency_ms
    assert 1.2 < level[timed] < 1.55
    assert level[asked] == pytest.approx(level[timed], rel=0.1)
    assert any(f"own networks were timed in {timed} alone" in text for text in now.warnings)


def test_a_network_trained_in_part_is_left_out_by_name(tmp_path: Path) -> None:
    """Its step is no step of what is counted; a forward pass of it is as any other."""
    told: list[str] = []
    path = table(tmp_path, sizes(6, 1), 2.0, "steps.csv")
    frozen = {**encoder(256, 128).to_dict(), "training": ["1 of its 4 parameters are frozen"]}
    (tmp_path / "frozen.json").write_text(json.dumps(frozen))
    row = f"{tmp_path / 'frozen.json'},8,1.0,fp16,"
    path.write_text(path.read_text() + f"{row}training\n{row}inference\n")
    model = lolat.fit(path, warn=told.append)
    assert model.file.document["environment"]["fitted_on"]["networks"] == 7
    assert any("frozen.json: " in t and "1 of its 4 parameters are frozen" in t for t in told)


@pytest.mark.parametrize(
    ("optimizers", "within"),
    [(["adam"], "adam"), (["none"], "none"), ([""], ""), (["sgd", "adam"], "")],
)
def test_a_table_says_whose_update_its_steps_contain(
    tmp_path: Path, optimizers: list[str], within: str
) -> None:
    head, *lines = table(tmp_path, sizes(12, 1), 1.8, "steps.csv").read_text().splitlines()
    rows = [f"{line},{optimizers[n % len(optimizers)]}" for n, line in enumerate(lines)]
    (tmp_path / "with.csv").write_text("\n".join([f"{head},optimizer", *rows]))
    entry = lolat.fit(tmp_path / "with.csv").file.document["predictors"]["kernels"]
    assert entry.get("training_optimizer", "") == within


def test_an_optimizer_that_is_not_known_leaves_its_row_out(tmp_path: Path) -> None:
    path = table(tmp_path, sizes(12, 1), 1.8, "steps.csv")
    head, first, *lines = path.read_text().splitlines()
    path.write_text("\n".join([f"{head},optimizer", f"{first},lamb", *(f"{n},sgd" for n in lines)]))
    said: list[str] = []
    lolat.fit(path, warn=said.append)
    assert any("optimizer is 'lamb'" in line for line in said)
    told = f"{path}: 11 rows of training in float16: weights, gradients and optimizer states"
    assert any(line.startswith(told) and line.endswith("the precision amp") for line in said)


def test_inference_by_training_steps_alone_is_outside(tmp_path: Path) -> None:
    steps, passes = (table(tmp_path, sizes(12, 1), back, f"{back}.csv") for back in (1.8, None))
    alone = lolat.fit(steps).predict(encoder(512, 128), SAMPLES)
    assert alone.in_domain is False
    assert any("only training steps were timed" in remark for remark in alone.warnings)
    both = lolat.fit([steps, passes]).predict(encoder(512, 128), SAMPLES)
    assert not any("only training steps" in remark for remark in both.warnings)


@pytest.mark.parametrize("factor", [1.3, 1.5, 2.0])
def test_a_row_is_answered_as_it_was_timed_whoever_bounds_its_network(
    tmp_path: Path, factor: float
) -> None:
    """The shared level leaves the launches of a host-bound network as they are; its own row does not."""
    before, times = lolat.load("rtx-3090-amp"), {}
    for width, tokens, is_host_bound in ((2048, 512, False), (1536, 512, False), (64, 16, True)):
        net = tmp_path / f"net{width}.json"
        net.write_text(json.dumps(encoder(width, tokens).to_dict()))
        cost = before.cost(net, SAMPLES, optimizer="momentum")
        assert any("host-bound" in text for text in cost.warnings) is is_host_bound
        times[net] = factor * cost.options[0].iteration_ms
    rows = [f"{net},{SAMPLES},{ms},amp,training,momentum" for net, ms in times.items()]
    (tmp_path / "rows.csv").write_text("\n".join([f"{HEADER.strip()},optimizer", *rows]))
    fitted = lolat.fit(["rtx-3090-amp", tmp_path / "rows.csv"])
    for net, ms in times.items():
        found = fitted.cost(net, SAMPLES, optimizer="momentum").options[0]
        assert found.iteration_ms == pytest.approx(ms, rel=0.005)


def rows_in_file(folder: Path, ms_of: dict[str, Sequence[float]]) -> Path:
    """A table of rows of networks, files by name; the n-th time has n batches of 8."""
    lines = [
        f"{folder / name}.json,{8 * (n + 1)},{ms},fp16,inference\n"
        for name, times in ms_of.items()
        for n, ms in enumerate(times)
    ]
    (path := folder / "rows.csv").write_text(HEADER + "".join(lines))
    return path


def test_rows_of_too_few_networks_are_refused_however_many(tmp_path: Path) -> None:
    """Twenty rows of one network, of four, and of five names of which two are one network."""
    names = "abcde"
    for name, width in zip(names, (64, 128, 256, 512, 512), strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(encoder(width, 128).to_dict()))
    for count, distinct in ((1, 1), (4, 4), (5, 4)):
        times = {name: [1.0 + 0.01 * n for n in range(20 // count)] for name in names[:count]}
        with pytest.raises(InputError) as error:
            lolat.fit(rows_in_file(tmp_path, times))
        assert error.value.code == "too-few-points"
        assert f"20 rows of {distinct} network" in str(error.value)


def test_a_network_is_left_out_with_all_its_batch_sizes(tmp_path: Path) -> None:
    """Five networks at rates that are 1, 2, 4, 8 and 16 times as fast: none tells of another.

    Each row of a network tells of its others, so a row left out alone would be right within 10 %.
    """
    widths, given = (256, 320, 384, 448, 512), dict[str, list[float]]()
    for n, width in enumerate(widths):
        name = f"vit_{'abcde'[n]}"  # of one family
        (tmp_path / f"{name}.json").write_text(json.dumps(encoder(width, 128).to_dict()))
        one = 16 * width * width * 128 / MACS_PER_MS * 2**n
        given[name] = [one * 8 * k for k in range(1, 5)]
    model = lolat.fit(rows_in_file(tmp_path, given))
    held = model.file.document["environment"]["fitted_on"]
    assert (held["networks"], held["network_rows"]) == (5, 20)
    assert "20 rows of 5 networks" in fitted_on_words(model.file)
    assert model.predictors[model.default].error["left_out"]["median"] > 0.3
