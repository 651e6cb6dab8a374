"""`lolat cost` and `lolat predict` of several devices: the lines and codes of the commands."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

import lolat as package
from lolat.units import byte_size, digits, dollars, duration, milliseconds
from tests.cli.commands import Command, one_line
from tests.training.several import PRICES, listed, network


def test_batch_sizes_beside_each_other(lolat: Command, prices: str, net: str) -> None:
    ask = ("--samples", 10_000, "--prices", prices)
    found = lolat.answer("cost", "v100-fp32", net, "--batch-size", "64,128", *ask)
    alone = [lolat.answer("cost", "v100-fp32", net, "--batch-size", n, *ask) for n in (64, 128)]
    assert found["answers"] == alone
    several = package.load("v100-fp32").cost(net, [64, 128], 10_000, prices=prices)
    assert found == json.loads(json.dumps(several.to_dict()))
    lines = lolat.done("cost", "v100-fp32", net, "--batch-size", "64,128", *ask).out.splitlines()
    best = r"Cheapest and fastest: 1 x v100 .*, batch (64|128), "
    assert any(re.match(best, line) for line in lines)


def test_rows_of_several_machines_are_marked(lolat: Command, tmp_path: Path, net: str) -> None:
    """Of four V100 in a machine two are joined inside; the only A100s are one in each machine."""
    prices = listed(tmp_path, "four,8,V100-32GB,4", "one,2.5,A100,1")
    ask = ("cost", net, "--prices", prices, "--batch-size", 64, "--samples", 10_000)
    lines = lolat.done(*ask, "--on", "v100,a100", "--replicas", "2,8").out.splitlines()
    rows = filter(None, (re.match(r"([va]100) \(.*?\)  .*?  (\d)  ", line) for line in lines))
    across = {row.groups(): row.string.endswith("^") for row in rows}
    assert across == {(device, n): (device, n) != ("v100", "2")
                      for device in ("v100", "a100") for n in "28"}  # fmt: skip
    assert any(line.startswith("^ several machines") for line in lines)
    hourly = ["--samples", "4000", "--batch-size", "2", "--replicas", "8", "--price-per-hour", "2"]
    given = lolat.done("cost", "h100-fp32", net, *hourly).out
    assert "several machines" not in given, "the price is of a device, in whatever machine"
    alone = lolat.done(*ask[:2], *ask[2:], "--on", "a100", "--replicas", "8").out
    assert re.search(
        r"^Cheapest and fastest: 8 x a100.*, 8 separate machines over 10 Gbit/s, assumed",
        alone,
        re.M,
    )
    by_number = lolat.done("cost", "a100-fp32", *ask[1:], "--replicas", "1,2").out.splitlines()
    assert [line.split()[0] for line in by_number if re.search(r"\* +\^$", line)] == ["2"]


def test_a_batch_of_all_devices_is_shown_and_a_large_one_is_told(lolat: Command, net: str) -> None:
    """Goyal et al. (2017): accuracy of ResNet-50 falls above 8,192."""
    ask = (net, "--samples", 10**7, "--replicas", 8, "--batch-size", "1024,1025")
    lines = lolat.done("cost", "--on", "v100-fp32", *ask).out.splitlines()
    assert any(line.endswith("; devices: 8") for line in lines)
    rows = [line for line in lines if line.startswith("v100 ")]
    assert {w for row in rows for w in row.split()} >= {"1,024", "8,192", "1,025", "8,200"}
    assert any(line.startswith("Cheapest: ") and " in all)" in line for line in lines)
    assert (
        "· batch 1,024 to 1,025 x 2 on each device, 16,384 to 16,400 in all ·"
        in lolat.done("cost", "--on", "v100-fp32", *ask, "--accumulate", 2).out.partition("\n")[0]
    )
    small, large = lolat.answer("cost", "v100-fp32", *ask)["answers"]
    assert not any("in all" in w for w in small["warnings"])
    assert any("a batch of 8,200 in all" in w for w in large["warnings"])


def test_a_named_device_without_an_answer_ends_with_2(lolat: Command, net: str) -> None:
    ask = ("cost", net, "--batch-size", 64, "--precision", "amp", "--on")
    done = lolat(*ask, "v100-fp32,p100-fp32")
    assert (done.code, one_line(done.err)) == (
        2,
        "lolat: no answer of p100-fp32: its reason is above",
    )
    assert re.search("^p100-fp32: precision amp", done.out, re.M)
    assert lolat(*ask, "v100-fp32,a100-fp32").code == 0


def test_words_of_trainers_are_understood(lolat: Command, net: str) -> None:
    ask = ("cost", "a100-fp32", net, "--batch-size", 64)
    usual = {
        "--precision": "bf16",
        "--sharding": "fsdp",
        "--optimizer": "adamw",
        "--samples": 1_280_000,
    }
    theirs = {"--precision": "torch.BFloat16", "--sharding": "ZeRO3", "--optimizer": "adamw_torch",
              "--samples": "1.28M"}  # fmt: skip
    ours, others = (
        lolat.answer(*ask, "--replicas", 8, *(w for pair in given.items() for w in pair))
        for given in (usual, theirs)
    )
    assert ours == others
    for option, value, said in (
        ("--optimizer", "lamb", "such as lamb, are not predicted"),
        ("--sharding", "tensor", "tensor and pipeline parallelism are not predicted"),
        ("--tune", "qlora:16", "QLoRA is not predicted"),
    ):
        done = lolat(*ask, option, value)
        assert done.code == 2
        assert said in one_line(done.err)
    alone = lolat.answer(*ask, "--sharding", "zero1")["warnings"]
    assert "--sharding zero1: one device divides nothing (--replicas K)" in alone


def test_what_does_not_fit_ends_with_3(lolat: Command, net: str) -> None:
    ask = ("cost", "p4-fp32", net, "--batch-size", 10**6, "--samples", 10**7)
    done = lolat(*ask)
    assert (done.code, "s an iteration" in done.out) == (3, True)
    assert "DOES NOT FIT" in done.err
    answer = json.loads(lolat(*ask, "--json").out)
    held = byte_size(answer["memory_bytes"]), byte_size(answer["available_bytes"])
    said = f"It does not fit on 1 x p4: {held[0]} of {held[1]}; it fits with {answer['would_fit'][0]} ("
    time, *price = re.match(re.escape(said) + r"1 x p4, (.+?)(?:, (\$.+))?\)", done.out).groups()
    smaller = answer["would_fit"][0].split()[1::2]
    ask_smaller = *ask[:4], smaller[0], "--accumulate", smaller[1], *ask[5:]
    (option,) = json.loads(lolat(*ask_smaller, "--json").out)["options"]
    told = option["dollars"] and dollars(option["dollars"])
    assert (time, *price) == (duration(option["total_s"]), told)
    found = answer["fits"], answer["cheapest"], answer["options"][0]["dollars"]
    assert found == (False, None, None)
    assert answer["would_fit"][0] in done.err
    for command in ("predict", "report", "explain"):
        done = lolat(command, "p4-fp32", net, "--batch-size", 10**6)
        assert done.code == 3
        assert done.out.startswith("DOES NOT FIT: it needs ")
        assert "does not fit into its memory" in done.err
    assert lolat("predict", "p4-fp32", net, "--batch-size", f"1,{10**6}").code == 0  # one does


def test_among_several_a_device_without_the_precision_is_told(lolat: Command, net: str) -> None:
    ask = ("predict", net, "--on", "a100,t4", "--precision", "bf16")
    done, found = lolat(*ask), json.loads(lolat(*ask, "--json").out)
    assert [p["device"] for p in found["answers"]] == ["a100"]
    assert "T4" in found["left_out"]["t4"]
    assert (done.code, "T4" in done.out) == (2, True)
    assert "T4" in repr(package.predict(network(), ["a100", "t4"], precision="bf16"))


def test_each_device_in_its_fastest_precision(lolat: Command, net: str, tmp_path: Path) -> None:
    ask = ("predict", net, "--batch-size", 64, "--on", "a100,p4", "--precision")
    best = lolat.json(*ask, "best")["answers"]
    plain = lolat.json(*ask, "fp32")["answers"]
    others = [package.load("a100-fp32").run_as(p).predict(network(), 64) for p in ("amp", "fp16")]
    assert best[0]["latency_ms"] <= min(o.latency_ms for o in others)
    assert best[0]["latency_ms"] < plain[0]["latency_ms"]
    assert (best[1]["precision"], best[1]["latency_ms"]) == ("fp32", plain[1]["latency_ms"])
    lolat(*ask, "best", "--csv", tmp_path / "best.csv")
    with open(tmp_path / "best.csv", newline="") as file:
        written = [(row["precision"], row["launch"]) for row in csv.DictReader(file)]
    assert written == [(answer["precision"], answer["launch"]) for answer in best]


def test_several_gpus_are_ranked_in_their_fastest_precisions(
    lolat: Command, prices: str, net: str
) -> None:
    """Devices that nobody asked in a precision take their fastest, others keep the one they have."""
    ask = ("predict", net, "--prices", prices, "--batch-size", "1,64", "--on", "v100,a100,rtx-4090")
    kept = [package.load("v100").run_as("fp32"), package.load("rtx-4090").run_as("amp")]
    found = package.predict(network(), kept, batch_size=[64])
    assert [p.precision for p in found] == ["fp32", "amp"]
    free = package.predict(network(), ["v100", "rtx-4090"], batch_size=[64])
    assert ["each in its fastest" in repr(one) for one in (found, free)] == [False, True]
    for same in (
        ask,
        (*ask, "--precision", "fp16"),
        (*ask, "--precision", "best"),
        (*ask[:-1], "v100,a100"),
    ):
        lines = lolat.done(*same).out.splitlines()
        assert "vs. first" in lines[1]
        assert [x.partition(":")[0] for x in lines if x.startswith("Cheapest at")] == [
            "Cheapest at batch 1", "Cheapest at batch 64"
        ]  # fmt: skip


def test_assumed_hosts_do_not_compare_gpus(lolat: Command, net: str) -> None:
    """At batch 1 their hosts launch longer than they run; with one host given, or at batch 64, they are."""
    ask = ("predict", net, "--on", "a100,v100")
    told = "Host-bound on a100, v100: these times compare assumed hosts"
    lines = lolat.done(*ask).out.splitlines()
    assert any(line.startswith(told) for line in lines)
    assert not re.search(r" \d\.\d\dx ", lines[2])
    assert told in repr(package.predict(network(), ["a100", "v100"]))
    for given in (("--host-us", 12), ("--batch-size", 64)):
        out = lolat.done(*ask, *given).out
        assert "assumed hosts" not in out
        assert re.search(r"v100 .* \d\.\d\dx ", out)


def test_the_cheapest_by_hosts_that_differ_says_so(lolat: Command, prices: str, net: str) -> None:
    """The hosts of these two are assumed to take 12 and 20 us: with 20 us given for both another one is."""
    Path(prices).write_text(f"{PRICES}new,1.0,RTX4090,1\nold,0.85,RTX3090,1\n")
    ask = ("predict", net, "--on", "rtx-4090,rtx-3090", "--prices", prices)

    def cheapest(*more: object) -> str:
        (line,) = (x for x in lolat.done(*ask, *more).out.splitlines() if x.startswith("Cheapest:"))
        return line

    with_one = {
        name: re.match(r"Cheapest: (\S+),", cheapest("--host-us", us))[1]
        for name, us in (("fast", 12), ("slow", 20))
    }
    assert with_one == {"fast": "rtx-3090", "slow": "rtx-3090"}
    assert cheapest().startswith("Cheapest: rtx-4090, ")
    told = (
        "the times of rtx-4090, rtx-3090 depend on assumed launch overheads; with the longest of them for "
        "all: rtx-3090"
    )
    assert f"; {told}" in cheapest()
    assert "assumed" not in cheapest("--host-us", 20)
    assert "assumed" not in cheapest("--batch-size", 1024)


def test_each_batch_is_compared_with_the_first_device_at_that_batch(
    lolat: Command, net: str, tmp_path: Path
) -> None:
    table = tmp_path / "out.csv"
    ask = ("predict", net, "--on", "a100,v100", "--batch-size", "64,256", "--csv", table)
    lines = lolat.done(*ask).out.splitlines()
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    ms = {
        (row["device"].partition("-")[0], row["batch_size"]): float(row["latency_ms"])
        for row in rows
    }
    for row in rows:
        name, size = row["device"].partition("-")[0], row["batch_size"]
        per_s = 1e3 * int(size) / ms[name, size]
        assert float(row["samples_per_s"]) == pytest.approx(per_s, rel=1e-5)
        ratio = ms[name, size] / ms["a100", size]
        shown = rf"^{name}(-\S+)? .* {size} .* {re.escape(digits(per_s))} +{ratio:.2f}x "
        assert [line for line in lines if re.search(shown, line)], shown
    assert ms["v100", "64"] != ms["a100", "64"]
    alone = lolat.done("predict", "a100-fp32", net, "--batch-size", "64,256").out
    assert "vs. first" not in alone  # the samples a second say it


def test_a_price_of_a_card_with_another_memory_is_told(
    lolat: Command, tmp_path: Path, net: str
) -> None:
    """The A100 by its bare name is the PCIe card of 40 GB, which the list has not."""
    prices = listed(tmp_path, "large,2,A100-80GB,1", "v,1,V100-32GB,1")
    out = lolat.done("predict", net, "--on", "a100,v100", "--prices", prices).out
    assert "a100: large (1 x A100-80GB; 80 GiB, this card has 40), $2.00" in out
    assert "v100: v (1 x V100-32GB), $1.00" in out


def test_channels_last_is_offered_where_it_is_faster(lolat: Command, net: str) -> None:
    """Convolutions in half precision turn tensors that come channels first; a card takes the faster layout
    by itself, a profile in one mode does not.
    """
    ask = ("cost", "a100-fp32", net, "--batch-size", 64)
    model = package.load("a100-fp32")
    first, last = (
        model.run_as("amp", channels_last=is_last).cost(network(), 64).options[0].iteration_ms
        for is_last in (False, True)
    )
    assert last < 0.8 * first
    offered = f"In amp, channels last it takes {last / first:.2f} times as long: --channels-last"
    assert offered in lolat.done(*ask, "--precision", "amp").out.splitlines()
    said = model.cost(network(), 64, precision="amp").report()
    assert offered.replace("--channels-last", "channels_last=True") in said.splitlines()
    for more in ((), ("--precision", "amp")):
        card = lolat.done("cost", "a100", *ask[2:], *more).out
        assert not re.search("as long: --(channels|precision)", card)
        assert f"\n{milliseconds(last)} an iteration" in card


def test_updates_of_one_device_in_several_numbers_differ(lolat: Command, net: str) -> None:
    ask = ("cost", "a100", net, "--batch-size", 128, "--samples", 10**6)
    told = "Updates differ, 128 to 1,024 samples; for equal ones --global-batch-size 256, or that of your "
    told += "recipe, with --batch-size auto"
    assert told in lolat.done(*ask, "--replicas", "1,8").out.splitlines()
    assert "Updates" not in lolat.done(*ask, "--replicas", "8").out


def test_samples_as_people_write_them(lolat: Command, net: str) -> None:
    def samples(written: str) -> int:
        ask = ("cost", "p4", net, "--batch-size", 8, "--samples", written, "--json")
        return int(json.loads(lolat(*ask).out)["samples"])

    assert [samples(written) for written in ("12000", "1.2e4", "12_000")] == [12_000] * 3
    for wrong in ("1.5", "1e-3", "many", "inf", "nan", "0e0"):
        assert lolat("cost", "p4", net, "--batch-size", 8, "--samples", wrong).code == 2


def test_each_row_says_on_what_it_rests(lolat: Command, net: str) -> None:
    """By what each device says when it is asked alone; the table is little wider than a page."""
    on = {"rtx-3090-amp": "", "rtx-4090-amp": "~", "v100-fp32": "~!"}
    ask = (net, "--batch-size", 512, "--samples", 10**7, "--max-hours", 10**3, "--precision", "amp")
    lines = lolat.done("cost", "--on", ",".join(on), *ask).out.splitlines()
    start = lines.index("") + 1
    table = lines[start : lines.index("", start)]
    assert len(table) > len(on)
    assert max(map(len, table)) <= 134
    for name, marks in on.items():
        said = lolat.done("cost", name, *ask).err
        assert ("estimated from the forward one" in said) == ("~" in marks)
        assert ("is estimated from the data sheet" in said) == ("!" in marks)
        for row in table:
            if row.startswith(f"{name.rpartition('-')[0]} "):
                assert row.split()[-1].strip("*") in ([marks] if marks else ["", "yes"])
    assert [line[0] for line in lines if line[:2] in ("* ", "~ ", "! ")] == ["*", "~", "!"]
    alone = lolat.json("cost", "--on", "rtx-3090-amp,v100-fp32", *ask)["answers"]
    assert [(a["estimated"], a["in_domain"]) for a in alone] == [(False, True), (True, False)]


def test_samples_a_second(lolat: Command, net: str) -> None:
    """All devices' batches over an iteration's seconds; without samples each row has both figures."""
    ask = (net, "--batch-size", 64)
    found = json.loads(lolat("cost", "a100-fp32", *ask, "--replicas", "1,4", "--json").out)
    for option in found["options"]:
        by_hand = 64 * option["devices"] / (option["iteration_ms"] / 1e3)
        assert option["samples_per_s"] == pytest.approx(by_hand)
    said = lolat.done("cost", "a100-fp32", *ask).out
    first = found["options"][0]
    low, high = map(digits, first["interval_ms"])
    sure = f" an iteration (90 % between {low} .. {high}), "
    assert f"{sure}{digits(first['samples_per_s'])} " in said
    on = ("cost", "--on", "a100-fp32,t4-fp32", "--precision", "fp32", *ask, "--replicas", "1,4")
    lines = lolat.done(*on).out.splitlines()
    assert "Give --samples N for epochs, and with a price their cost." in lines
    compared = repr(
        package.compare(network(), 64, "a100-fp32,t4-fp32", precision="fp32", replicas=[1, 4])
    )
    times = sorted(o["iteration_ms"] for a in lolat.json(*on)["answers"] for o in a["options"])
    assert f": iterations of {milliseconds(times[0])} to {milliseconds(times[-1])}>" in compared
    assert "precision: fp32" in lines
    heads = lines[lines.index("precision: fp32") + 1].split()
    assert heads[-4:] == ["iteration", "samples/s", "memory", "marks"]
    options = [o for a in lolat.json(*on)["answers"] for o in a["options"]]
    rows = [line for line in lines if line.startswith(("a100 ", "t4 "))]
    assert len(rows) == len(options) == 4
    for o in options:
        figures = rf" {digits(o['iteration_ms'])} ms +{digits(o['samples_per_s'])}(?!\S)"
        assert [row for row in rows if re.search(figures, row)]


def test_each_price_of_a_million_samples(lolat: Command, prices: str, net: str) -> None:
    """US$ an hour of one device x hours of a million samples, one after the other."""
    Path(prices).write_text(f"{PRICES}h,9,H100,1\n")
    ask = ("predict", net, "--on", "v100,a100,t4", "--batch-size", 16, "--prices", prices)
    answers = {p["device"]: p for p in lolat.json(*ask)["answers"]}
    for name, hourly in (("v100", 2.0), ("a100", 3.0)):
        hours = answers[name]["latency_ms"] / 16 * 1e6 / 1e3 / 3600
        assert answers[name]["price_per_hour"] == hourly
        assert answers[name]["instance"] in lolat.done(*ask).out
        assert answers[name]["dollars_per_million"] == pytest.approx(hourly * hours)
    assert answers["t4"]["dollars_per_million"] is None
    cheapest = min(("v100", "a100"), key=lambda n: answers[n]["dollars_per_million"])
    limit = max(a["interval_ms"][1] for a in answers.values())
    assert f"Cheapest within {limit:g} ms: {cheapest}, $" in (
        lolat.done(*ask, "--max-ms", limit).out
    )
    # Both prices lie within the other's interval of time.
    (other,) = {"v100", "a100"} - {cheapest}
    ratio = answers[other]["dollars_per_million"] / answers[cheapest]["dollars_per_million"]
    low, high = (ms / answers[other]["latency_ms"] for ms in answers[other]["interval_ms"])
    most = answers[cheapest]["interval_ms"][1] / answers[cheapest]["latency_ms"]
    alike = ratio <= most or ratio * low <= 1.0 <= ratio * high
    (line,) = (x for x in lolat.done(*ask).out.splitlines() if x.startswith("Cheapest:"))
    told = f"; too close to call against {other} (+{100 * (ratio - 1):.2g} %, "
    assert (told in line) == alike


def test_a_device_whose_memory_is_not_known_is_left_out_among_several(
    lolat: Command, net: str
) -> None:
    """Of the largest batch; alone it is an error, and so are several of which none is left."""
    ask, unknown = ("--batch-size", "auto"), "i7-12700h-compiled,i9-10940x-compiled"
    done = lolat("predict", net, "--on", f"a100,{unknown}", *ask, "--precision", "best")
    assert done.code == 2
    (line,) = (x for x in done.out.splitlines() if "memory is not known" in x)
    assert line.startswith("i7-12700h-compiled, i9-10940x-compiled: ")
    found = json.loads(lolat("predict", net, "--on", f"a100,{unknown}", *ask, "--json").out)
    assert [p["device"] for p in found["answers"]] == ["a100"]
    assert list(found["left_out"]) == unknown.split(",")
    for on in (unknown, "i7-12700h-compiled"):
        lost = lolat("predict", net, "--on", on, *ask)
        assert (lost.code, lost.out) == (2, "")
        assert "is not known" in lost.err


def test_rows_of_another_launch_say_which(lolat: Command, net: str) -> None:
    on = "rtx-4090-amp-compiled,a100-fp32,rtx-5090-amp"
    names = {"rtx-4090": "amp, compiled", "a100": "amp", "rtx-5090": "amp"}
    ask = ("cost", net, "--batch-size", 256, "--precision", "amp", "--on", on)
    lines = lolat.done(*ask).out.splitlines()
    for name, way in names.items():
        rows = [line for line in lines if line.startswith(f"{name} ")]
        assert rows
        assert all(f" {way}  " in row for row in rows)
    (told,) = (line for line in lines if line.startswith("Launches differ: "))
    assert "compiled on rtx-4090; one for all: --launch eager" in told
    assert any(
        "as long: --channels-last" in line for line in lines if line.startswith("On a100 in ")
    )
    last = lolat.done(*ask[:-1], "rtx-4090,a100-fp32", "--channels-last").out
    assert "--precision best" not in last
    last = lolat.done(*ask, "--channels-last").out
    assert all(re.search(rf"^{name} .* {way}, channels last  ", last, re.M)
               for name, way in names.items())  # fmt: skip
    same = lolat.done(*ask[:-1], "rtx-4090,a100-fp32").out  # the GPU's name: eager as the others
    assert ("Launches" in same, "compiled" in same) == (False, False)


def fitted(lolat: Command, folder: Path, *lines: str) -> str:
    """An A100 at the level of a table."""
    (folder / "nets.csv").write_text("\n".join(lines))
    own = str(folder / "own.json")
    lolat.done("fit", "a100-sxm-80gb", folder / "nets.csv", "--output", own)
    return own


def test_own_runs_are_told_beside_devices_without_them(lolat: Command, tmp_path: Path) -> None:
    """The runs' network has no mark of an estimate; another one keeps it, and both are of another level."""
    own = fitted(lolat, tmp_path, "network,batch_size,precision,optimizer,samples_per_s",
                 "timm:resnet50,128,amp,sgd,1700")  # fmt: skip
    for of, is_own in (("timm:resnet50", True), ("timm:resnext50_32x4d", False)):
        ask = ("cost", of, "--batch-size", 128, "--precision", "amp", "--replicas", 1, "--on")
        found = lolat.json(*ask, f"{own},v100")["answers"]
        assert [(a["own_runs"], a["estimated"]) for a in found] == [(1, not is_own), (0, True)]
        lines = lolat.done(*ask, f"{own},v100").out.splitlines()
        (row,) = (line for line in lines if line.startswith(f"{found[0]['device']} "))
        assert row.endswith(("~", "!")) is not is_own
        assert len([line for line in lines if line.startswith("Levels differ: ")]) == 1
        assert "Levels differ" not in lolat.done(*ask, "a100,v100").out


