"""The command that the page prints gives the page's figures, in each tab and whatever its form holds.

The figures are those of the command's JSON, in the words of `lolat.units`. A state that the page refuses is
one that the command refuses: then the command is made here, from what is typed.
"""

from __future__ import annotations

import html
import io
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette")
pytest.importorskip("onnx")

from starlette.testclient import TestClient

from lolat.cli.main import lolat as commands
from lolat.cli.main import run
from lolat.device.budget import varied_words
from lolat.device.file import write
from lolat.io import paths as places
from lolat.io.documents import to_json
from lolat.readers import read_now
from lolat.units import (
    LONGEST_MS,
    between,
    byte_size,
    digits,
    dollars,
    duration,
    milliseconds,
    percent,
    plural,
)
from lolat.web.fields import TABS, Field
from lolat.web.networks import NetworkCache
from lolat.web.server import create_app
from lolat.web.values import EVERY
from tests import synthetic
from tests.cli.commands import Result
from tests.web import language_models
from tests.web.pages import ORIGIN, Site

COMMAND = {
    "latency": "predict",
    "budget": "budget",
    "training": "cost",
    "decoder": "cost",
    "llm": "llm",
}
DEVICES = {view: ("gpu", "h100-vllm") if tab.subject.is_decoder else ("desk", "rtx-4090-amp", "t4-fp32")
           for view, tab in TABS.items()}  # fmt: skip
NAMES = {"network": ("ResNet50", "keras:MobileNetV2", "timm:resnet18"),
         "config": ("qwen3-32b", "llama-3.1-8b", "qwen3-30b-a3b", "llama-3.1-405b")}  # fmt: skip
SIZES = ("", "56", "32", "3,48,48", "56 56 3")


class Sent(NamedTuple):
    """The page, and the NETWORK or CONFIG of the files that were sent to it."""

    page: Site
    files: dict[str, list[str]]


def onnx_bytes(side: int | str) -> bytes:
    """A convolution and a ReLU of images of a side, or of any."""
    import onnx

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    x = helper.make_tensor_value_info("x", kind, ["N", 3, side, side])
    y = helper.make_tensor_value_info("y", kind, None)
    weights = helper.make_tensor("w", kind, [16, 3, 3, 3], [0.5] * 432)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
             helper.make_node("Relu", ["c"], ["y"])]  # fmt: skip
    made = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [weights]))
    return bytes(made.SerializeToString())


@pytest.fixture(autouse=True)
def own_folders() -> None:
    """In place of that of all pages: bundled devices are seen."""


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sent]:
    """The page in a folder with the files that were sent to it, with made-up devices and bundled ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("sent"))
        patch.setattr(places, "local_folder", lambda: Path("local"))
        patch.setenv("LOLAT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield from _sent()


def _sent() -> Iterator[Sent]:
    write(Path("desk.json"), synthetic.document(name="desk", device="a desk"))
    write(Path("gpu.json"), language_models.document())
    files = {
        "net.json": to_json(synthetic.network().to_dict(), "").encode(),
        "open size.onnx": onnx_bytes("side"), "-fixed.onnx": onnx_bytes(48),
    }  # fmt: skip
    config = {"my config.json": json.dumps(language_models.CONFIG).encode()}
    app = create_app([Path("desk.json"), Path("gpu.json")], NetworkCache(read_now))
    with TestClient(app, base_url=ORIGIN) as client:
        found = Sent(Site(client, None), {})  # type: ignore[arg-type]
        for name, view, contents in (("network", "latency", files), ("config", "llm", config)):
            for file, content in contents.items():
                Path(file).write_bytes(content)
                found.page.send(file, content, view=view)
                found.files.setdefault(name, []).append(found.page.value(name))
        yield found


# ---- What the form can hold.

NUMBERS = (1, 2, 3, 8, 12.5, 30, 64, 100, 1000, 50000)


def texts_of(field: Field) -> st.SearchStrategy[str]:
    """What a field takes: mostly its default."""
    if field.choices is not None:
        return st.just(field.default) | st.just(field.default) | st.sampled_from([*field.choices])
    if field.parse is not None:
        return st.sampled_from(["1", "64", "auto", "2,1"])  # the batch of a training
    takes = EVERY[field.name]
    able = [
        n for n in NUMBERS if takes.least <= n < takes.most and not (takes.kind is int and n % 1)
    ]
    written = st.sampled_from([f"{n:g}" for n in able] + [f"{n:g}.0" for n in able[:1]] + ["1e1"])
    if field.most > 1:
        joined = st.lists(written, min_size=1, max_size=3)
        written = st.builds(
            lambda words, by: by.join(words), joined, st.sampled_from([",", ", ", " "])
        )
    return st.one_of(st.just(field.default), st.just(field.default), written)


@st.composite
def states(draw: st.DrawFn, files: dict[str, list[str]]) -> tuple[str, list[str], dict[str, str]]:
    """(view, devices, text of each field) of the form."""
    view = draw(st.sampled_from(sorted(TABS)))
    devices = draw(st.lists(st.sampled_from(DEVICES[view]), min_size=1, max_size=2, unique=True))
    texts, named = {}, TABS[view].subject.named.name
    for name, field in TABS[view].every.items():
        if name == named:
            texts[name] = draw(st.sampled_from([*NAMES[name], *files[name], *files[name]]))
        elif name == "input_size":  # a network by name needs its framework at another size
            is_file = texts[named].startswith("upload:")
            texts[name] = draw(st.sampled_from(SIZES if is_file else ("", "224")))
        elif name == "sequence_length" and not texts[named].startswith("upload:"):
            texts[name] = ""
        elif draw(st.booleans()):
            texts[name] = draw(texts_of(field))
    if not draw(st.integers(0, 5)):
        texts[draw(st.sampled_from([name for name in TABS[view].every if name != named]))] = "x"
    return view, devices, texts


# ---- The command.


def command(words: list[str]) -> Result:
    """`lolat` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(commands, words, "lolat")
    return Result(code, out.getvalue(), err.getvalue())


