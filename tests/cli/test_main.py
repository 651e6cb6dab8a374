"""`lolat` itself: help, options, how it ends, remarks, suggestions."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from benchmarks import command_line
from lolat import parameters
from lolat.cli import mistakes
from lolat.cli.main import COMMANDS, run
from lolat.cli.main import lolat as group
from lolat.cli.progress import Show, say
from lolat.errors import AnswerIsNo, InputError
from tests import synthetic
from tests.cli.commands import ROOT, Command, one_line
from tests.processes import PATIENCE_S, python, wait_until


def test_help_versions_and_what_to_do_first_import_nothing() -> None:
    code = (
        "import sys; from lolat.cli.main import run; from lolat.cli.main import lolat\n"
        "for call in [], ['--version'], ['--help']: run(lolat, call, 'lolat')\n"
        "print({'numpy', 'keras', 'torch'} & set(sys.modules))"
    )
    done = python(code)
    assert done.stdout.splitlines()[-1] == "set()"
    listed = done.stdout.partition("Usage: ")[2]
    assert all(len(line) <= 80 for line in listed.splitlines())
    assert "..." not in listed.partition("\n\n")[2]


def raising(error: BaseException) -> object:
    def read(*unused: object) -> None:
        raise error

    return read


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("one\ntwo"), 1, "unexpected ZeroDivisionError: one two"),
        (OSError(28, "No space left on device", "/x/y"), 1, "/x/y: No space left on device"),
        (AnswerIsNo("over the budget"), 3, "over the budget"),
    ],
)
def test_whatever_happens_it_is_one_line_and_a_code(
    lolat: Command, model: Path, monkeypatch: pytest.MonkeyPatch,
    error: BaseException, code: int, words: str,
) -> None:  # fmt: skip
    monkeypatch.delenv("LOLAT_DEBUG", raising=False)
    monkeypatch.setattr("lolat.readers.read", raising(error))
    found = lolat("predict", model, "keras:X")
    assert found.code == code
    assert found.out == ""
    assert words in one_line(found.err.lstrip("\n"))  # click ends the line of a terminal's ^C


def test_where_an_error_is_from_can_be_asked(
    lolat: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOLAT_DEBUG", "1")
    monkeypatch.setattr("lolat.readers.read", raising(ZeroDivisionError("x")))
    found = lolat("predict", model, "keras:X")
    assert found.code == 1
    assert "Traceback" in found.err
    assert found.err.splitlines()[-1].startswith("lolat: unexpected ZeroDivisionError")


def test_what_is_not_to_be_printed(lolat: Command, model: Path) -> None:
    assert lolat.refused("predict", model, "keras:\x1b[31m\u202e").isprintable()


def test_a_full_disk_is_exit_code_1_and_leaves_the_old_file(
    lolat: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*unused: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = model.read_bytes()
    monkeypatch.setattr("os.fsync", full)
    assert "disk is full" in lolat.refused("fit", model, "--output", model, code=1)
    assert model.read_bytes() == before
    assert os.listdir(model.parent) == [model.name]


class TestAsAProcess:
    """The same from outside: the code that a shell sees, stderr as it is."""

    def test_ctrl_c(self, model: Path, tmp_path: Path) -> None:
        (tmp_path / "slow.py").write_text(
            "import pathlib, time  # says torch, and so spares itself the import of Keras\n"
            "def net():\n"
            "    pathlib.Path('started').touch()\n"
            "    time.sleep(600)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-m", "lolat.cli.main", "predict", str(model), "slow:net"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            # A shell's background jobs ignore Ctrl-C and so would what they start.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as running:  # fmt: skip
            try:
                wait_until((tmp_path / "started").exists, "the network's code")
                running.send_signal(signal.SIGINT)
                out, err = running.communicate(timeout=PATIENCE_S)
            finally:
                running.kill()
        assert running.returncode == 130
        assert out == ""
        assert one_line(err.lstrip("\n")) == "lolat: interrupted"


@pytest.mark.parametrize("streams", [">/dev/full", ">/dev/full 2>/dev/full"])
def test_an_answer_that_nobody_can_get_is_exit_code_1(streams: str) -> None:
    shell = f"exec {sys.executable} -m lolat.cli.main models {streams}"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    expected = "" if "2>" in streams else "lolat: the system refused"
    assert done.stderr.startswith(expected)
    assert done.stderr.count("\n") == ("2>" not in streams)


# ---- What helps: first steps, suggestions, --quiet.


def test_a_bare_call_says_what_to_do_first(lolat: Command) -> None:
    lines = lolat.text().splitlines()
    shown = [line.split()[1] for line in lines if line.startswith("  lolat ")]
    assert shown[:3] == ["predict", "learn", "report"]
    assert set(shown) <= {*COMMANDS, "--help"}
    assert len(lines) < 10


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (["predcit", "m", "n"], "predict"),
        (["nas", "serch", "s", "m"], "search"),
        (["predict", "m", "n", "--batchsize", "3"], "--batch-size"),
        (["predict", "lokal", "keras:X"], "local"),
        (["predict", "epyc2t", "keras:X"], "epyc-2t"),
        (["predict", "g5.xlarge", "keras:X"], "a10g"),
        (["predict", "3090ti", "keras:X"], "rtx-3090"),
        (["predict", "keras:X", "--on", "t4,4060"], "rtx-4090"),
    ],
)
def test_a_typing_error_gets_a_suggestion(lolat: Command, call: list[str], meant: str) -> None:
    line = lolat.refused(*call)
    assert re.search(rf"did you mean.* '?{re.escape(meant)}\b", line, re.IGNORECASE), line


# ---- Remarks and progress


def remarking(error: BaseException | None) -> click.Command:
    """A command that remarks, shows progress, answers and fails with `error`."""

    def callback() -> None:
        say("warning: careful")
        with Show("two minutes") as show:
            for stage in ("working", "working", "resting"):
                show.start(stage, 2)
                show.step()
            show.note("halfway")
        print("answer")
        if error is not None:
            raise error

    return click.Command("remark", callback=callback)


def test_a_long_stage_tells_how_long_it_will_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """30 s a step: after the first of four, three are left."""
    now = [1000.0]
    monkeypatch.setattr("lolat.cli.progress.time.monotonic", lambda: now[0])
    with Show() as show:
        show.start("measuring", 4)
        now[0] += 30.0
        show.step()
        assert "measuring: 1 of 4, about 90.0 s more\n" in capsys.readouterr().err
        show.start("measuring", 6, 3)  # one count: 3 are done, and 30 s a step again
        for _ in range(3):
            now[0] += 30.0
            show.step()
    told = capsys.readouterr().err
    assert "measuring: 4 of 6, about 60.0 s more\n" in told
    assert "measuring: 6 of 6\n" in told


def test_a_stage_that_takes_much_longer_names_the_remedy_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """30 s a step: 10.5 minutes are left of 24 steps, 10 of 23."""
    now = [1000.0]
    monkeypatch.setattr("lolat.cli.progress.time.monotonic", lambda: now[0])
    for steps, times in ((24, 1), (23, 0)):
        with Show("two minutes", "wait for calm") as show:
            show.start("measuring", steps)
            for _ in range(3):
                now[0] += 30.0
                show.step()
        assert capsys.readouterr().err.count("more; wait for calm\n") == times


def test_the_first_steps_tell_no_duration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first of 16 steps takes a minute, the others 10 s."""
    now = [1000.0]
    monkeypatch.setattr("lolat.cli.progress.time.monotonic", lambda: now[0])
    with Show() as show:
        show.start("measuring", 16)
        for seconds in (60.0, 10.0, *(10.0,) * 6):
            now[0] += seconds
            show.step()
    told = capsys.readouterr().err
    assert "measuring: 1 of 16\n" in told
    assert "measuring: 4 of 16, about 4 min 30 s more\n" in told