def test_own_times_of_inference_are_told_beside_devices_without_them(
    lolat: Command, tmp_path: Path
) -> None:
    """They set the level of latencies and of training; in another precision than theirs nothing."""
    own = fitted(lolat, tmp_path, "network,batch_size,precision,samples_per_s",
                 "timm:resnet50,128,amp,5500")  # fmt: skip
    for command in ("predict", "cost"):
        ask = (command, "timm:resnet50", "--batch-size", 128, "--precision")
        told = f"Levels differ: own runs corrected {own} alone; "
        for precision in ("amp", "fp32"):
            out = lolat.done(*ask, precision, "--on", f"{own},v100").out
            assert (told in out) == (precision == "amp"), (command, precision)
        assert "Levels differ" not in lolat.done(*ask, "amp", "--on", "a100,v100").out


def test_the_best_come_first_in_their_way_and_no_assumed_network_is_a_tie(
    lolat: Command, tmp_path: Path
) -> None:
    """Four machines of a V100 share an assumed network, whose interval holds every price."""
    prices = listed(tmp_path, "one,3,V100-32GB,1", "four,9,A100,4")
    ask = ("cost", "timm:resnet50", "--on", "v100,a100", "--prices", prices, "--batch-size", 256,
           "--samples", 10_000, "--replicas", 4)  # fmt: skip
    lines = lolat.done(*ask).out.splitlines()
    bests = lines[1 : lines.index("")]
    mark = lines[lines.index("", len(bests) + 2) + 1]
    assert bests[0].startswith(
        "Cheapest and fastest: 4 x a100 (PCIe 40 GB) in amp, channels last, "
    )
    assert not any(line.startswith("Fastest") for line in bests)
    assert mark == "Rented, an hour: four (A100) $9.00"  # of the best alone
    assert not [line for line in bests if "% sure" in line]
    given = lolat.done(*ask, "--link-gbps", 100).out.splitlines()
    assert any(line.startswith("  probably better than 4 x v100") for line in given)


