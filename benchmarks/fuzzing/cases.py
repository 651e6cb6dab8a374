"""The cases of each kind: a command of LoLat's and its damaged input, both made from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from benchmarks.fuzzing import damage
from benchmarks.fuzzing.whole import MODELS, SECTIONS


@dataclass
class Case:
    """One command line, and what is known of its input."""

    kind: str
    seed: int
    arguments: list[str]
    must_refuse: str = ""  # why exit code 0 would be wrong
    must_answer: bool = False

    @property
    def name(self) -> str:
        """What shows it again."""
        return f"{self.kind}:{self.seed}"


# ---- Cases of each kind; `folder` holds the whole inputs, the damaged one is written beside them.


EPOCH = "--samples 1000 --batch-size 4"
OF_MODELS = [
    "predict damaged.json net0.onnx --json", "predict damaged.json net1.onnx", "show damaged.json",
    "report damaged.json net2.onnx --json", "report damaged.json net0.onnx",
    "fit damaged.json --output out.json",
    "explain damaged.json net0.onnx --json", "report damaged.json net0.onnx --html o.html",
    "budget damaged.json net0.onnx --max-ms 20 --vary batch --json",
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
OF_TABLES |= {
    "operations.csv": ["fit damaged.csv --facts facts.csv --name l4 --output out.json"],
    "facts.csv": ["fit operations.csv --facts damaged.csv --name l4 --output out.json"],
    "gpus.csv": ["mlp predict dense.json dense.csv --facts damaged.csv --output o.csv --json"],
    "dense.csv": ["mlp predict dense.json damaged.csv --output o.csv --json"],
    "convolution.csv": ["mlp predict convolution.json damaged.csv --output o.csv --json"],
}  # fmt: skip
LAYER_TABLES = ("dense.csv", "convolution.csv")
OF_SECTIONS = [
    f"training predict damaged.json net0.onnx {EPOCH} --json",
    f"training predict damaged.json net0.onnx {EPOCH} --replicas 4 --strategy mirrored --json",
    f"training predict damaged.json net1.onnx {EPOCH} --replicas 2 --optimizer adam",
    f"cost damaged.json net0.onnx {EPOCH} --price-per-hour 1 --replicas 1,2,4 --json",
    "nas score nasbench201 damaged.json --among samples.csv --output o.csv --json",
    "show damaged.json",
    "nas search nasbench201 damaged.json --objective scores.csv --json",
    "predict damaged.json net0.onnx --json",
]  # fmt: skip
OF_LAYERS = {
    "dense.json": [
        "mlp predict damaged.json dense.csv --output o.csv --json",
        "mlp network convolution.json damaged.json net0.onnx --gpu V100 --json",
    ],
    "convolution.json": [
        "mlp predict damaged.json convolution.csv --facts gpus.csv --output o.csv --json",
        "mlp network damaged.json dense.json net1.onnx --gpu V100 --samples 1000 --optimizer adam --json",
    ],
}
OF_GRAPHS = [
    "predict a100-fp32.json damaged.json --json", "predict epyc-2t.json damaged.json --json",
    "report epyc-2t.json damaged.json --json", "report epyc-2t.json damaged.json",
    "explain epyc-2t.json damaged.json --json", "report epyc-2t.json damaged.json --html o.html",
    "budget epyc-2t.json damaged.json --max-ms 20 --vary width --json",
    "budget epyc-2t.json damaged.json --max-ms 20 --vary batch --json",
    "budget epyc-2t.json damaged.json --max-ms 20 --vary resolution --json",
    "read damaged.json --output o.json --json",
    f"training predict epyc-2t.json damaged.json {EPOCH} --json",
    "mlp network convolution.json dense.json damaged.json --gpu V100 --json",
    "predict epyc-2t.json net0.onnx --against damaged.json --max-ratio 2",
]  # fmt: skip
OF_PREDICTIONS = ["predict epyc-2t.json net0.onnx --against damaged.json --max-ratio 1.1 --json"]
OF_NETWORKS = [
    "predict a100-fp32.json damaged.onnx --json", "report epyc-2t.json damaged.onnx",
    "explain epyc-2t.json damaged.onnx", "read damaged.onnx --output o.json",
    "report epyc-2t.json damaged.onnx --html o.html",
]  # fmt: skip
RIGHT = [
    "predict a100-fp32.json net0.onnx", "report epyc-2t.json net0.onnx", "explain epyc-2t.json net0.onnx",
    "budget epyc-2t.json net0.onnx --vary batch --max-ms 5", "show epyc-2t.json", "models", "prices",
    f"cost rtx-3090-amp.json net0.onnx {EPOCH} --price-per-hour 2", "fit points.csv --output out.json",
    f"training predict rtx-3090-amp.json net0.onnx {EPOCH}",
    "evaluate a100-fp32.json --table networks.csv",
    "nas search nasbench201 epyc-2t.json --objective scores.csv",
]  # fmt: skip
OF_FILE = ("training", "epochs", "spaces")
KEPT_OUT = {"--help", "--ray", "--port", "--scores"}


def model_case(draw: random.Random, folder: Path) -> list[str]:
    """A damaged model file, asked something."""
    text = (folder / draw.choice(MODELS)).read_text(encoding="utf-8")
    if draw.random() < 0.15:
        (folder / "damaged.json").write_bytes(damage.damage_bytes(text.encode(), draw))
    else:
        (folder / "damaged.json").write_text(
            damage.damage_document(json.loads(text), draw), encoding="utf-8"
        )
    return draw.choice(OF_MODELS).split()


def table_case(draw: random.Random, folder: Path) -> tuple[list[str], str]:
    """A damaged table, given to what reads it; and why it must be refused."""
    name = draw.choice(sorted(OF_TABLES))
    content, why = damage.damage_table((folder / name).read_text(encoding="utf-8"), draw)
    (folder / "damaged.csv").write_bytes(content)
    if name in LAYER_TABLES and why.startswith(("a last cell", "a decimal comma", "no rows")):
        why = ""  # the last column is a measured time, which a prediction does not look at
    if name == "prices.csv" and why in ("a last cell of ''", "a last cell of '0'"):
        why = ""  # the instance is left out, or it costs nothing: both may be so
    return draw.choice(OF_TABLES[name]).split(), why


def section_case(draw: random.Random, folder: Path) -> list[str]:
    """A model file whose sections of training, epochs or spaces are damaged."""
    return _of_document(
        draw, folder, draw.choice((SECTIONS, "measured.json")), OF_SECTIONS, OF_FILE
    )


def layers_case(draw: random.Random, folder: Path) -> list[str]:
    """A damaged layer model."""
    name = draw.choice(sorted(OF_LAYERS))
    return _of_document(draw, folder, name, OF_LAYERS[name])


def graph_case(draw: random.Random, folder: Path) -> list[str]:
    """A damaged file of what `lolat read` writes."""
    return _of_document(draw, folder, "read.json", OF_GRAPHS)


def prediction_case(draw: random.Random, folder: Path) -> list[str]:
    """A damaged earlier prediction."""
    return _of_document(draw, folder, "before.json", OF_PREDICTIONS)


def _of_document(
    draw: random.Random, folder: Path, name: str, commands: list[str], within: tuple[str, ...] = ()
) -> list[str]:
    document = json.loads((folder / name).read_text(encoding="utf-8"))
    text = damage.damage_document(document, draw, within)
    (folder / "damaged.json").write_text(text, encoding="utf-8")
    return draw.choice(commands).split()


def archive_case(draw: random.Random, folder: Path) -> list[str]:
    """A damaged .keras file."""
    content = damage.damage_archive((folder / "net.keras").read_bytes(), draw)
    (folder / "damaged.keras").write_bytes(content)
    return ["predict", "epyc-2t.json", "damaged.keras", "--json"]


def network_case(draw: random.Random, folder: Path) -> list[str]:
    """A damaged network's file."""
    whole = (folder / f"net{draw.randrange(3)}.onnx").read_bytes()
    (folder / "damaged.onnx").write_bytes(damage.damage_onnx(whole, draw))
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
            values = [
                *damage.TEXTS,
                *map(str, damage.NUMBERS),
                "net1.onnx",
                "o.svg",
                "epyc-2t.json",
                ".",
            ]
            arguments.append(draw.choice(values))
    if draw.random() < 0.2:
        arguments[draw.randrange(len(arguments))] = draw.choice(damage.TEXTS)
    return arguments


