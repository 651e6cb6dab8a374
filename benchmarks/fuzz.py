"""Hostile input, made from whole input by damaging it where its structure is.

    python benchmarks/fuzz.py                       # 10,000 cases, about a quarter of an hour
    python benchmarks/fuzz.py --cases 500 --only tables --seed 7
    python benchmarks/fuzz.py --case tables:123     # one again, with all that it wrote

Each case is a command of LoLat's in a process of its own with limits of time and memory. It is a finding if
the process is killed, a traceback or "unexpected" is seen, an error is not one line of printable text with
exit code 2 or 3, `--json` gives something else than one strict object, or a wrong answer is given: a time
that is not positive, an interval that does not hold it, blocks that do not add up, a damaged table that is
read without a word. The seed makes the case: what was found can be seen again.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 60
LIMIT_BYTES = 2 * 2**30
"""On top of what the process had before the case."""

TEXTS = [
    "", " ", "0", "-1", "nan", "inf", "-Infinity", "1e999", "1e-320", "1e308", "9" * 400, "1,5", "1.234,5",
    "1 000", "0x10", "1_000", "١٢", "½", "true", "null", "\x1b[31mred\x1b[0m", "\u202eabc", "a\nb",
    "a\tb", "<b>&amp;", "'; --", "../../etc/passwd", "/dev/zero", "%s%n", "{0}", "=1+1", "A" * 5000, "😀",
    "keras:", "generate:vgg?", "local", "--help", "-", ":", "a:b:c", "os:getcwd",
]  # fmt: skip
NUMBERS = [0, -1, 1, 2**31, 2**53 + 1, 2**63, 10**400, 0.0, -0.0, 1e-320, 1e308, -1e308, 0.5, 1e15]
VALUES: list[Any] = [
    None,
    True,
    False,
    [],
    {},
    [[]],
    [{}],
    {"": 0},
    {"a": {"b": []}},
    *NUMBERS,
    *TEXTS,
]


MODELS = ("epyc-2t.json", "a100-fp32.json", "justus2018-v100.json", "rtx-3090-amp.json")


@dataclass
class Case:
    """One command line, and what is known of its input."""

    kind: str
    seed: int
    arguments: list[str]
    must_refuse: str = ""  # why exit code 0 would be wrong
    files: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What shows it again."""
        return f"{self.kind}:{self.seed}"


# ---- Whole input, in a folder.


def make_whole(folder: Path) -> None:
    """Models, tables and networks that are right, in `folder`."""
    for name in MODELS:
        shutil.copy(ROOT / "models" / name, folder / name)
    draw = random.Random(1)
    for i, (width, depth) in enumerate(((16, 2), (32, 3), (48, 4))):
        (folder / f"net{i}.onnx").write_bytes(_onnx(width, depth))
    rows = []
    for i in range(40):
        acts, inp, flops = (int(10 ** draw.uniform(low, low + 2)) for low in (4, 4, 6))
        counts = (acts, inp, flops, 2 * acts, 1000 + i, 5 + i % 7)
        prices = (1e-6, 2e-6, 5e-9, 1e-7, 1e-6, 0.01)
        ms = 0.05 + sum(count * price for count, price in zip(counts, prices, strict=True))
        rows.append((f"block {i}", 1 + i % 3, *counts, f"{ms:.6g}"))
    _write(
        folder / "points.csv", "name,batch_size,acts,inp,flops,traffic,weights,ops,latency_ms", rows
    )
    nets = [(i, f"net{i}.onnx", 2**b) for i in range(3) for b in range(6)]
    timed = [(net, b, f"{0.2 * (i + 1) * b + 0.1:.4f}") for i, net, b in nets]
    _write(folder / "networks.csv", "network,batch_size,latency_ms", timed)
    epochs = [
        (n, b, 1000 + b, o, (1 + i) * 0.5 + 0.1 * b) for i, n, b in nets for o in ("sgd", "adam")
    ]
    _write(folder / "epochs.csv", "network,batch_size,samples,optimizer,epoch_s", epochs)
    names = ["none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3"]
    drawn = [[draw.choice(names) for _ in range(6)] for _ in range(14)]
    cells = list(dict.fromkeys("|{}~0|+|{}~0|{}~1|+|{}~0|{}~1|{}~2|".format(*six) for six in drawn))
    _write(folder / "samples.csv", "arch,latency_ms", [(c, 10.5 + i) for i, c in enumerate(cells)])
    _write(folder / "scores.csv", "arch,score", [(c, i / 10) for i, c in enumerate(cells)])
    layers = [
        ("conv", 1 + i % 4, 8 + 8 * (i % 5), 16, 1 + 2 * (i % 3), 14 * (1 + i % 4), 1, 1, i + 1)
        for i in range(20)
    ]  # fmt: skip
    head = "op,batch,in_channels,out_channels,kernel,input_size,stride,padding,latency_ms"
    _write(folder / "convolutions.csv", head, layers)
    head = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice"
    offers = [
        (f"p3.{k}", "V100", k, 8 * k, 61 * k, 3.06 * k, "us-east-1", "", 0.95 * k)
        for k in (1, 4, 8)
    ]
    _write(folder / "prices.csv", head, offers)