def typed_command(view: str, device: str, texts: dict[str, str]) -> list[str]:
    """The command of what is typed."""
    named, *others = TABS[view].every.values()
    network = texts[named.name]
    if network.startswith("upload:"):
        network = "./" + re.sub(r"@\w{6}$", "", network.removeprefix("upload:"))
    elif not TABS[view].subject.is_decoder and ":" not in network:
        network = f"keras:{network}"
    words = [COMMAND[view], device, network]
    for field in others:
        text = texts.get(field.name, field.default)
        if field.name == "concurrency" and texts.get("request_rate", "").strip():
            continue  # a rate takes its place
        if text:
            text = re.sub(r"[,\s]+", ",", re.sub(r"\.0\b", "", text))
            words += ["--" + field.name.replace("_", "-"), text]
    return words


def in_words_of(text: str, view: str) -> str:
    """An error of the page, with options in the place of labels."""
    for field in TABS[view].every.values():
        option = "NETWORK" if field.name == "network" else "--" + field.name.replace("_", "-")
        text = text.replace(f'"{field.label}"', option)
        for value, words in (field.choices or {}).items():
            text = text.replace(f'"{field.label}: {words}"', f"{option} {value}")
    return text


# ---- The figures.


def cells(table: str) -> list[list[str]]:
    """The texts of a table's rows; those of a cell with a blank between."""
    body = table.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in body.split("</tr>")[:-1]]
    return [[words_of(cell) for cell in row] for row in rows]


