"""What torch.export took apart: a Program, from memory or a `.pt2` file; and why a network cannot be read.

Of a file the graph is read, its weights and pickles never are. `torch.export.load` unpickles example
inputs, some weights and constants, and evaluates the sizes that are written as formulas; any of them can
run code of the file's author. What LoLat needs is in one JSON document, whose formulas and names of
operations are checked before PyTorch sees them.
"""

from __future__ import annotations

import ast
import json
import operator
import os
import re
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import lolat
from lolat.errors import NetworkError
from lolat.units import one_line, shortened

# ---- Why a PyTorch network cannot be read, in one line that names the line of the user's code.

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NOISE = re.compile(r"^(?:\w+Error|Exception): |\(unhinted: .*?\)|\(Size-like symbols: .*?\)")


def source_line(trace: str | None) -> str:
    """ " at net.py:12" from the text of a traceback: its last line of the user's own code; else ""."""
    return _named(_FRAME.findall(trace or ""))


def user_line(error: BaseException) -> str:
    """The same from an exception and what caused it."""
    cause: BaseException | None = error
    while cause is not None:
        frames = [(f.filename, str(f.lineno)) for f in traceback.extract_tb(cause.__traceback__)]
        if line := _named(frames):
            return line
        cause = cause.__cause__ or cause.__context__
    return source_line(str(error))


def _named(frames: list[tuple[str, str]]) -> str:
    """The last frame of the user's own files; of an installed package that is not PyTorch, if none is."""
    frames = [f for f in frames if os.path.exists(f[0]) and not _is_ours(f[0])]
    own = [f for f in frames if "-packages/" not in f[0].replace("\\", "/")]
    file, line = (own or frames or [("", "")])[-1]
    near = os.path.relpath(file) if file else ""  # as a person in the working directory writes it
    return f" at {file if near.startswith('..') else near}:{line}" if file else ""


def reason(error: BaseException) -> str:
    """What went wrong, in a person's words where the exception is a known one."""
    text, kind = str(error), type(error).__name__
    traced = "symbolically traced variables cannot be used as inputs to control flow" in text
    if traced or kind == "GuardOnDataDependentSymNode" or "data-dependent" in text.lower():
        return "what it does depends on the values of a tensor, not on shapes alone"
    return shortened(_NOISE.sub("", one_line(error)))


def _is_ours(file: str) -> bool:
    """Whether a file belongs to PyTorch, to Python, or to LoLat."""
    file, package, python = (
        os.path.abspath(path).replace("\\", "/")
        for path in (file, os.path.dirname(lolat.__file__), os.path.dirname(os.__file__))
    )
    of_python = file.startswith(f"{python}/") and "-packages/" not in file
    return "-packages/torch/" in file or file.startswith(f"{package}/") or of_python


# ---- A network that torch.export took apart: its nodes, what is constant, shapes at any batch size.

Sizes = Callable[[Any, Any, bool], tuple[tuple[int, ...], bool]]
"""(a node, one of its tensors or its only one, whether an input grows with the batch) -> (shape at batch
size 1, whether the tensor grows with the batch)."""


@dataclass
class Program:
    """A graph of ATen operations. `inputs`: the names of the placeholders that a caller fills."""

    graph_module: Any
    inputs: frozenset[str]
    outputs: int
    """How many of the last outputs are the caller's; before those, what is written to buffers."""
    sizes: Sizes
    warnings: list[str] = field(default_factory=list)
    prefix: str = ""  # of module paths, left out
    number: Callable[[Any], int] = int
    """Of a size of the graph, where it may be a symbol."""


