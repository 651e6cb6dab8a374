"""A `.pt2` file as a Program: checked before PyTorch sees it, and against the shapes that it states.

Of a file the graph is read, its weights and pickles never are. `torch.export.load` unpickles example
inputs, some weights and constants, and evaluates the sizes that are written as formulas; any of them can
run code of the file's author. What LoLat needs is in one JSON document, whose formulas and names of
operations are checked before PyTorch sees them.

The file says of each tensor what shape it has, and counts go by that: a damaged one would be counted as a
network that cannot be. So each operation of ATen is asked once more, as torch.export did when it wrote the
file, on tensors that have a shape and no contents.
"""

from __future__ import annotations

import ast
import json
import operator
import re
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lolat.errors import NetworkError
from lolat.readers.torch.program import (
    Program,
    Sizes,
    base_name,
    constants_and_inputs,
    is_tensor,
    tensors_of,
)
from lolat.readers.torch.rules import GATES
from lolat.units import one_line, shortened

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
        number, sizes = (
            partial(_number, symbols={**assigned, batch: 2}),
            with_symbols(assigned, batch),
        )
        return Program(graph_module, inputs, outputs, sizes, number=number)
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


# ---- Whether its operations make the shapes that it states.


def check_shapes(program: Program, name: str) -> None:
    """NetworkError where an operation makes other shapes than the file of the network `name` says, or
    cannot be on those that it reads.
    """
    import torch
    from torch._subclasses import fake_tensor as fake
    from torch.utils._pytree import tree_map

    def like(value: Any) -> Any:
        """What an operation is given: sizes are numbers, and everything is on one device."""
        if isinstance(value, torch.fx.Node):
            return tree_map(like, value.meta["val"])
        if isinstance(value, torch.Tensor):
            return torch.empty([*map(program.number, value.shape)], dtype=value.dtype)
        if isinstance(value, torch.SymInt):
            return program.number(value)
        return torch.device("cpu") if isinstance(value, torch.device) else value

    asks_for_more = (
        NotImplementedError, fake.UnsupportedFakeTensorException, fake.UnsupportedOperatorException,
        fake.DynamicOutputShapeException, fake.DataDependentOutputException,
    )  # fmt: skip
    # Otherwise an operation of which PyTorch does not know a shape would be run.
    with torch.no_grad(), fake.FakeTensorMode(allow_fallback_kernels=False):
        for node in _operations(program.graph_module):
            if base_name(node) in GATES:
                continue  # it would be taken apart into as many operations as there are steps
            try:
                args, kwargs, stated = tree_map(like, (node.args, node.kwargs, node.meta["val"]))
            except (KeyError, TypeError):
                continue  # a size that depends on contents, which the reader says
            try:
                made = node.target(*args, **kwargs)
            except asks_for_more:
                continue
            except Exception as error:  # of many kinds
                raise _refusal(node, name, f"cannot be ({one_line(error)})") from error
            pairs = [*zip(tensors_of(made), tensors_of(stated), strict=True)]
            for ours, theirs in (pairs[at] for at in _read(node, len(pairs))):
                if ours is not None and theirs is not None and ours.shape != theirs.shape:
                    what = f"makes {tuple(ours.shape)}, not {tuple(theirs.shape)}"
                    raise _refusal(node, name, what)


def _operations(graph_module: Any) -> Iterator[Any]:
    """The nodes of a graph and those inside it that make tensors of tensors by an operation of ATen."""
    for module in graph_module.modules():
        for node in module.graph.nodes if hasattr(module, "graph") else ():
            aten = getattr(node.target, "namespace", "") == "aten" and hasattr(
                node.target, "_schema"
            )
            read = [v for n in node.all_input_nodes for v in tensors_of(n.meta.get("val"))]
            tensors = any(v is not None for v in tensors_of(node.meta.get("val")))
            if aten and tensors and any(v is not None for v in read):
                yield node


def _read(node: Any, count: int) -> list[int]:
    """Which of what a node makes is read: the rest differs between devices."""
    if count == 1:
        return [0]
    return [user.args[1] for user in node.users if user.target is operator.getitem]


def _refusal(node: Any, name: str, what: str) -> NetworkError:
    return NetworkError(
        f"{node.name} ({base_name(node)}) of {name!r} {what} by the shapes that the file says: it is "
        "damaged or was tampered with; write it again with torch.export.save"
    )