def words_of(part: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", part)).split())


def check_latency(card: str, answer: Any, page: Site, number: int, count: int) -> None:
    found = answer.get("answers", [answer])
    able = [one for one in found if one["fits"] is not False] or found[:1]
    first = max(able, key=lambda one: one["batch_size"])
    title = "does not fit" if first["fits"] is False else milliseconds(first["latency_ms"])
    assert f'<p class="big">{title}</p>' in card
    said = words_of(card)
    if first["interval_ms"]:
        sure = f"90 % sure of {between(*first['interval_ms'], first['latency_ms'])} " in said
        assert sure is (first["fits"] is not False)
    assert (" samples/s" in said) is (first["fits"] is not False)  # of what cannot run it says none
    assert f"{byte_size(first['memory_bytes'])} of " in said
    for one in found:
        for remark in one["warnings"] if one is first else ():
            assert " ".join(remark.split()) in in_words_of(said, "latency"), (remark, said)
    blocks = cells(page.raw.partition('<table id="blocks">')[2])
    column = 2 if count == 1 else 1 + number
    shown = [milliseconds(b["latency_ms"]) for b in first["blocks"]]
    if len(blocks) < len(shown):  # the call of a device without one
        assert shown[-1] == "0.000 ms"
        shown = shown[:-1]
    assert [row[column] for row in blocks] == shown
    if len(found) * count > 1:
        table = page.raw.partition('<table id="compared">')[2].partition("</table>")[0]
        rows = re.findall(r"<tr><th scope=\"row\".*?</tr>", table, re.S)
        key = card.partition('aria-label="')[2].partition('"')[0]
        mine = [words_of(r) for r in rows if words_of(r).split()[0] == key]
        for row, one in zip(mine, found, strict=True):
            assert milliseconds(one["latency_ms"]) in row
            rate = digits(1e3 * one["batch_size"] / one["latency_ms"])
            assert one["fits"] is False or rate in row


def check_budget(card: str, answer: Any, *_: Any) -> None:
    title, said = varied_words(answer["vary"], answer["answer"]), words_of(card)
    title += "" if answer["next"] else " or more (largest tried)"
    assert f'<p class="big">{title} <span>within {answer["budget_ms"]:g} ms</span></p>' in card
    within = f"{'stays' if answer['sure'] else 'is predicted'} within {answer['budget_ms']:g} ms"
    assert f"{title} {within}: {milliseconds(answer['latency_ms'])}" in said
    for name in ("next", "now"):
        if step := answer[name]:
            assert f"{name}: {varied_words(answer['vary'], step['value'])} " in said
            does = step.get("latency_ms")
            assert milliseconds(does) in said or "does not fit" in said


def facts_of(part: str) -> dict[str, str]:
    """The figures below a headline, by name."""
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", part)
    return {words_of(name): words_of(text) for name, text in found}


def check_facts(part: str, cost: Any, option: Any) -> None:
    """The figures below a headline are of the row that it names, and say where memory is close."""
    found, room, size = facts_of(part), cost["available_bytes"], option["memory_bytes"]
    assert found["Iteration"] == milliseconds(option["iteration_ms"])
    assert found["Memory of a device"].startswith(byte_size(size))
    assert ("close" in found["Memory of a device"]) == (
        room is not None and 0.9 * room <= size <= 1.1 * room
    )
    assert found.get("Checkpointing") == cost["checkpointing"]
    assert " .. ".join(map(duration, option["interval_s"])) in found["90 % sure of"]
    whole = option["devices"] * option["batch_size"] * cost["accumulate"]
    assert found["Batch"].endswith(f"{whole:,} in all" if option["devices"] > 1 else found["Batch"])
    if option["mfu"] is not None:
        assert found["MFU"].startswith(percent(option["mfu"]))


def check_several(part: str, answer: Any) -> None:
    """The best of several trainings: its row, and the figures of that row."""
    best = answer["cheapest"] or answer["fastest"]
    words = re.findall(r'<p class="big">(.*?)</p>', part)[0].partition(" <span>")[0]
    assert words.endswith(f"{duration(best['total_s'])}, {dollars(best['dollars'])}")
    for cost in answer["answers"]:
        ways = [
            (cost["device"], best["device"]),
            (cost["precision"], best["precision"]),
            (cost["checkpointing"], best["checkpointing"]),
        ]
        for option in cost["options"] if all(a == b for a, b in ways) else ():
            if option["total_s"] == best["total_s"]:
                return check_facts(part, cost, option)
    raise AssertionError(best)


def check_training(card: str, answer: Any, *_: Any) -> None:
    if "answers" in answer:
        return check_several(card, answer)
    rows, said = cells(card), words_of(card)
    assert [row[0].split()[0] for row in rows] == [str(o["devices"]) for o in answer["options"]]
    totals = [option["total_s"] for option in answer["options"]]
    shown = (u for u in (3600.0, 60.0) if max(totals) >= u and min(totals) >= 0.1 * u)
    unit_s = next(shown, 1.0)
    for row, option in zip(rows, answer["options"], strict=True):
        times = (option["total_s"], *option["interval_s"])
        several = [digits(seconds / unit_s) for seconds in times]
        total, *ends = several if rows[1:] else [*map(duration, times)]
        assert f"{total} {' .. '.join(ends)}" in row
        if option["dollars"] is not None:
            assert any(
                dollars(option["dollars"]).removeprefix("$") == c.split()[0] for c in row if c
            )
    able = [o for o in answer["options"] if o.get("fits") is not False]
    best = min(able, key=lambda o: (o["dollars"] is None, o["dollars"] or o["total_s"]))
    words = [plural(best["devices"], "device"), duration(best["total_s"])]
    words += [] if best["dollars"] is None else [dollars(best["dollars"])]
    kept = answer["cheapest"] or answer["fastest"]
    if answer["max_hours"] is None and answer["max_dollars"] is None:
        assert (
            kept,
            f'<p class="big">{", ".join(words)} <span>' in card.replace("</p>", " <span>"),
        ) == (best["devices"], True)
    else:
        assert f'<p class="big">{plural(kept, "device")}, ' in card
    assert f"{byte_size(answer['memory_bytes'])} of memory on each device" in said
    check_facts(card, answer, next(o for o in answer["options"] if o["devices"] == kept))


def check_llm(card: str, answer: Any, *_: Any) -> None:
    (heads,) = cells(card.replace("thead>", "tbody>"))[:1]
    for shown, row in zip(cells(card), answer["rows"], strict=True):
        rate, at = row["request_rate"], answer["percentile"]
        load = f"{row['concurrency']:,}" if rate is None else f"{rate:g}"
        if heads[0].startswith("requests"):  # one load of all rows is said above the table
            assert shown[0].split()[0] == load
        names = ("ttft_ms", "tpot_ms") if at is None else (f"ttft_p{at}_ms", f"tpot_p{at}_ms")
        asked = {f"{name}_ms": ms for name, ms in (row["percentiles_ms"] or {}).items()}
        for head, name in zip(("first token", "per token"), names, strict=True):
            if (ms := (row | asked).get(name)) is not None:
                (column,) = (n for n, text in enumerate(heads) if text.startswith(head))
                in_seconds = milliseconds(ms, LONGEST_MS)  # as a longer one of the column may be
                assert shown[column].startswith((f"{milliseconds(ms)} ", f"{in_seconds} "))


def check_compared(page: Site, answer: Any, title: str) -> None:
    """The cheapest of several devices, as their command says it."""
    beside = page.raw.partition('id="beside"')[2].partition("</section>")[0]
    best = answer["cheapest"]
    if isinstance(best, str):
        (row,) = next(one["rows"] for one in answer["answers"] if one["name"] == best)
        assert f"Cheapest: {best}, " in beside or f": {best}, " in beside
        assert title.startswith(plural(row["gpus"], "GPU"))
    elif best:
        check_several(beside, answer)


CHECKS = {
    "latency": check_latency,
    "budget": check_budget,
    "training": check_training,
    "decoder": check_training,
    "llm": check_llm,
}


EACH = [
    ("training", ["desk"], {"network": "ResNet50", "batch_size": "1"}),
    ("latency", ["desk", "t4-fp32"], {"network": "ResNet50", "batch_size": " 1, 8,"}),
    ("latency", ["t4-fp32"], {"network": "ResNet50", "batch_size": "50000", "launch": "compiled"}),
    (
        "latency",
        ["t4-fp32", "rtx-4090-amp"],
        {"network": "ResNet50", "batch_size": "1,64", "precision": "fp16"},
    ),
    ("budget", ["rtx-4090-amp"], {"network": "ResNet50", "max_ms": "30.50", "sure": "90.0"}),
    ("budget", ["desk", "t4-fp32"], {"network": "net.json", "vary": "batch", "max_ms": "0.0001"}),
    ("budget", ["desk"], {"network": "open size.onnx", "input_size": "32", "vary": "resolution"}),
    ("training", ["t4-fp32"], {"network": "-fixed.onnx", "batch_size": "auto", "memory_gib": "10"}),
    ("latency", ["desk"], {"network": "net.json", "input_size": "32"}),  # its size is fixed
    ("llm", ["gpu", "h100-vllm"], {"config": "my config.json", "max_tpot_ms": "0.01"}),
    (
        "decoder",
        ["gpu", "h100-vllm"],
        {"config": "my config.json", "tune": "lora:16", "mean_tokens": "500"},
    ),
    ("decoder", ["h100-vllm"], {"config": "llama-3.1-8b", "sharding": "none", "tokens": "2e9"}),
    # 8 G parameters of 16 bytes fit on eight GPUs of 80 GB, not on one.
    ("decoder", ["h100-vllm"], {"config": "llama-3.1-8b", "sharding": "fsdp", "replicas": "1, 8"}),
    # Three ways to checkpoint, of which some fit on two GPUs, in parts of one global batch.
    (
        "decoder",
        ["h100-vllm", "a100-vllm"],
        {
            "config": "llama-3.1-8b",
            "checkpointing": "none,full,selective",
            "global_batch_size": "16",
            "replicas": "2,8",
        },
    ),
    ("decoder", ["l4"], {"config": "llama-3.1-8b", "checkpointing": "none, full"}),
    ("training", ["t4-fp32"], {"network": "ResNet50", "batch_size": "8,32", "max_hours": "0.001"}),
]


@pytest.mark.parametrize(("view", "devices", "texts"), EACH)
def test_the_command_of_each_tab(
    sent: Sent, view: str, devices: list[str], texts: dict[str, str]
) -> None:
    named = TABS[view].subject.named.name
    every = {spec.removeprefix("upload:")[:-7]: spec for spec in sent.files[named]}
    texts = texts | {named: every.get(texts[named], texts[named])}
    assert check(sent.page, view, devices, texts) == (
        "refused" if "net" in texts[named] and "input_size" in texts else "answered"
    )


def other(field: Field) -> str:
    """A value that is not the default of a field."""
    if field.choices is not None:
        return {
            "precision": "fp32" if "fp32" in field.choices else "bf16",
            "launch": "compiled",
            "kv_dtype": "fp8",
            "sharding": "zero1",
            "vary": "width",
        }.get(field.name, [*field.choices][-1])
    if field.name == "input_size":
        return "48"
    return "3" if field.parse or EVERY[field.name].most > 10**5 else "2"


@pytest.mark.parametrize("view", TABS)
def test_every_field_changes_what_is_said(sent: Sent, view: str) -> None:
    tab = TABS[view]
    kind, device = (0, "gpu") if tab.subject.is_decoder else (1, "rtx-4090-amp")
    named = tab.subject.named.name
    base = {named: sent.files[named][kind], "input_size": "32", "vary": "batch"}

    def said(**typed: str) -> str:
        query = [("view", view), ("model", device), *(base | typed).items()]
        text = sent.page.taken(sent.page.client.get("/", params=query).text)
        return words_of(text.partition('id="status"')[2].partition("Link and commands")[0])

    usual, fields = said(), [(n, f) for n, f in tab.every.items() if n not in NAMES]
    assert [name for name, field in fields if said(**{name: other(field)}) == usual] == []


def check(page: Site, view: str, devices: list[str], texts: dict[str, str]) -> str:
    """What a state comes to, for statistics."""
    pairs = [("view", view), *(("model", d) for d in devices), *texts.items()]
    page.taken(page.client.get("/", params=pairs).text)
    cards = re.findall(r'(<section class="card" aria-label="[^"]*">.*?</section>)', page.raw, re.S)
    if page.errors():
        assert cards == []
        for device in devices:
            done = command(typed_command(view, device, texts))
            assert done.code == 2, (done, page.errors())
        return "refused"
    printed = iter(page.commands())
    if 'id="command-compared"' in page.raw:
        line = shlex.split(next(printed))[1:]
        done = command([*line, *["--json"] * (view != "latency")])
        assert done.code in (0, 3), done
        if view == "latency":
            beside = page.raw.partition('id="beside"')[2].partition("</section>")[0]
            beside = re.sub(r"&#34;Launch: (\w+)&#34;", r"--launch \1", beside)
            beside = beside.replace("&#34;Layout of images: channels last&#34;", "--channels-last")
            beside = beside.replace("&#34;Host, µs an addition&#34;", "--host-us")
            verdicts = [*map(words_of, re.findall(r"<p>(Cheapest.*?)\.</p>", beside))]
            said = [s for s in done.out.splitlines() if s.startswith("Cheapest")]
            assert {*verdicts} == {*said}  # lines on other modes are folded
        elif done.code == 0:
            title = page.raw.partition('id="brief"')[2].partition("<b>")[2].partition("</b>")[0]
            check_compared(page, json.loads(done.out.splitlines()[-1]), title)
    answered = [card for card in cards if "No answer: " not in card]
    for card in cards:
        device = card.partition('aria-label="')[2].partition('"')[0]
        if card not in answered:
            words = words_of(card).partition("No answer: ")[2]
            done = command(typed_command(view, device, texts))
            assert (done.code, done.err) == (2, f"lolat: {in_words_of(words, view)}\n")
            continue
        words = shlex.split(next(printed))[1:]
        done = command(words)
        if done.code == 3:
            no = done.err.splitlines()[-1].removeprefix("lolat: ")
            has_no_room = view == "latency" and no.endswith("does not fit into its memory")
            assert ("DOES NOT FIT" if has_no_room else no) in in_words_of(words_of(card), view)
            if view != "latency":
                continue
        else:
            assert done.code == 0, done
        if view != "latency":
            for line in re.findall(r'<p class="dim">(.*?)</p>', card, re.S):
                text = in_words_of(words_of(line), view)
                # The page joins lines that go on by a semicolon.
                told = " ".join(f"{done.out} {done.err}".split())
                assert text.replace(";", "") in told.replace(";", "")
        answer = json.loads(command([*words, "--json"]).out.splitlines()[-1])
        CHECKS[view](card, answer, page, answered.index(card), len(answered))
    return "answered"


@settings(max_examples=60, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_printed_command_gives_the_figures_of_the_page(sent: Sent, data: st.DataObject) -> None:
    view, devices, texts = data.draw(states(sent.files))
    check(sent.page, view, devices, texts)