def test_the_steps_of_an_earlier_run_are_no_speed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """98 of 100 were there; the 99th takes 30 s, and so will the last."""
    now = [1000.0]
    monkeypatch.setattr("lolat.cli.progress.time.monotonic", lambda: now[0])
    with Show() as show:
        show.start("measuring", 100, 98)
        now[0] += 30.0
        show.step()
    assert "measuring: 99 of 100, about 30.0 s more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "meant"),
    [("cost v100 net.json --batch-size 8 --gpus 8", "--replicas"),
     ("cost v100 net.json --batch-size 8 --devices 8", "--replicas 8"),
     ("cost v100 net.json --batch-size 8 --amp", "--precision amp"),
     ("cost v100 net.json --batch-size 8 --zero 3", "--sharding"), ("train v100 net.json", "cost"),
     ("llm v100 net.json --tp 2", "--tensor-parallel"),
     ("predict v100 net.json --nhwc", "it is --channels-last here"),
     ("predict v100 net.json --dtype fp16", "it is --precision here"),
     ("evaluate h100-vllm --table a.json --dtype fp8", "key dtype in the JSON, or a table's column; of"),
     ("fit a.json --kv-dtype fp8", "key kv_dtype in the JSON, or a table's column"),
     ("llm v100 net.json --precision fp16", "it is --dtype here"),
     ("llm h100-vllm qwen3-8b --percentile 0.95", "did you mean 95?"),
     ("llm h100-vllm qwen3-8b --percentile 99.9", "whole number from 1 to 99; see"),
     ("report v100 net.json --compile", "it is --launch compiled here"),
     ("predict net.json --gpu a100", "it is --on here"),
     ("explain net.json --on a100,l4", "it is MODEL (an argument: one device) here"),
     ("prices --accelerator a100", "an argument here: lolat prices a100;"),
     ("predict v100 net.json --against b.json", "it is NETWORK (a further"),
     ("predict v100 net.json --max-ratio 2", "it is --max-ms here"),
     ("predict v100 net.json --input-size 224x224", "did you mean 224?"),
     ("predict v100 net.json --input-size 3x224x192", "did you mean 3,224,192?"),
     ("predict net.py v100", "did you mean v100 net.py?"),
     ("predict v100 h100 net.json", "h100 is a device; expected several as --on v100,h100"),
     ("cost v100 timm:resnet50 --batch-size 64 --replicas 4,6 --global-batch-size 100", "of 768"),
     ("nas score fbnet v100 --output a.csv --value v", "lolat nas search --objective"),
     ("llm h100 qwen3-8b --ttft 5", "it is --max-ttft-ms here"),
     ("llm h100 qwen3-8b --tpot 5", "it is --max-tpot-ms here"),
     ("llm h100 qwen3-8b --max-latency 900", "it is --max-latency-ms here"),
     ("llm h100 qwen3-8b --quantization fp8", "it is --dtype here"),
     ("llm h100 qwen3-8b --max-model-len 4096", "it is --input-tokens and --output-tokens here"),
     ("llm h100 qwen3-8b --p99 50", "it is --percentile 99 here"),
     ("llm h100 qwen3-8b --max-price 9", "the cheapest that keeps the other limits"),
     ("cost v100 net.json --max-price 9", "it is --max-dollars here"),
     ("cost v100 net.json --max-cost 9", "it is --max-dollars here"),
     ("cost v100 net.json --max-steps 100", "it is --samples (steps x samples of an update) here"),
     ("cost v100 net.json --lora-rank 16", "it is --tune lora:RANK here"),
     ("llm --on h100,a100 qwen3-8b --request-rate 2", "lolat llm h100,a100 qwen3-8b --request-rate 2;"),
     ("llm h100 qwen3-8b --on=a100 --device l40s", "lolat llm h100,a100 qwen3-8b --device l40s;"),
     ("llm h100 qwen3-8b --on 5", "it is GPU (an argument")],
)  # fmt: skip
def test_the_words_of_others_and_former_ones_are_translated(
    lolat: Command, call: str, meant: str
) -> None:
    assert meant in lolat.refused(*call.split())