def _write(path: Path, head: str, rows: Sequence[Sequence[object]]) -> None:
    lines = [",".join(map(str, row)) for row in rows]
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")


def _onnx(width: int, depth: int) -> bytes:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    nodes, weights, channels, last = [], [], 3, "x"
    for i in range(depth):
        kernel = np.zeros((width, channels, 3, 3), np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{i}"))
        nodes.append(
            helper.make_node("Conv", [last, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1], strides=[2, 2])
        )
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"]))
        channels, last = width, f"r{i}"
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["y"]))
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights)  # fmt: skip
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)]
    ).SerializeToString()
    return made


# ---- Damage.


def _places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value of a document."""
    yield path
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in items:
        yield from _places(value, (*path, key))


def damage_document(document: Any, draw: random.Random) -> str:
    """JSON text of a copy in which one to three values are others, gone, doubled or moved."""
    made = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        # Lists of points hold most values: half of the draws stay near the top.
        places = [p for p in _places(made) if p and (draw.random() < 0.5 or len(p) < 5)]
        if not places:
            break
        depth = draw.choice(sorted({len(p) for p in places}))
        *way, key = draw.choice([p for p in places if len(p) == depth])
        holder = made
        for step in way:
            holder = holder[step]
        how = draw.randrange(6)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder[key], int | float):
            holder[key] = draw.choice(NUMBERS)
        elif how == 2 and isinstance(holder[key], list):
            holder[key] = (
                holder[key][: len(holder[key]) // 2] if draw.random() < 0.5 else holder[key] * 2
            )
        elif how == 3 and isinstance(holder, dict):
            holder[draw.choice(TEXTS)] = holder.pop(key)
        elif how == 4:
            other = draw.choice(places)
            value: Any = made
            with contextlib.suppress(KeyError, IndexError, TypeError):
                for step in other:
                    value = value[step]
            holder[key] = copy.deepcopy(value)
        else:
            holder[key] = draw.choice(VALUES)
    text = json.dumps(made)
    if draw.random() < 0.1:
        text = text.replace(
            draw.choice("0123456789"), draw.choice(["NaN", "1e999", "-", "9" * 5000]), 1
        )
    return text


def damage_bytes(content: bytes, draw: random.Random) -> bytes:
    """Cut, doubled, or with some bytes changed."""
    made = bytearray(content)
    how = draw.randrange(5)
    at = draw.randrange(len(made) + 1)
    if how == 0:
        return bytes(made[:at])
    if how == 1:
        return bytes(made[:at] + made[draw.randrange(len(made)) :])
    if how == 2:
        return bytes(made[:at]) + draw.randbytes(draw.randrange(1, 40)) + bytes(made[at:])
    for _ in range(draw.choice((1, 2, 8, 64))):
        made[draw.randrange(len(made))] = draw.randrange(256)
    return bytes(made)


def damage_table(text: str, draw: random.Random) -> tuple[bytes, str]:
    """A table with one kind of damage, and why it must be refused ("": it need not be)."""
    lines = text.splitlines()
    row = draw.randrange(1, len(lines))
    cells = lines[row].split(",")
    column = draw.randrange(len(cells))
    how = draw.randrange(12)
    why = ""
    if how == 0:
        cells, why = [*cells, "7"], "a cell too many"
    elif how == 1:
        del cells[column]
        why = "a cell too few"
    elif how == 2:
        cells[column], why = f'"{cells[column]}', "a quote that is not closed"
    elif how == 3:
        lines[0], why = lines[0] + "," + lines[0].split(",")[column], "a column twice"
        lines[1:] = [line + ",1" for line in lines[1:]]
        cells = [*cells, "1"]
    elif how == 4:
        cells[column], why = cells[column] + "\0", "a zero byte"
    elif how == 5 and _is_number(cells[-1]):
        cells[-1] = draw.choice(
            ["nan", "inf", "-1", "0", "1e-320", "1e999", "", "abc", "1.5.5", "½", "١٢"]
        )
        if not (lines[0].endswith("score") and _is_number(cells[-1])):
            why = f"a last cell of {cells[-1]!r}"
    elif how == 6 and _is_number(cells[-1]):
        cells[-1], why = f'"{cells[-1].replace(".", ",")}"', "a decimal comma"
        if "," not in cells[-1]:
            why = ""
    elif how == 7:
        lines[0] = "\ufeff" + lines[0]
    elif how == 8:
        return damage_bytes(text.encode(), draw), ""
    elif how == 9:
        lines = lines[:1]
        return ("\n".join(lines) + "\n").encode(), "no rows"
    elif how == 10:
        cells[column] = draw.choice(TEXTS).replace(",", ";").replace('"', "").replace("\n", " ")
    else:
        draw.shuffle(lines)
        return ("\n".join(lines) + "\n").encode("utf-8", "replace"), ""
    lines[row] = ",".join(cells)
    return ("\n".join(lines) + "\n").encode("utf-8", "replace"), why


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def damage_onnx(content: bytes, draw: random.Random) -> bytes:
    """A network whose dimensions, attributes, names or nodes are others."""
    import onnx

    if draw.random() < 0.25:
        return damage_bytes(content, draw)
    model = onnx.load_from_string(content)
    sizes = [0, -1, 1, 7, 2**31 - 1, 2**62, -(2**63)]
    for _ in range(draw.choice((1, 1, 2, 4))):
        graph = model.graph
        how = draw.randrange(8)
        node = draw.choice(graph.node) if graph.node else onnx.NodeProto()
        if how == 0 and graph.initializer:
            tensor = draw.choice(graph.initializer)
            if tensor.dims:
                tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(sizes)
        elif how == 1:
            shape = graph.input[0].type.tensor_type.shape
            if shape.dim:
                shape.dim[draw.randrange(len(shape.dim))].dim_value = draw.choice(sizes)
        elif how == 2 and node.attribute:
            attribute = draw.choice(node.attribute)
            if attribute.ints:
                attribute.ints[draw.randrange(len(attribute.ints))] = draw.choice(sizes)
            else:
                attribute.i = draw.choice(sizes)
        elif how == 3 and node.input:
            node.input[draw.randrange(len(node.input))] = draw.choice(
                ["x", "y", "", "c0", "\x1b[31m"]
            )
        elif how == 4:
            kinds = "Reshape MatMul Loop If Gemm Resize Expand ConstantOfShape LSTM Tile \x1b[0m"
            node.op_type = draw.choice(kinds.split())
        elif how == 5 and graph.initializer:
            tensor = draw.choice(graph.initializer)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(
                key="location", value=draw.choice(["../../etc/passwd", "/dev/zero", "none.bin", ""])
            )
            tensor.external_data.add(
                key="offset", value=draw.choice(["-1", "99999999999999999999", "x"])
            )
            tensor.raw_data = b""
        elif how == 6:
            graph.node.extend([copy.deepcopy(node)] * draw.choice((1, 50)))
        elif graph.node:
            del graph.node[draw.randrange(len(graph.node))]
    made: bytes = model.SerializeToString()
    return made


# ---- Cases of each kind; `folder` holds the whole inputs, the damaged one is written beside them.


EPOCH = "--samples 1000 --batch-size 4"
OF_MODELS = [
    "predict damaged.json net0.onnx --json", "predict damaged.json net1.onnx", "show damaged.json",
    "report damaged.json net2.onnx --json", "report damaged.json net0.onnx",
    "fit damaged.json --output out.json",
    "explain damaged.json net0.onnx --json", "report damaged.json net0.onnx --html o.html",
    "budget damaged.json net0.onnx --max-ms 5 --vary batch --json",
    f"training predict damaged.json net0.onnx {EPOCH} --json",
    f"cost damaged.json net0.onnx {EPOCH} --price-per-hour 1 --json",
]  # fmt: skip
OF_TABLES = {
    "points.csv": ["fit damaged.csv --output out.json"],
    "networks.csv": [
        "evaluate a100-fp32.json --table damaged.csv --json", "fit damaged.csv --output out.json",
    ],
    "convolutions.csv": ["fit damaged.csv networks.csv --output out.json"],
    "epochs.csv": ["training fit damaged.csv --output out.json --json"],
    "samples.csv": ["nas fit nasbench201 damaged.csv --output out.json --json"],
    "scores.csv": ["nas search nasbench201 epyc-2t.json --objective damaged.csv --json"],
    "prices.csv": [
        f"cost rtx-3090-amp.json net0.onnx --prices damaged.csv --accelerator V100 --as-if {EPOCH} --json",
        "prices --prices damaged.csv --json",
    ],
}  # fmt: skip
OF_NETWORKS = [
    "predict a100-fp32.json damaged.onnx --json", "report epyc-2t.json damaged.onnx",
    "explain epyc-2t.json damaged.onnx", "report epyc-2t.json damaged.onnx --html o.html",
]  # fmt: skip
RIGHT = [
    "predict a100-fp32.json net0.onnx", "report epyc-2t.json net0.onnx", "explain epyc-2t.json net0.onnx",
    "budget epyc-2t.json net0.onnx --vary batch --max-ms 5", "show epyc-2t.json", "models", "prices",
    f"cost rtx-3090-amp.json net0.onnx {EPOCH} --price-per-hour 2", "fit points.csv --output out.json",
    f"training predict rtx-3090-amp.json net0.onnx {EPOCH}", "nas suggest nasbench201",
    "evaluate a100-fp32.json --table networks.csv", "suggest --output todo.csv",
    "nas search nasbench201 epyc-2t.json --objective scores.csv",
]  # fmt: skip
KEPT_OUT = {"--help", "--ray", "--fleet", "--state", "--port", "--journal"}


def model_case(draw: random.Random, folder: Path) -> list[str]:
    """A damaged model file, asked something."""
    text = (folder / draw.choice(MODELS)).read_text(encoding="utf-8")
    if draw.random() < 0.15:
        (folder / "damaged.json").write_bytes(damage_bytes(text.encode(), draw))
    else:
        (folder / "damaged.json").write_text(
            damage_document(json.loads(text), draw), encoding="utf-8"
        )
    return draw.choice(OF_MODELS).split()


def table_case(draw: random.Random, folder: Path) -> tuple[list[str], str]:
    """A damaged table, given to what reads it; and why it must be refused."""
    name = draw.choice(sorted(OF_TABLES))
    content, why = damage_table((folder / name).read_text(encoding="utf-8"), draw)
    (folder / "damaged.csv").write_bytes(content)
    return draw.choice(OF_TABLES[name]).split(), why


def network_case(draw: random.Random, folder: Path) -> list[str]:
    """A damaged network's file."""
    whole = (folder / f"net{draw.randrange(3)}.onnx").read_bytes()
    (folder / "damaged.onnx").write_bytes(damage_onnx(whole, draw))
    return draw.choice(OF_NETWORKS).split()