def is_tensor(value: Any) -> bool:
    """Whether what a node yields is a tensor (not a size, not several tensors)."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def tensors_of(value: Any) -> list[Any]:
    """The tensors that a node yields, None in place of what is none."""
    if isinstance(value, (tuple, list)):
        return [v if is_tensor(v) else None for v in value]
    return [value if is_tensor(value) else None]


def constants_and_inputs(signature: Any) -> tuple[frozenset[str], int]:
    """(names of the placeholders that a caller fills, number of outputs that a caller gets)."""
    kinds = [spec.kind.name for spec in signature.output_specs]
    inputs = {s.arg.name for s in signature.input_specs if s.kind.name == "USER_INPUT"}
    return frozenset(inputs), kinds.count("USER_OUTPUT")


def numbers(value: Any, node: Any) -> tuple[int, ...]:
    """The shape of a tensor; NetworkError where a size depends on the values of another tensor."""
    if all(isinstance(n, int) for n in value.shape):
        return tuple(value.shape)
    line = source_line(node.meta.get("stack_trace"))
    raise NetworkError(
        f"the size of what {node.name!r} makes{line} depends on the values of a tensor (as that of "
        "x[x > 0] does), so the network has no one latency; give a module whose shapes depend on shapes "
        "alone"
    )


def at_two_batches(first: Any, second: Any | None) -> tuple[Sizes, list[str]]:
    """Sizes by comparing exports at batch sizes 1 and 2, and remarks where they do not go together.

    `second` None: the network works at batch size 1 alone.
    """
    pairs: dict[int, tuple[Any, Any]] = {}
    same = second is not None and _paired(first, second, pairs)
    growth: dict[tuple[int, int], int] = {}  # (id of a node, which of its tensors) -> times as many
    odd: list[str] = []
    for one, two in pairs.values() if same else ():
        values = (tensors_of(node.meta.get("val")) for node in (one, two))
        for at, (a, b) in enumerate(zip(*values, strict=False)):
            if a is None or b is None:
                continue
            ours, theirs = prod(numbers(a, one)), prod(numbers(b, two))
            growth[id(one), at] = 1 if ours == theirs else 2
            if theirs not in (ours, 2 * ours):
                odd.append(one.name)

    def sizes(node: Any, value: Any, grows: bool) -> tuple[tuple[int, ...], bool]:
        mine = tensors_of(node.meta.get("val"))
        at = next((i for i, v in enumerate(mine) if v is value), 0)
        times = growth.get((id(node), at)) if same else None
        return numbers(value, node), grows if times is None else times > 1

    warnings = []
    if second is not None and not same:
        warnings.append(
            "the network does other operations at batch size 2 than at 1 (its code asks for the batch "
            "size); counted as at batch size 1, times the batch size"
        )
    elif odd:
        warnings.append(
            f"{len(odd)} tensors do not grow evenly with the batch size (first {odd[0]!r}); counted as at "
            "batch size 1, times the batch size"
        )
    return sizes, warnings


def _paired(first: Any, second: Any, pairs: dict[int, tuple[Any, Any]]) -> bool:
    """Fill `pairs` (id of a node -> both nodes); False when the graphs are not of the same operations."""
    ours, theirs = list(first.graph.nodes), list(second.graph.nodes)
    if len(ours) != len(theirs):
        return False
    for a, b in zip(ours, theirs, strict=True):
        inner = submodule(first, a)
        if a.op != b.op or (inner is None and str(a.target) != str(b.target)):
            return False
        if inner is not None and not _paired(inner, submodule(second, b), pairs):
            return False
        pairs[id(a)] = (a, b)
    return True


def submodule(graph_module: Any, node: Any) -> Any | None:
    """The graph inside a graph that a node names (for a call under no_grad, autocast), else None."""
    if node.op != "get_attr":
        return None
    module: Any = graph_module
    for part in str(node.target).split("."):
        module = getattr(module, part, None)
    return module if hasattr(module, "graph") else None


def with_symbols(assigned: Mapping[Any, int], batch: Any) -> Sizes:
    """Sizes of a program with open dimensions: symbols -> numbers; `batch` is 1, then 2, in them."""
    at_1, at_2 = ({**assigned, batch: n} for n in (1, 2))

    def sizes(node: Any, value: Any, grows: bool) -> tuple[tuple[int, ...], bool]:
        one = tuple(_number(n, at_1) for n in value.shape)
        return one, one != tuple(_number(n, at_2) for n in value.shape)

    return sizes


def _number(n: Any, symbols: Mapping[Any, int]) -> int:
    expression: Any = getattr(getattr(n, "node", None), "expr", None)
    return int(expression.subs(symbols) if hasattr(expression, "subs") else n)


def at_fixed_batch(batch: int) -> Sizes:
    """Sizes of a program exported for `batch` samples alone: what depends on inputs is divided."""

    def sizes(node: Any, value: Any, grows: bool) -> tuple[tuple[int, ...], bool]:
        shape = [int(n) for n in value.shape]
        if not grows or batch == 1:
            return tuple(shape), grows
        axes = [i for i, n in enumerate(shape) if n % batch == 0]
        if not axes:
            return tuple(shape), False
        exact = [i for i in axes if shape[i] == batch]
        axis = 0 if axes[0] == 0 else (exact or axes)[0]
        shape[axis] //= batch
        return tuple(shape), True

    return sizes


# ---- `.pt2` files, and programs in memory.

PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".joblib", ".tar")
LARGEST = 1 << 30  # bytes of a graph
_TARGET = re.compile(
    r"(?:torch\.ops\.|_operator\.|math\.|torch\.sym_|torch\._sym_)[\w.]+|#?\w+:[\w.:]+"
)
_NAMES = """
Symbol Integer Float Rational Add Mul Pow Min Max Mod PythonMod FloorDiv CleanDiv CeilDiv ModularIndexing
Where IntTrueDiv FloatTrueDiv FloatPow PowByNatural CeilToInt FloorToInt TruncToInt RoundToInt ToFloat
TruncToFloat RoundDecimal LShift RShift Identity Eq Ne Gt Ge Lt Le And Or Not StrictGreaterThan
GreaterThan StrictLessThan LessThan Equality Unequality floor ceiling Abs
"""
_FORMULAS = frozenset(_NAMES.split())
"""What a size may be computed with."""
_AGAIN = "write it again with torch.export.save(torch.export.export(net, (x,)), 'net.pt2')"


def refuse_pickle(path: str) -> None:
    """NetworkError when a path is that of a pickle by its name."""
    if path.lower().endswith(PICKLES):
        raise NetworkError(
            f"{shortened(path)!r} is a pickle, and opening a pickle runs whatever code is in it, so LoLat "
            "opens none; give package.module:callable that returns the module, or a .pt2 file of "
            "torch.export.save"
        )


def opened(path: str, size: tuple[int, ...]) -> Program:
    """The program in a `.pt2` file. Raises NetworkError for what is none, and for another version's."""
    name = shortened(path)
    try:
        with zipfile.ZipFile(path) as archive:
            document = _document(archive, name)
    except FileNotFoundError as error:
        raise NetworkError(
            f"no file {name!r}; expected a .pt2 file of torch.export.save"
        ) from error
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        pickled = _begins_like_a_pickle(path)
        what = "a pickle, which LoLat never opens" if pickled else "no .pt2 file, or a damaged one"
        raise NetworkError(f"{name!r} is {what} ({one_line(error)}); {_AGAIN}") from error
    check_safe(document, name)
    return _sized(*_graph(document, name), size, name)


