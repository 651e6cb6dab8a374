"""Damaged input and wrong options for LoLat's commands, each in a process of its own.

    python -m benchmarks.fuzz                       # 2,000 cases, some minutes
    python -m benchmarks.fuzz --cases 500 --only tables --seed 7
    python -m benchmarks.fuzz --case tables:123     # one again, with all its output

A case is right input with one to three faults where its structure is. It is a finding where the process is
killed, a traceback is seen, an error is not one printable line with exit code 2 or 3, `--json` is not one
strict object, or a wrong answer is given: a time that is not above 0, an interval without its time, blocks
that do not add up, a damaged table that is read without a word.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S, LIMIT_BYTES = 60, 2 * 2**30
NUMBERS = (0, -1, 1e-320, 1e308, 2**63, -0.0, 0.5, 1e-9, 10**30, True)
TEXTS = (
    "",
    " ",
    "nan",
    "inf",
    "1e999",
    "1_0",
    "١٢",
    "a,b",
    "../x",
    "\u202eabc",
    "x" * 300,
    "-",
    "--json",
    "None",
)
VALUES = (*NUMBERS, *TEXTS, None, [], {}, [[]], {"": 0})
COUNTS = "acts,inp,flops,traffic,weights,ops"
TEMPLATES = {
    "models": [
        "predict {} net.json --json", "report {} net.json", "explain {} net.json --json", "show {} --json",
        "budget {} net.json --max-ms 50 --vary batch --json", "fit {} --output out.json --json",
        "cost {} net.json --samples 1000 --batch-size 8 --json",
        "nas search nasbench201 {} --objective scores.csv --json",
    ],
    "networks": ["predict epyc-2t {} --json", "report epyc-2t {} --json", "explain rtx-4090-amp {} --json"],
    "files": ["predict epyc-2t {} --json", "read {} --output read.json --json"],
    "tables": [
        "fit points.csv --output out.json --json", "fit networks.csv --output out.json --json",
        "fit operations.csv --output out.json --json", "evaluate epyc-2t --table networks.csv --json",
        "cost v100-fp32 net.json --samples 99 --batch-size 8 --prices prices.csv --accelerator V100 --json",
        "nas fit nasbench201 samples.csv --output out.json --json",
        "nas search nasbench201 epyc-2t --objective scores.csv --json",
    ],
}  # fmt: skip
MODELS = ("epyc-2t", "a100-fp32", "rtx-3090-amp")
KINDS = ("models", "networks", "files", "tables", "options")
RIGHT = "right"
"""The kind of a case without damage: the seed is the number of its command."""
NOT_DRAWN = {"--ray", "--output", "--port", "--html", "--csv"}


# ---- Right input


def make_right(folder: Path) -> None:
    """Tables, a network and an ONNX file that every command takes, in `folder`."""
    import lolat

    for name in MODELS:
        shutil.copy(ROOT / "models" / f"{name}.json", folder)
    graph = lolat.read("keras:MobileNetV3Small")
    (folder / "net.json").write_text(json.dumps(graph.to_dict()))
    (folder / "net.onnx").write_bytes(onnx_file())
    draw = random.Random(1)
    rows: list[Sequence[object]] = []
    for i in range(40):
        counts = [int(10 ** draw.uniform(4, 8)) for _ in range(5)] + [5 + i % 7]
        rates = (1e-6, 2e-6, 5e-9, 1e-7, 1e-6, 0.01)
        ms = 0.05 + sum(n * rate for n, rate in zip(counts, rates, strict=True))
        rows.append((f"block {i}", 1 + i % 3, *counts, f"{ms:.6g}"))
    write(folder / "points.csv", f"name,batch_size,{COUNTS},latency_ms", rows)
    rows = [("net.onnx", b, f"{0.2 * b + 0.1:.4f}") for b in (1, 2, 4, 8, 16, 32)]
    write(folder / "networks.csv", "network,batch_size,latency_ms", rows)
    rows = [("linear", 1, 2**i, 64, 128, "", "", 0.01 * (i + 1)) for i in range(12)]
    rows += [("relu", "", "", "", "", 2**i, 512, 0.01 + 1e-3 * i) for i in range(12)]
    write(folder / "operations.csv", "op,batch,m,n,k,rows,width,latency_ms", rows)
    rows = [(f"p3.{k}", "V100", k, 8 * k, "there", 3.06 * k) for k in (1, 4, 8)]
    write(
        folder / "prices.csv",
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,Region,Price",
        rows,
    )
    names = ["none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3"]
    six = [[draw.choice(names) for _ in range(6)] for _ in range(14)]
    archs = list(dict.fromkeys("|{}~0|+|{}~0|{}~1|+|{}~0|{}~1|{}~2|".format(*s) for s in six))
    write(folder / "samples.csv", "arch,latency_ms", [(a, 10.5 + i) for i, a in enumerate(archs)])
    write(folder / "scores.csv", "arch,score", [(a, i / 10) for i, a in enumerate(archs)])


def write(path: Path, head: str, rows: Sequence[Sequence[object]]) -> None:
    """A table."""
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")


def onnx_file() -> bytes:
    """Two convolutions with a relu between them."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    kernels = [numpy_helper.from_array(np.zeros((8, c, 3, 3), np.float32), f"w{c}") for c in (3, 8)]
    nodes = [
        helper.make_node("Conv", ["x", "w3"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w8"], ["y"], strides=[2, 2]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 3, 32, 32]), ("y", None))
    ]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], kernels)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