def options_case(draw: random.Random, folder: Path) -> list[str]:
    """A right command with one to three options of any value, or a wrong argument."""
    import click

    from lolat.cli.main import lolat

    arguments = draw.choice(RIGHT).split()
    command: click.Command = lolat
    context = click.Context(lolat)
    for word in arguments:
        if (
            not isinstance(command, click.Group)
            or (found := command.get_command(context, word)) is None
        ):
            break
        command = found
    options = [
        p for p in command.params if isinstance(p, click.Option) and not KEPT_OUT & set(p.opts)
    ]
    for option in draw.sample(options, min(len(options), draw.choice((1, 1, 2, 3)))):
        arguments.append(option.opts[0])
        if not option.is_flag:
            values = [*TEXTS, *map(str, NUMBERS), "net1.onnx", "o.svg", "epyc-2t.json", "."]
            arguments.append(draw.choice(values))
    if draw.random() < 0.2:
        arguments[draw.randrange(len(arguments))] = draw.choice(TEXTS)
    return arguments


def query_case(draw: random.Random, folder: Path) -> list[str]:
    """A query of the page's server: its path and query string."""
    fields = [
        "network", "model", "device", "batch_size", "input_size", "samples", "epochs", "optimizer",
        "replicas", "link_gbps", "price", "strategy", "max_ms", "vary", "sure", "coverage", "tab", "q",
    ]  # fmt: skip
    values = [*TEXTS, *map(str, NUMBERS), "keras:ResNet50", "generate:fc?layers=10", "epyc-2t"]
    pairs = [(draw.choice(fields), draw.choice(values)) for _ in range(draw.randrange(1, 9))]
    paths = [
        "/",
        "/",
        "/latency",
        "/budget",
        "/training",
        "/report",
        "/answer",
        "/x",
        "//",
        "/static/../app.py",
    ]
    path = draw.choice(paths)
    return ["<get>", path + "?" + "&".join(f"{quote_plus(a)}={quote_plus(b)}" for a, b in pairs)]