def of_program(exported: Any, name: str, size: tuple[int, ...]) -> Program:
    """A Program of an ExportedProgram in memory."""
    return _sized(exported.graph_module, exported.graph_signature, size, name)


def _begins_like_a_pickle(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2)[:1] == b"\x80"
    except OSError:
        return False


def _document(archive: zipfile.ZipFile, name: str) -> Any:
    """The JSON document of the graph in an archive."""
    names = archive.namelist()
    documents = [n for n in names if re.search(r"(?:^|/)models/[^/]+\.json$", n)]
    documents += [n for n in names if n == "serialized_exported_program.json"]
    if len(documents) > 1:
        stems = ", ".join(Path(n).stem for n in documents)
        raise NetworkError(
            f"{name!r} holds {len(documents)} networks ({stems}); save the one to read in a file of its own"
        )
    what = ""
    if not documents:
        what = f"{name!r} is an archive without an exported program in it"
        if any(n.endswith(".pkl") for n in names):
            what = (
                f"{name!r} is an archive of torch.save or TorchScript with a pickle in it, which LoLat "
                "never opens"
            )
    elif archive.getinfo(documents[0]).file_size > LARGEST:
        what = f"the graph in {name!r} is larger than 1 GiB"
    if what:
        raise NetworkError(f"{what}; {_AGAIN}")
    try:
        return json.loads(archive.read(documents[0]))
    except (ValueError, RecursionError, zipfile.BadZipFile) as error:
        raise NetworkError(f"{name!r} is damaged ({one_line(error)}); {_AGAIN}") from error