# ---- Damage


def damaged_document(document: Any, draw: random.Random) -> str:
    """JSON in which one to three values are others, gone or doubled, or the text is broken."""
    made = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 2, 3))):
        holder, key = draw.choice(list(places(made)))
        how = draw.randrange(4)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder[key], list):
            holder[key] = holder[key] * 2 if draw.random() < 0.5 else holder[key][:1]
        elif how == 2 and isinstance(holder, dict):
            holder[draw.choice(TEXTS)] = holder.pop(key)
        else:
            holder[key] = draw.choice(VALUES)
    text = json.dumps(made)
    if draw.random() < 0.15:
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice(["NaN", "1e999", '"', "\\ud800", "{", ""]) + text[at + 1 :]
    return text


def places(document: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """(holder, key) of values; of long lists some, as the points of a model are."""
    items = document.items() if isinstance(document, dict) else enumerate(document[:3])
    for key, value in list(items):
        yield document, key
        if isinstance(value, dict | list) and depth < 6:
            yield from places(value, depth + 1)


def damaged_bytes(content: bytes, draw: random.Random) -> bytes:
    """Cut, or with some bytes changed."""
    made = bytearray(content)
    if draw.random() < 0.3:
        return bytes(made[: draw.randrange(len(made))])
    for _ in range(draw.choice((1, 2, 8, 64))):
        made[draw.randrange(len(made))] = draw.randrange(256)
    return bytes(made)


def damaged_table(text: str, draw: random.Random) -> tuple[bytes, str]:
    """A table with one fault, and why it must be refused ("": it need not be)."""
    lines = text.splitlines()
    row = draw.randrange(1, len(lines))
    cells = lines[row].split(",")
    column = draw.randrange(len(cells))
    how, why = draw.randrange(8), ""
    if how == 0:
        cells, why = [*cells, "7"], "a cell too many"
    elif how == 1:
        del cells[column]
        why = "a cell too few"
    elif how == 2:
        cells[column], why = f'"{cells[column]}', "a quote that is not closed"
    elif how == 3:
        cells[column], why = cells[column] + "\0", "a zero byte"
    elif how == 4:
        cells[-1] = draw.choice(["nan", "inf", "1e999", "", "abc", "1.5.5", "½"])
        why = f"a last cell of {cells[-1]!r}"
    elif how == 5:
        return (lines[0] + "\n").encode(), "no rows"
    elif how == 6:
        return damaged_bytes(text.encode(), draw), ""
    else:
        cells[column] = draw.choice(TEXTS).replace(",", ";")
    lines[row] = ",".join(cells)
    return ("\n".join(lines) + "\n").encode("utf-8", "replace"), why


# ---- Cases


@dataclass(frozen=True)
class Case:
    """A command, and why it must be refused ("": it need not be)."""

    kind: str
    arguments: list[str]
    must_refuse: str = ""


def make_case(kind: str, seed: int, folder: Path) -> Case:
    """The case of a seed; its damaged file is written into `folder`, beside the right ones."""
    draw = random.Random(f"{kind}:{seed}")
    if kind == "options":
        return Case(kind, with_odd_options(draw))
    if kind == RIGHT:
        return Case(kind, right_commands()[seed].split())
    command, why = draw.choice(TEMPLATES[kind]), ""
    if kind == "tables":
        name = next(word for word in command.split() if word.endswith(".csv"))
        content, why = damaged_table((folder / name).read_text(), draw)
        (folder / f"damaged-{name}").write_bytes(content)
        return Case(kind, command.replace(name, f"damaged-{name}").split(), why)
    if kind == "files":
        name = "damaged.onnx"
        (folder / name).write_bytes(damaged_bytes((folder / "net.onnx").read_bytes(), draw))
    else:
        whole = f"{draw.choice(MODELS)}.json" if kind == "models" else "net.json"
        name = "damaged.json"
        (folder / name).write_text(damaged_document(json.loads((folder / whole).read_text()), draw))
    return Case(kind, command.format(name).split())


def right_commands() -> list[str]:
    """Every command of TEMPLATES with right input."""
    whole = {"models": "epyc-2t", "files": "net.onnx"}
    return [c.format(whole.get(kind, "net.json")) for kind, some in TEMPLATES.items() for c in some]


def with_odd_options(draw: random.Random) -> list[str]:
    """A right command with one to three options of any value, or a wrong argument."""
    from lolat.cli.main import lolat

    arguments = draw.choice(right_commands()).split()
    command: click.Command = lolat
    for word in arguments:
        inner = (
            command.get_command(click.Context(command), word)
            if isinstance(command, click.Group)
            else None
        )
        command = inner or command
    options = [
        p for p in command.params if isinstance(p, click.Option) and not NOT_DRAWN & set(p.opts)
    ]
    for option in draw.sample(options, min(len(options), draw.choice((1, 1, 2, 3)))):
        arguments.append(option.opts[0])
        if not option.is_flag:
            arguments.append(draw.choice([*TEXTS, *map(str, NUMBERS), "net.onnx", "."]))
    if draw.random() < 0.2:
        arguments[draw.randrange(len(arguments))] = draw.choice(TEXTS)
    return arguments


# ---- Running a case, and what is wrong with its outcome


@dataclass(frozen=True)
class Outcome:
    """Exit code (below 0: the signal that killed it) and output."""

    code: int
    stdout: str
    stderr: str


def run(case: Case, folder: Path) -> Outcome:
    """Run a case in a forked process with limits of time and memory."""
    out, err = folder / "stdout.txt", folder / "stderr.txt"
    pid = os.fork()
    if pid == 0:
        code = 99
        (folder / "out.json").unlink(missing_ok=True)
        try:
            os.chdir(folder)
            for path, number in ((out, 1), (err, 2)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
            with open("/proc/self/statm") as file:
                now = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + LIMIT_BYTES, now + LIMIT_BYTES))
            signal.alarm(LIMIT_S)
            sys.argv = ["lolat", *case.arguments]
            from lolat.cli.main import main

            code = main() or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    texts = [p.read_text(encoding="utf-8", errors="backslashreplace") for p in (out, err)]
    return Outcome(os.waitstatus_to_exitcode(status), *texts)