def test_one_machine_as_cheap_as_several_is_named(lolat: Command, tmp_path: Path, net: str) -> None:
    """Four machines of one V100 cost least, and one of four A100s 5 % more, or 15 %."""
    prices = listed(tmp_path, "one,1,V100-32GB,1", "four,4,A100,4")
    ask = ("cost", net, "--on", "v100,a100", "--prices", prices, "--batch-size", 64, "--samples", 10_000,
           "--replicas", 4, "--precision", "fp32")  # fmt: skip
    v100, a100 = (c["options"][0]["dollars"] for c in lolat.json(*ask)["answers"])
    for factor, is_near in ((1.05, True), (1.15, False)):
        listed(tmp_path, "one,1,V100-32GB,1", f"four,{4 * factor * v100 / a100},A100,4")
        (line,) = (x for x in lolat.done(*ask).out.splitlines() if x.startswith("Cheapest:"))
        assert "4 separate machines over 10 Gbit/s, assumed" in line
        assert ("; on one machine: 4 x a100 in fp32" in line) == is_near


def test_cards_of_one_name_are_told_apart(lolat: Command, net: str) -> None:
    """`a100` is the PCIe card of 40 GB for networks, and the SXM card of 80 GB for decoders."""
    network_lines = lolat.done("cost", net, "--on", "a100,l4", "--samples", 10**6).out.splitlines()
    decoder = ("cost", "llama-3.2-1b", "--sequence-length", 1024, "--tokens", "1e7")
    decoder_lines = lolat.done(*decoder, "--on", "a100,l4").out.splitlines()
    for lines, form in ((network_lines, "PCIe 40 GB"), (decoder_lines, "SXM 80 GB")):
        assert any(re.match(rf"(Cheapest|Fastest).*: \d x a100 \({form}\) in ", x) for x in lines)
        rows = [x for x in lines if x.startswith("a100 ")]
        assert rows
        assert all(x.startswith(f"a100 ({form})  ") for x in rows)
        assert not any(x.startswith("l4 (") for x in lines)
    assert any(
        "a100 (SXM 80 GB) · amp" in x
        for x in lolat.done(*decoder[:1], "a100", *decoder[1:]).out.splitlines()
    )