def every_option() -> set[str]:
    """The options of all commands, and the arguments, as `--help` names them."""
    context, words = click.Context(group), set[str]()
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = (
            [command.get_command(context, n) for n in command.list_commands(context)]
            if isinstance(command, click.Group)
            else [command]
        )
        words |= {o for one in inner for p in one.params for o in p.opts}
    return words | {"MODEL", "NETWORK", "GPU"}


def test_what_is_meant_is_an_option_of_some_command() -> None:
    meant = {one for ones in mistakes.MEANT.values() for one in ones if not one[0].islower()}
    assert {one.split()[0] for one in meant} - every_option() == set()


@pytest.mark.parametrize(
    ("call", "far"),
    [("predict v100 net.json --fast", "--csv"), ("nas search fbnet v100 --skor", "--score"),
     ("evaluate v100 --width 3", "--wait")],
)  # fmt: skip
def test_an_option_that_is_spelled_otherwise_is_no_suggestion(
    lolat: Command, call: str, far: str
) -> None:
    line = lolat.refused(*call.split())
    assert "No such option" in line
    assert "did you mean" not in line
    assert far not in line


@pytest.mark.parametrize(
    ("call", "meant"),
    [("predict v100 net.json --batch-size 1 16 64", "--batch-size 1,16,64"),
     ("report v100 net.json --batch-size 1 16 64", "--batch-size 1,16,64"),
     ("predict net.json --on v100 L4 a100", "--on v100,L4,a100"),
     ("cost --on v100 t4 net.json", "--on v100,t4;")],
)  # fmt: skip
def test_values_with_spaces_between_them_are_shown_with_commas(
    lolat: Command, call: str, meant: str
) -> None:
    assert meant in lolat.refused(*call.split())