def faults(case: Case, outcome: Outcome) -> list[str]:
    """What is wrong with an outcome; nothing for a good one."""
    found = []
    if outcome.code not in ((0,) if case.kind == RIGHT else (0, 2, 3)):
        found.append(f"exit code {outcome.code}")
    if "Traceback" in outcome.stderr or "unexpected" in outcome.stderr:
        found.append("a traceback, or unexpected")
    if any(not c.isprintable() and c not in "\n\t" for c in outcome.stdout + outcome.stderr):
        found.append("characters that are not printable")
    last = (outcome.stderr.splitlines() or [""])[-1]
    if outcome.code == 2 and not (last.startswith("lolat: ") and len(last) <= 1000):
        found.append(f"no error of one line: {last[:80]!r}")
    if outcome.code == 0 and case.must_refuse:
        found.append(f"takes a table with {case.must_refuse}")
    if outcome.code == 0 and "--json" in case.arguments and "--help" not in case.arguments:
        found += faults_of_json(outcome.stdout, case.arguments[0] in ("predict", "report"))
    return found


def faults_of_json(text: str, whole: bool) -> list[str]:
    """What is wrong with an answer; `whole`: its blocks are all that there are."""

    def refuse(constant: str) -> None:
        raise ValueError(f"holds {constant}")

    try:
        answer = json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return [f"--json is not strict JSON ({error})"]
    latency, interval = answer.get("latency_ms"), answer.get("interval_ms")
    if not isinstance(latency, int | float):
        return []
    found = [] if 0.0 < latency < math.inf else [f"a latency of {latency} ms"]
    if interval and not interval[0] <= latency <= interval[1]:
        found.append(f"{latency} ms outside its own interval {interval}")
    total = sum(block["latency_ms"] for block in answer.get("blocks", ())) if whole else latency
    if not math.isclose(total, latency, rel_tol=1e-6, abs_tol=1e-12):
        found.append(f"blocks of {total} ms in all for {latency} ms")
    return found


@click.command()
@click.option("--cases", type=click.IntRange(1), default=2000)
@click.option("--seed", default=0)
@click.option("--only", type=click.Choice(KINDS), multiple=True)
@click.option("--case", "again", multiple=True, metavar="KIND:SEED", help="These alone.")
def main(cases: int, seed: int, only: tuple[str, ...], again: tuple[str, ...]) -> None:
    """Run cases; exit code 1 where something is found."""
    os.environ["LOLAT_CACHE"] = "off"
    kinds = only or KINDS
    chosen = [(kinds[i % len(kinds)], seed + i) for i in range(cases)]
    if again:
        chosen = [(kind, int(number)) for kind, _, number in (a.partition(":") for a in again)]
    codes: Counter[tuple[str, int]] = Counter()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_right(folder)
        for kind, number in chosen:
            case = make_case(kind, number, folder)
            outcome = run(case, folder)
            codes[kind, outcome.code] += 1
            if wrong := faults(case, outcome):
                bad += 1
                click.echo(f"{kind}:{number}  {'; '.join(wrong)}  lolat {' '.join(case.arguments)}")
            if again:
                click.echo(f"{outcome.stdout}{outcome.stderr}")
    for (kind, code), count in sorted(codes.items()):
        click.echo(f"{kind:10} exit code {code:3}: {count}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
