"""Right input made wrong where its structure is: documents, tables, networks, archives, bytes."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import zipfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

TEXTS = [
    "", " ", "0", "-1", "nan", "inf", "-Infinity", "1e999", "1e-320", "1e308", "9" * 400, "1,5", "1.234,5",
    "1 000", "0x10", "1_000", "١٢", "½", "true", "null", "\x1b[31mred\x1b[0m", "\u202eabc", "a\nb",
    "a\tb", "<b>&amp;", "'; --", "../../etc/passwd", "/dev/zero", "%s%n", "{0}", "=1+1", "A" * 5000, "😀",
    "keras:", "generate:vgg?", "local", "--help", "-", ":", "a:b:c", "os:getcwd",
]  # fmt: skip
NUMBERS = [0, -1, 1, 2**31, 2**53 + 1, 2**63, 10**400, 0.0, -0.0, 1e-320, 1e308, -1e308, 0.5, 1e15]
SIZES = [2, 3, 7, 64, 1000, 2**20, 2**30, 2**40, 2**62, 2**63 - 1, 1e-9, 1e9, 1e-300, 1e300]
"""Numbers that a schema takes, and an answer may not."""
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


def damage_document(document: Any, draw: random.Random, within: Sequence[str] = ()) -> str:
    """JSON text of a copy in which one to three values are others, gone, doubled or moved.

    `within`: only in what stands under these keys.
    """
    made = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        # Lists of points hold most values: half of the draws stay near the top.
        places = [p for p in _places(made) if p and (draw.random() < 0.5 or len(p) < 5)]
        places = [p for p in places if not within or p[0] in within]
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
        elif how in (1, 5) and isinstance(holder[key], int | float) and draw.random() < 0.8:
            holder[key] = draw.choice([*NUMBERS, *SIZES])
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
    return _damage_text(json.dumps(made), draw)


def _damage_text(text: str, draw: random.Random) -> str:
    """Now and then: a number that JSON has not, half of a pair of surrogates, a key twice."""
    how = draw.random()
    if how < 0.1:
        wrong = draw.choice(["NaN", "1e999", "-", "9" * 5000])
        return text.replace(draw.choice("0123456789"), wrong, 1)
    if how < 0.2:
        quotes = [i for i, c in enumerate(text) if c == '"'] or [0]
        at = draw.choice(quotes) + 1
        return (
            text[:at] + draw.choice(["\\ud800", "\\udc00\\ud800", "\\u0000", "\\u202e"]) + text[at:]
        )
    if how < 0.25 and text.startswith('{"'):
        key = text[: text.index('"', 2) + 1]
        value = json.dumps(draw.choice(VALUES))
        return draw.choice([f"{key}: {value}, {text[1:]}", f"{text[:-1]}, {key[1:]}: {value}}}"])
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
        cells[column] = (
            draw.choice([*TEXTS, "x" * 200_000])
            .replace(",", ";")
            .replace('"', "")
            .replace("\n", " ")
        )
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


def nested_functions(content: bytes, depth: int, width: int) -> bytes:
    """A network with a function that calls the one below `width` times, and so on, `depth` deep."""
    import onnx
    from onnx import helper

    model = onnx.load_from_string(content)
    domain, opsets = "own", [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for level in range(depth):
        op, of = (f"f{level - 1}", domain) if level else ("Relu", "")
        names = ["a", *(f"t{i}" for i in range(width - 1)), "b"]
        nodes = [helper.make_node(op, [x], [y], domain=of) for x, y in pairwise(names)]
        model.functions.append(
            helper.make_function(domain, f"f{level}", ["a"], ["b"], nodes, opsets)
        )
    model.opset_import.append(helper.make_opsetid(domain, 1))
    call = helper.make_node(f"f{depth - 1}", [model.graph.node[-1].output[0]], ["z"], domain=domain)
    model.graph.node.append(call)
    made: bytes = model.SerializeToString()
    return made


def damage_archive(content: bytes, draw: random.Random) -> bytes:
    """A zip archive with an entry that is another, gone, renamed, larger; or damaged bytes."""
    if draw.random() < 0.3:
        return damage_bytes(content, draw)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    described = [i for i, (name, _) in enumerate(entries) if name.endswith(".json")]
    at = draw.choice(described or range(len(entries)))
    name, data = entries[at]
    how = draw.randrange(6)
    if how <= 2:
        with contextlib.suppress(ValueError):
            data = damage_document(json.loads(data), draw).encode()
    elif how == 3:
        data = damage_bytes(data, draw)
    elif how == 4:
        name = draw.choice(["../" + name, "x" * 60_000, name[::-1], "/etc/" + name])
    else:
        data = b"[" * draw.choice((10, 2 * 10**5)) + data + b" " * draw.choice((0, 10**8))
    entries[at] = name, data
    if draw.random() < 0.1:
        del entries[draw.randrange(len(entries))]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return made.getvalue()


def damage_onnx(content: bytes, draw: random.Random) -> bytes:
    """A network whose dimensions, attributes, names or nodes are others."""
    import onnx

    if draw.random() < 0.25:
        return damage_bytes(content, draw)
    model = onnx.load_from_string(content)
    if draw.random() < 0.1:
        return nested_functions(content, draw.choice((3, 12, 40, 200)), draw.choice((1, 2, 10)))
    sizes = [0, -1, 1, 7, 2**31 - 1, 2**62, -(2**63)]
    for _ in range(draw.choice((1, 1, 2, 4))):
        graph = model.graph
        how = draw.randrange(9)
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
                key="offset",
                value=draw.choice(["-1", "0", "9" * 20, "9" * 5000, "x", "\u0661", "1e3"]),
            )
            tensor.raw_data = b""
        elif how == 8 and graph.initializer:
            # Weights whose channels are all of one odd number, and nothing behind them.
            tensor = draw.choice(graph.initializer)
            tensor.dims[:] = [draw.choice(sizes)] * draw.choice((0, 1, 2, 4, 5, 40))
            tensor.raw_data = b""
        elif how == 6:
            graph.node.extend([copy.deepcopy(node)] * draw.choice((1, 50)))
        elif graph.node:
            del graph.node[draw.randrange(len(graph.node))]
    made: bytes = model.SerializeToString()
    return made


FILE_NAMES = ["net.onnx", "net.onnx", "NET.ONNX", "net.keras", "net", ".onnx", "../x.onnx",
              "a\\b.onnx", "\u202exnno.onnx", "é.onnx", "x" * 300 + ".onnx", '"; name="size',
              "a\r\nb.onnx"]  # fmt: skip
TYPES = ["", "text/html", "application/octet-stream", "multipart/mixed; boundary=b", "x" * 5000]

SENT_AS = ["", "multipart/form-data", "application/json", "text/plain; charset=x",
           "application/x-www-form-urlencoded", "multipart/form-data; boundary=other",
           "multipart/form-data; boundary=bound; charset=x",
           "multipart/form-data; boundary=" + "b" * 5000]  # fmt: skip


def multipart(
    content: bytes, fields: Sequence[tuple[str, str]], draw: random.Random
) -> tuple[str, bytes]:
    """What a browser sends with a file and `fields`, damaged or not: its Content-Type and the body."""
    parts = [f'name="{name}"\r\n\r\n{text}'.encode() for name, text in fields]
    for _ in range(draw.choice((1,) * 9 + (0, 2, 5))):
        name = draw.choice(["file"] * 9 + ["source", "files", ""])
        kind = draw.choice(TYPES)
        head = f'name="{name}"; filename="{draw.choice(FILE_NAMES)}"'
        head += f"\r\nContent-Type: {kind}" * bool(kind)
        parts.append(head.encode() + b"\r\n\r\n" + content)
    parts *= draw.choice((1,) * 20 + (200,))
    draw.shuffle(parts)
    starts = (b"--bound\r\nContent-Disposition: form-data; " + part for part in parts)
    body = b"\r\n".join([*starts, b"--bound--\r\n"])
    sent_as = "multipart/form-data; boundary=bound"
    how = draw.randrange(10)
    if how == 0:
        body = damage_bytes(body, draw)
    elif how == 1:
        body = body.replace(b"\r\n", draw.choice([b"\n", b"\r", b"\r\n\r\n", b"\0"]))
    elif how == 2:
        sent_as = draw.choice(SENT_AS)
    elif how == 3:
        body = body[: draw.randrange(len(body))]
    return sent_as, body