def check_safe(document: Any, name: str) -> None:
    """NetworkError when a formula or the name of an operation is not what torch.export writes."""
    for key, value in _strings(document):
        what = ""
        if key in ("expr_str", "hint") and not is_formula(value):
            what = "a size"
        elif key == "target" and (
            not _TARGET.fullmatch(value) or "__" in value.replace(".__", ".")
        ):
            what = "an operation"
        if what:
            raise NetworkError(
                f"{name!r} has {shortened(value)!r} where PyTorch writes {what}; it was tampered with "
                "or is damaged, and is not opened"
            )


def _strings(document: Any) -> Iterator[tuple[str, str]]:
    """(key, text) of all texts in a JSON document."""
    todo: list[tuple[str, Any]] = [("", document)]
    while todo:
        key, value = todo.pop()
        if isinstance(value, dict):
            todo += value.items()
            todo += [("expr_str", k) for k in value if key == "range_constraints"]
        elif isinstance(value, list):
            todo += [(key, item) for item in value]
        elif isinstance(value, str):
            yield key, value


def is_formula(text: str) -> bool:
    """Whether a text is arithmetic on named sizes, with the functions that torch.export writes."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_arithmetic(node) for node in ast.walk(tree))


_SYMBOL = re.compile(r"[a-z]+\d+")
_ARITHMETIC = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.keyword, ast.operator,
               ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context, ast.Tuple)  # fmt: skip


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FORMULAS
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _SYMBOL.fullmatch(node.value) is not None
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (bool, int, float))
    if isinstance(node, ast.Name):
        return node.id in _FORMULAS or _SYMBOL.fullmatch(node.id) is not None
    return isinstance(node, _ARITHMETIC)


def _graph(document: Any, name: str) -> tuple[Any, Any]:
    """(graph module, signature) of a document; nothing of it is run."""
    from torch._export.serde import schema, serialize

    version = document.get("schema_version", {}) if isinstance(document, dict) else {}
    mine = tuple(schema.SCHEMA_VERSION)
    theirs = (version.get("major"), version.get("minor"))
    if theirs[0] != mine[0]:
        import torch

        by = document.get("torch_version", "") if isinstance(document, dict) else ""
        raise NetworkError(
            f"{name!r} was written by another PyTorch ({f'{by}, ' if by else ''}version {theirs[0]} of the "
            f"file, here PyTorch {torch.__version__} reads version {mine[0]}); {_AGAIN}"
        )
    _check_known(document, name)
    try:
        program = serialize._dict_to_dataclass(schema.ExportedProgram, document)
        program.graph_module.module_call_graph = []
        from torch.utils._sympy.numbers import int_oo
        from torch.utils._sympy.value_ranges import ValueRanges

        ranges = {
            k: ValueRanges(
                serialize._int_to_sympy_int(v.min_val, -int_oo),
                serialize._int_to_sympy_int(v.max_val, int_oo),
            )
            for k, v in program.range_constraints.items()
        }
        reader = serialize.GraphModuleDeserializer()
        result = reader.deserialize(program.graph_module, {}, {}, None, ranges)
    except Exception as error:
        raise NetworkError(
            f"the network in {name!r} cannot be read ({type(error).__name__}: {one_line(error)}): it is "
            f"damaged or of another version; {_AGAIN}"
        ) from error
    return result.graph_module, result.signature


def _check_known(document: Any, name: str) -> None:
    """NetworkError when an operation is of a package that is not imported here."""
    import torch

    for key, value in _strings(document):
        if key == "target" and value.startswith("torch.ops."):
            try:
                operator.attrgetter(value.removeprefix("torch.ops."))(torch.ops)
            except (AttributeError, RuntimeError):
                raise NetworkError(
                    f"{name!r} has the operation {shortened(value)}, which PyTorch does not know here; "
                    "give package.module:callable that imports the package it is from and returns the "
                    "module"
                ) from None


def _sized(graph_module: Any, signature: Any, size: tuple[int, ...], name: str) -> Program:
    """The program with its open sizes filled in: the first axis of its inputs is the batch."""
    inputs, outputs = constants_and_inputs(signature)
    values = [
        n.meta["val"]
        for n in graph_module.graph.nodes
        if n.op == "placeholder" and n.name in inputs and is_tensor(n.meta.get("val"))
    ]
    if not values:
        raise NetworkError(f"the network in {name!r} has no input that is a tensor; {_AGAIN}")
    symbols = [_symbol(v.shape[0]) for v in values if len(v.shape)]
    batch = next((s for s in symbols if s), None)
    assigned: dict[Any, int] = {}
    for value in values:
        wanted = _wanted(value, size)
        if size and not wanted and len(values) == 1:
            raise _other_size(values, size, name)
        for axis, n in enumerate(value.shape[1:]):
            symbol = _symbol(n)
            if symbol is None and wanted and int(n) != wanted[axis]:
                raise _other_size(values, size, name)
            if symbol is not None and symbol not in assigned and symbol != batch:
                if not wanted:
                    raise NetworkError(
                        f"the input of {name!r} has an open size ({_text(value)}); give it with "
                        "--input-size, for example --input-size 3,224,224"
                    )
                assigned[symbol] = wanted[axis]
    if batch is not None or assigned:
        open_sizes = partial(_number, symbols={**assigned, batch: 2})
        return Program(
            graph_module, inputs, outputs, with_symbols(assigned, batch), number=open_sizes
        )
    fixed = int(values[0].shape[0]) if len(values[0].shape) else 1
    return Program(graph_module, inputs, outputs, at_fixed_batch(fixed))


def _symbol(n: Any) -> Any:
    """The symbol of an open size; None for a number."""
    expression = getattr(getattr(n, "node", None), "expr", None)
    return expression if getattr(expression, "is_Symbol", False) else None


def _wanted(value: Any, size: tuple[int, ...]) -> tuple[int, ...]:
    """The size that was given for an input, () where none was: one number is for its open axes."""
    rest = value.shape[1:]
    if len(size) == 1 and len(rest) > 1:
        spatial = [_symbol(n) is not None for n in rest]
        spatial = spatial if any(spatial) else [i > 0 for i in range(len(rest))]
        return tuple(size[0] if s else int(n) for s, n in zip(spatial, rest, strict=True))
    return size if len(size) == len(rest) else ()


def _other_size(values: list[Any], size: tuple[int, ...], name: str) -> NetworkError:
    return NetworkError(
        f"--input-size {','.join(map(str, size))} does not fit {name!r}, which was exported for "
        f"{', '.join(map(_text, values))}; leave it out, or export the network for that size"
    )


def _text(value: Any) -> str:
    return "x".join("?" if _symbol(n) is not None else str(n) for n in value.shape[1:])