KINDS: dict[str, Callable[[random.Random, Path], Any]] = {
    "models": model_case,
    "tables": table_case,
    "networks": network_case,
    "options": options_case,
    "queries": query_case,
}


def make_case(kind: str, seed: int, folder: Path) -> Case:
    """The case of a seed; its files are in `folder`, which holds the whole ones."""
    draw = random.Random(f"{kind}:{seed}")
    made = KINDS[kind](draw, folder)
    arguments, why = made if isinstance(made, tuple) else (made, "")
    return Case(kind, seed, [a.replace("\0", "\ufffd") for a in arguments], why)


# ---- Running one, and what is wrong with what came of it.


@dataclass(frozen=True)
class Outcome:
    """How a case ended: an exit code or the signal that killed it, what it wrote, seconds."""

    code: int | None
    signal: int | None
    stdout: str
    stderr: str
    took_s: float


def run(case: Case, folder: Path) -> Outcome:
    """Run a case in a process of its own, in `folder`."""
    out, err = folder / "stdout.txt", folder / "stderr.txt"
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _run_here(case.arguments, folder, out, err)
    _, status = os.waitpid(pid, 0)
    took = time.monotonic() - began
    code = os.waitstatus_to_exitcode(status)
    stdout, stderr = (p.read_text(encoding="utf-8", errors="backslashreplace") for p in (out, err))
    return Outcome(code if code >= 0 else None, -code if code < 0 else None, stdout, stderr, took)