def test_a_call_that_lacks_a_value_or_the_device_says_so(lolat: Command) -> None:
    line = lolat.refused("explain", "timm:resnet50")
    assert "timm:resnet50 looks like a network, and the device comes before it" in line
    assert lolat.refused("report", "--html").endswith("see: lolat report --help")
    line = lolat.refused("llm", "qwen3-8b", "--request-rate", 3)
    assert (
        "qwen3-8b is a language model: name a GPU before it, or all: lolat llm all qwen3-8b" in line
    )
    assert "name a language model behind the GPU" in lolat.refused("llm", "h100-vllm")
    line = lolat.refused("cost", "net.json", "--on", "h100x8", "--batch-size", 8)
    assert "--on h100x8: expected names of devices (h100), and the number as --replicas 8;" in line
    line = lolat.refused("cost", "net.json", "--on", "A100 x4", "--batch-size", 8)
    assert "--on A100 x4: expected names of devices (A100), and the number as --replicas 4;" in line
    assert "--replicas" not in lolat.refused(
        "cost", "net.json", "--on", "t4,4090", "--batch-size", 8
    )
    assert "did you mean" not in lolat.refused("predict", "net.json", "--on", "A2")


def test_a_number_that_was_meant_is_one_that_is_taken(lolat: Command) -> None:
    line = lolat.refused("predict", "v100", "net.json", "--batch-size", "64.5")
    assert "'64.5' is not a valid whole number" in line
    assert "did you mean" not in line
    assert "did you mean 64?" in lolat.refused("predict", "v100", "net.json", "--batch-size", "64x")
    for given, meant in (("0.5 s", 500), ("2sec", 2000)):
        line = lolat.refused("llm", "h100-vllm", "qwen3-8b", "--max-ttft-ms", given)
        assert f"did you mean {meant}?" in line
    for given, meant in (("50MB", 50_000_000), ("2 billion", 2_000_000_000), ("7 tokens", 7)):
        call = ("cost", "h100", "llama-3.1-8b", "--sequence-length", "2048", "--tokens", given)
        assert f"did you mean {meant}?" in lolat.refused(*call)
    line = lolat.refused("cost", "h100", "llama-3.1-8b", "--sequence-length", "2k")
    assert "did you mean 2000 or 2048?" in line
    line = lolat.refused("llm", "h100-vllm", "qwen3-8b", "--request-rate", "3/s")
    assert (line.count("'3/s'"), "did you mean 3?" in line) == (1, True)