def query_case(draw: random.Random, folder: Path) -> list[str]:
    """A query of the page's server: its path and query string."""
    from lolat.web.form import FIELDS

    fields = [*FIELDS, "price.epyc-2t", "memory.a100-fp32", "model", "q", "file"]
    values = [
        *damage.TEXTS, *map(str, damage.NUMBERS), "keras:ResNet50", "generate:vgg?layers=2",
        "epyc-2t", "a100-fp32", "1,8", "0.9", "adam", "a" * 64,
    ]  # fmt: skip
    right = [("view", draw.choice(("latency", "budget", "training"))), ("model", "epyc-2t")]
    right.append(("source", draw.choice(("keras", "upload"))))
    pairs = [(draw.choice(fields), draw.choice(values)) for _ in range(draw.randrange(1, 9))]
    pairs += draw.sample(right, draw.randrange(4))
    paths = ["/", "/", "/", "/report", "/upload", "/x", "//", "/static/../app.py"]
    path = draw.choice(paths)
    return ["<get>", path + "?" + "&".join(f"{quote_plus(a)}={quote_plus(b)}" for a, b in pairs)]


def upload_case(draw: random.Random, folder: Path) -> list[str]:
    """A request with a network's file to the page's server: its Content-Type, and the body in a file."""
    content = (folder / f"net{draw.randrange(3)}.onnx").read_bytes()
    if draw.random() < 0.5:
        content = damage.damage_onnx(content, draw)
    texts = [*damage.TEXTS, *map(str, damage.NUMBERS)]
    fields = [("view", draw.choice(("latency", "budget", "training"))), ("model", "epyc-2t")]
    value = draw.choice([draw.choice(texts), "3,32,32", ""])
    fields += [(draw.choice(("file_size", "batch_size", "view", "x")), value)]
    sent_as, body = damage.multipart(content, draw.sample(fields, draw.randrange(4)), draw)
    (folder / "body").write_bytes(body)
    return ["<post>", sent_as, "body"]