def _run_here(arguments: Sequence[str], folder: Path, out: Path, err: Path) -> None:
    """In the forked process: never returns."""
    code = 99
    try:
        os.chdir(folder)
        for path, number in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        for name, number in (("stdout", 1), ("stderr", 2)):
            setattr(
                sys,
                name,
                io.TextIOWrapper(
                    io.FileIO(number, "w", closefd=False), "utf-8", "backslashreplace"
                ),
            )
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + LIMIT_BYTES, now + LIMIT_BYTES))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT_S)
        code = _get(arguments[1]) if arguments[0] == "<get>" else _command(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _command(arguments: Sequence[str]) -> int:
    from lolat.cli.common import run as run_command
    from lolat.cli.main import lolat

    return run_command(lolat, list(arguments), "lolat")


def _get(path: str) -> int:
    """Ask the page's server, in this process: 0 for an answer, 2 for one of 4xx, 1 for 5xx."""
    from starlette.testclient import TestClient

    from lolat.web.app import create_app

    client = TestClient(create_app(), base_url="http://127.0.0.1:8000")
    status = client.get(path).status_code
    print(f"status {status}", file=sys.stderr if status >= 400 else sys.stdout)
    return 0 if status < 400 else 2 if status < 500 else 1


def faults(case: Case, outcome: Outcome) -> list[str]:
    """What is wrong with an outcome; nothing for a good one."""
    found = []
    if outcome.signal is not None:
        found.append(f"killed by signal {outcome.signal} after {outcome.took_s:.0f} s")
    for word in ("Traceback", "lolat: unexpected", "not enough memory"):
        if word in outcome.stderr:
            found.append(f"says {word!r}")
    if any(not c.isprintable() and c not in "\n\t" for c in outcome.stdout + outcome.stderr):
        found.append("writes characters that are not printable")
    if outcome.signal is None and outcome.code not in (0, 2, 3):
        found.append(f"exit code {outcome.code}")
    if case.kind == "queries":
        return found
    errors = [line for line in outcome.stderr.splitlines() if not line.startswith("lolat: warning")]
    if outcome.code == 2 and not (errors and errors[-1].startswith("lolat: ")):
        found.append("an error without a line of lolat's")
    if outcome.code == 2 and len(errors[-1] if errors else "") > 1000:
        found.append(f"an error of {len(errors[-1])} characters")
    if outcome.code == 0 and case.must_refuse:
        found.append(f"takes a table with {case.must_refuse}")
    if outcome.code == 0 and "--json" in case.arguments and "--help" not in case.arguments:
        found += _faults_of_json(outcome.stdout, whole=case.arguments[0] in ("predict", "report"))
    return found


def _faults_of_json(text: str, whole: bool) -> list[str]:
    """Of an answer; `whole`: its blocks are all that there are."""

    def refuse(constant: str) -> None:
        raise ValueError(f"holds {constant}")

    try:
        answer = json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return [f"--json is not strict JSON ({error})"]
    if not isinstance(answer, dict):
        return ["--json is not one object"]
    found = []
    latency, interval = answer.get("latency_ms"), answer.get("interval_ms")
    if isinstance(latency, int | float) and not (0.0 < latency < math.inf):
        found.append(f"a latency of {latency} ms")
    if interval and latency is not None and not interval[0] <= latency <= interval[1]:
        found.append(f"{latency} ms outside its own interval {interval}")
    blocks = answer.get("blocks")
    if whole and blocks and latency and isinstance(blocks[0], dict) and "latency_ms" in blocks[0]:
        total = sum(block["latency_ms"] for block in blocks)
        if not math.isclose(total, latency, rel_tol=1e-6, abs_tol=1e-12):
            found.append(f"blocks of {total} ms in all for {latency} ms")
    return found


def warm_up() -> None:
    """Import what the cases need, once and before they are forked."""
    import numpy  # noqa: F401
    import onnx  # noqa: F401
    import rich.table  # noqa: F401
    import starlette.testclient  # noqa: F401

    import lolat.cli.cost
    import lolat.cli.evaluate
    import lolat.cli.fit
    import lolat.cli.nas
    import lolat.cli.predict
    import lolat.cli.show
    import lolat.cli.training
    import lolat.model
    import lolat.readers.onnx
    import lolat.report.text
    import lolat.web.app  # noqa: F401


def fuzz(
    kinds: Sequence[str], cases: int, seed: int, whole: Path
) -> Iterator[tuple[Case, Outcome, list[str]]]:
    """`cases` cases shared out among kinds; each in a copy of `whole` that is thrown away."""
    for index in range(cases):
        kind = kinds[index % len(kinds)]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for path in whole.iterdir():
                os.link(path, folder / path.name)
            case = make_case(kind, seed + index // len(kinds), folder)
            outcome = run(case, folder)
            yield case, outcome, faults(case, outcome)


def main() -> int:
    """Run, print what was found; exit code 3 if anything was."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    parser.add_argument("--case", help="one again, such as tables:123")
    given = parser.parse_args()
    kinds, seed, cases = given.only.split(","), given.seed, given.cases
    if given.case:
        kind, _, number = given.case.partition(":")
        kinds, seed, cases = [kind], int(number), 1
    warm_up()
    found: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as name:
        make_whole(Path(name))
        for case, outcome, wrong in fuzz(kinds, cases, seed, Path(name)):
            codes[f"{case.kind} {outcome.code}"] += 1
            slowest = max(slowest, outcome.took_s)
            if wrong or given.case:
                last = (outcome.stderr.strip().splitlines() or [""])[-1]
                print(f"{case.name}  {'; '.join(wrong) or 'nothing wrong'}")
                print(f"    {' '.join(case.arguments)[:300]!a}\n    {last[:300]!a}", flush=True)
            if given.case:
                print(outcome.stdout, outcome.stderr, sep="\n")
            for fault in wrong:
                found[f"{case.kind}: {fault.partition(' after ')[0][:60]}"] += 1
    print(f"{cases} cases, slowest {slowest:.1f} s; exit codes: {dict(sorted(codes.items()))}")
    for fault, times in found.most_common():
        print(f"{times:6d}  {fault}")
    return 3 if found else 0


if __name__ == "__main__":
    sys.exit(main())