def test_two_commas_in_a_row_are_one(lolat: Command, tmp_path: Path) -> None:
    file = tmp_path / "net.json"
    file.write_text(json.dumps(synthetic.network().to_dict()))
    twice = lolat.text("predict", file, "--on", "rtx-4090,, v100")
    assert twice == lolat.text("predict", file, "--on", "rtx-4090,v100")


def test_a_gpu_of_several_frameworks_is_compared_under_each(lolat: Command) -> None:
    ask = ("--concurrency", "1", "--tensor-parallel", "1")
    found = lolat.json("llm", "h100,l40s", "llama-3.1-8b", *ask)
    assert {a["name"] for a in found["answers"]} == {
        "h100-vllm",
        "h100-sglang",
        "h100-trtllm",
        "l40s",
    }
    line = lolat.refused("llm", "h100", "timm:resnet50")
    assert "timm:resnet50" in line
    assert "frameworks" not in line


def test_a_word_of_others_is_taken(lolat: Command) -> None:
    assert parameters.PARAMETERS["backend"].choice("PyTorch") == "torch"
    assert "--backend" in lolat.refused("learn", "cuda", "--backend", "nothing")  # cuda is a gpu
    line = lolat.refused("predict", "v100", "net.json", "--precision", "int8")
    assert "a network in INT8 is an ONNX file" in line


def test_a_device_of_pytorch_is_no_network(lolat: Command) -> None:
    line = lolat.refused("predict", "cuda:0", "timm:resnet50")
    assert "cuda:0: no such device" in line
    assert "`lolat learn gpu`" in line


@pytest.mark.parametrize("name", ["llama3", "gpt-4"])
def test_a_language_model_of_a_known_family_is_no_network(lolat: Command, name: str) -> None:
    call = ("cost", "h100", name, "--batch-size", 4, "--sequence-length", 2048, "--tokens", "50M")
    line = lolat.refused(*call)
    assert f"{name}: no such file, nor a known model" in line
    assert "timm:" not in line


def test_the_profile_that_answers_for_a_gpus_name_is_told(lolat: Command) -> None:
    call = ("llama-3.2-1b", "--batch-size", 1, "--sequence-length", 512, "--tune", "lora:16")
    assert (
        "H100: predicted from kernels timed in vLLM (h100-vllm)" in lolat("cost", "H100", *call).err
    )
    assert "predicted from kernels" not in lolat("cost", "h100-vllm", *call).err


@pytest.mark.parametrize(
    ("call", "meant"),
    [("cost v100 net.json --max-hours 30m", "0.5"), ("cost v100 net.json --max-hours 1d", "24"),
     ("cost v100 net.json --max-hours 2days", "48"), ("predict v100 net.json --max-ms 500µs", "0.5"),
     ("llm h100-vllm qwen3-8b --request-rate 60rpm", "1"),
     ("llm h100-vllm qwen3-8b --request-rate 120/min", "2"),
     ("llm h100-vllm qwen3-8b --max-ttft-ms 2weeks", ""), ("cost v100 net.json --memory-gib 24MB", ""),
     ("predict v100 net.json --min-samples-per-s 100ms", "")],
)  # fmt: skip
def test_a_unit_is_converted_and_an_unknown_one_gives_no_number(
    lolat: Command, call: str, meant: str
) -> None:
    line = lolat.refused(*call.split())
    assert f"did you mean {meant}?" in line if meant else "did you mean" not in line


@pytest.mark.parametrize(
    "twice",
    ["--batch-size 8 --batch-size 16", "--precision amp --precision fp16", "--max-ms 1 --max-ms 1"],
)
def test_an_option_with_one_value_is_given_once(lolat: Command, twice: str) -> None:
    done = lolat("predict", "v100", "net.json", *twice.split())
    assert (done.code, f"{twice.split()[0]} is given 2 times" in one_line(done.err)) == (2, True)


