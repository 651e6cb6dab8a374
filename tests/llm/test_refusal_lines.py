"""A refused question about served language models: the answer in a line, and a table of rows that help."""

from __future__ import annotations

import re
from typing import Any

import pytest

import lolat
from lolat.cli.main import lolat as commands
from lolat.cli.main import run
from lolat.errors import AnswerIsNo
from lolat.llm.refusal import no_room, refusals_of
from lolat.report.llm_refusal import first_line, refusal_lines, ways_of
from lolat.report.tables import lines_of

pytestmark = pytest.mark.slow  # They simulate loads.


@pytest.mark.parametrize(
    ("model", "question", "shortage"),
    [("llama-3.1-70b", {"gpus": 2, "request_rate": 3.0}, r"2 GPUs serve 1\.\d+ of 3 requests/s; "),
     ("llama-3.1-8b", {"max_tpot_ms": 3.6, "concurrency": 1, "gpus": 2}, r"2 GPUs: 4\.\d+ ms a token, "),
     ("llama-3.1-405b", {"concurrency": 4}, "llama-3.1-405b does not fit on 8 GPUs; "),
     ("llama-3.1-70b", {"request_rate": 1.0, "gpus": 1}, "llama-3.1-70b does not fit on 1 GPU; ")],
)  # fmt: skip
def test_each_row_that_helps_is_the_answer_to_the_question_with_its_options(
    model: str, question: dict[str, Any], shortage: str
) -> None:
    gpu = lolat.load("h100-vllm")
    with pytest.raises(AnswerIsNo) as no:
        raise no_room(gpu.llm(model, **question))
    refusals = refusals_of(no.value)
    ways = ways_of(refusals)
    assert len(ways) >= 2
    line = first_line(refusals, ways)
    assert re.match(shortage, line), line
    text = "\n".join(lines_of(refusal_lines(refusals)))
    for way in ways:
        words = [word.removeprefix("--").replace("-", "_") for word in way.ask.split()]
        typed = dict(zip(words[::2], words[1::2], strict=True))
        given = {name: value if name == "dtype" else int(value) for name, value in typed.items()}
        rows = gpu.llm(model, **question | given).served
        assert (way.row.gpus, way.row.dtype, way.row.tpot_ms) in [
            (r.gpus, r.dtype, r.tpot_ms) for r in rows
        ]
        assert f" {way.ask}" in text
        assert "chance of 0.0 %" not in way.verdict
    costs = [way.row.dollars_per_month for way in ways]
    assert costs == sorted(costs, key=lambda usd: usd or 0.0)
    assert f"${costs[0]:,.0f} a month" in line


@pytest.mark.parametrize("load", ["--concurrency 8", "--request-rate 2"])
def test_a_replica_of_more_gpus_than_asked_for_is_told_without_a_limit(
    load: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """No time is missed: the split alone takes more GPUs."""
    words = f"llm h100-vllm llama-3.1-8b {load} --gpus 2 --tensor-parallel 4"
    assert run(commands, words.split(), "lolat") == 3
    said = capfd.readouterr().out
    assert said.startswith("No: a replica takes 4 GPUs, more than 2 GPUs; 4 GPUs do for $")
    assert [line[:6] for line in said.splitlines()].count("4 GPUs") == 1
    assert run(commands, words.replace("--gpus 2", "--gpus 4").split(), "lolat") == 0


def test_the_command_prints_the_rows_and_one_short_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Under a rate without other ways the limit's unit is asked for; a program gets both in one line."""
    words = "llm h100 llama-3.1-8b --request-rate 1 --max-ttft-ms 1 --tensor-parallel 1"
    call = words.split()
    assert run(commands, call, "lolat") == 3
    out, error = capsys.readouterr()
    assert out.startswith("No: any number x 1 GPU (h100-vllm): ")
    assert out.splitlines()[0].endswith("the limit of 1 is in milliseconds: did you mean 1000.")
    short = "llama-3.1-8b, 1 request/s: none of 3 devices keeps 1.00 ms to the first token"
    assert error == f"lolat: {short}\n"
    assert run(commands, [*call, "--json"], "lolat") == 3
    out, error = capsys.readouterr()
    assert out.startswith("{")
    assert error.startswith(f"lolat: {short}; any number x 1 GPU (h100-vllm): ")
    assert len(error.splitlines()) == 1


def test_a_device_left_out_says_how_to_ask_for_more_gpus(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As an option on the command line and in JSON, as an argument in Python; an error too."""
    asked: dict[str, Any] = {"concurrency": 200, "gpus": 1, "max_tpot_ms": 30}
    found = lolat.compare("llama-3.1-8b", on=["h100-vllm", "l40s"], **asked)
    needed = lolat.load("l40s").llm("llama-3.1-8b", **asked | {"gpus": 64}).chosen.gpus
    limits = "llama-3.1-8b --concurrency 200 --gpus 1 --max-tpot-ms 30"
    call = limits.split()
    for form in ([], ["--json"]):
        assert run(commands, ["llm", "h100-vllm,l40s", *call, *form], "lolat") == 0
        assert f"(ask with --gpus {needed})" in capsys.readouterr().out
    assert f"(ask with gpus={needed})" in found.report()
    assert run(commands, ["llm", "l40s,l4", *call, "--json"], "lolat") == 3
    out, error = capsys.readouterr()
    assert f"(ask with --gpus {needed})" in out
    assert "\x01" not in out + error