def commands() -> list[tuple[str, str]]:
    """Every command, with the input that it is asked about undamaged ("": none is)."""
    sources = [(MODELS[0], OF_MODELS), *OF_TABLES.items(), (SECTIONS, OF_SECTIONS)]
    sources += [("measured.json", OF_SECTIONS), *OF_LAYERS.items(), ("read.json", OF_GRAPHS)]
    sources += [("before.json", OF_PREDICTIONS), ("net0.onnx", OF_NETWORKS), ("", RIGHT)]
    return [(name, command) for name, commands in sources for command in commands]


def whole_case(number: int, folder: Path) -> list[str]:
    """The command of a number, and nothing damaged: it is answered, or the other cases say little."""
    known = commands()
    name, command = known[number % len(known)]
    if name:
        damaged = folder / f"damaged{Path(name).suffix}"
        damaged.write_bytes((folder / name).read_bytes())
    return command.split()


KINDS: dict[str, Callable[[random.Random, Path], Any]] = {
    "models": model_case,
    "tables": table_case,
    "networks": network_case,
    "options": options_case,
    "queries": query_case,
    "sections": section_case,
    "layers": layers_case,
    "graphs": graph_case,
    "predictions": prediction_case,
    "uploads": upload_case,
}


SLOW_KINDS: dict[str, Callable[[random.Random, Path], Any]] = {
    "archives": archive_case,
    "files": network_case,
}
"""Asked for by name: files in a process of its own, which waits for its framework."""


def make_case(kind: str, seed: int, folder: Path) -> Case:
    """The case of a seed; its files are in `folder`, which holds the whole ones."""
    if kind == "whole":
        return Case(kind, seed, whole_case(seed, folder), must_answer=True)
    draw = random.Random(f"{kind}:{seed}")
    made = (KINDS | SLOW_KINDS)[kind](draw, folder)
    arguments, why = made if isinstance(made, tuple) else (made, "")
    return Case(kind, seed, [a.replace("\0", "\ufffd") for a in arguments], why)