def test_remarks_progress_and_errors_are_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(remarking(InputError("it is wrong")), [], "remark") == 2
    out, err = capsys.readouterr()
    assert out == "answer\n"
    assert [line.removeprefix("lolat: ") for line in err.splitlines()] == [
        "warning: careful", "this takes two minutes", "working: 2 steps", "resting: 2 steps",
        "halfway", "it is wrong",
    ]  # fmt: skip


@pytest.mark.parametrize("call", ["-q budget {}", "budget {} --quiet", "budget -q {}"])
def test_quiet_leaves_errors_alone_wherever_it_stands(
    lolat: Command, model: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def read(*unused: object) -> None:
        say("careful")
        raise AnswerIsNo("no")

    monkeypatch.setattr("lolat.readers.read", read)
    rest = ["n:n", "--vary", "batch", "--max-ms", "3"]
    assert lolat("budget", model, *rest).err.splitlines() == ["lolat: careful", "lolat: no"]
    assert lolat(*call.format(model).split(), *rest).err.splitlines() == ["lolat: no"]


# ---- Options: a name means one thing, and every help is whole

LEAVES = dict(command_line.leaves(group))


def test_the_choices_are_those_there_are() -> None:
    """They are written out, so that a help imports nothing."""
    from lolat.device.predictors import PREDICTORS
    from lolat.llm.frameworks import FRAMEWORKS
    from lolat.microbench.backends import BACKENDS

    assert set(parameters.BACKENDS) == set(BACKENDS)
    assert set(parameters.PREDICTORS) == set(PREDICTORS)
    assert set(parameters.SERVING_FRAMEWORKS) == set(FRAMEWORKS)


def test_only_results_are_paths() -> None:
    """So that what a command reads, which is a text, is not written over (`check_inputs_stay`)."""
    paths = {
        param.name
        for _, command in command_line.leaves(group)
        for param in command.params
        if getattr(param.type, "type", None) is Path
    }
    assert paths == {"output", "csv", "html", "predictions"}


def test_an_option_means_the_same_in_every_command() -> None:
    meanings: dict[str, set[str]] = {}
    for command in LEAVES.values():
        for option in command_line.options(command):
            meanings.setdefault(option.name, set()).add(option.meaning)
    assert {name: texts for name, texts in meanings.items() if len(texts) > 1} == {}


@pytest.mark.parametrize("name", LEAVES)
def test_every_help_has_examples_that_parse(lolat: Command, name: str) -> None:
    examples = command_line.examples(LEAVES[name])
    assert examples
    shown = lolat.done(*name.split(), "--help").out
    for example in examples:
        assert f"  {example}\n" in shown
        _, *words = shlex.split(example)
        assert words[: len(name.split())] == name.split()
        LEAVES[name].make_context(name, words[len(name.split()) :])


@pytest.mark.parametrize(("words", "announced"), [((), 1), (("-q",), 0), (("--quiet",), 0)])
def test_quiet_announces_no_reading(
    lolat: Command, model: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], announced: int
) -> None:  # fmt: skip
    started: list[object] = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(
        "lolat.io.progress.threading.Timer.start", lambda timer: started.append(timer)
    )
    lolat("predict", *words, model, "gone.json")
    assert len(started) == announced


def test_a_comparison_of_servers_counts_its_devices_on_a_terminal(
    lolat: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As other long commands do, on stderr alone; without a terminal it says nothing."""
    shown: list[str] = []
    monkeypatch.setattr("lolat.cli.progress.Show.step", lambda bar: shown.append(bar.text))
    call = ["llm", "h100-vllm,l4,a10g", "qwen3-8b", "--concurrency", 4, "--tensor-parallel", 1]
    lolat(*call)
    assert shown == []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    lolat(*call)
    assert shown == ["devices"] * 3
