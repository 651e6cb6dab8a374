"""PyTorch network -> Graph: exported by torch.export, its ATen operations followed one by one.

Nothing is computed: the export runs on fake tensors, so neither weights nor activations need memory.
Shapes in the Graph are PyTorch's own (channels first); counts and blocks do not depend on the layout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lolat.errors import MissingPackageError, NetworkError
from lolat.graph import Graph, GraphBuilder

OLDEST = (2, 6)
SMALL = 4096  # elements of a parameter that is filled all the same: code may look at a few numbers
RANDOM = frozenset(["normal_", "uniform_"])


def import_torch() -> Any:
    """PyTorch; MissingPackageError when it is missing or too old."""
    try:
        import torch
    except ImportError as error:
        raise MissingPackageError(
            f"PyTorch is needed for this and cannot be imported ({error}); install it with: "
            "pip install 'lolat[torch]'"
        ) from error
    found = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])
    if found < OLDEST:
        raise MissingPackageError(
            f"PyTorch {torch.__version__} is too old for this, it must be "
            f"{'.'.join(map(str, OLDEST))} or newer; install it with: pip install --upgrade torch"
        )
    return torch


def without_weights(make: Callable[[], Any]) -> Any:
    """What a function that makes a network returns, its weights of a shape that nothing has filled.

    Drawing weights at random takes longer than all else, and memory that is not touched is none. Unlike
    fake tensors, these let code look at the values of small ones, and be copied; those are for a network
    that is larger than the addresses that there are.
    """
    try:
        with _unfilled(), _undrawn():
            return make()
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return make()


def _unfilled() -> Any:
    """While it lasts, what changes a large parameter in place, or fills any tensor at random, does not."""
    torch = import_torch()

    mode: Any = torch.overrides.TorchFunctionMode

    class Unfilled(mode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            name = getattr(func, "__name__", "")
            if name.endswith("_") and not name.startswith("_") and name != "requires_grad_":
                changed = args[0] if args else kwargs.get("tensor")  # torch.nn.init's name for it
                kinds = torch.Tensor if name in RANDOM else torch.nn.Parameter
                if isinstance(changed, kinds) and changed.numel() > SMALL:
                    return changed
            return func(*args, **kwargs)

    return Unfilled()


@contextlib.contextmanager
def _undrawn() -> Iterator[None]:
    """While it lasts, `torch.nn.init.trunc_normal_` leaves large tensors as they are.

    In PyTorch 2.13 it draws until all values lie between its bounds; where nothing fills them, that is
    what happened to lie in memory, for ever.
    """
    init: Any = import_torch().nn.init
    inner = "_no_grad_trunc_normal_"  # behind the name that others have imported
    drawn = getattr(init, inner, None)
    if drawn is None:
        yield
        return

    def undrawn(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor if tensor.numel() > SMALL else drawn(tensor, *args, **kwargs)

    setattr(init, inner, undrawn)
    try:
        yield
    finally:
        setattr(init, inner, drawn)


def is_network(found: Any) -> bool:
    """Whether an object is a PyTorch module or an exported program."""
    names = {f"{c.__module__}.{c.__qualname__}" for c in type(found).__mro__}
    return bool(names & {"torch.nn.modules.module.Module", EXPORTED})


EXPORTED = "torch.export.exported_program.ExportedProgram"


def read_model(model: Any, name: str = "", size: Any = (), example: Any = None) -> Graph:
    """Read an `nn.Module` or an ExportedProgram into a Graph.

    `size`: () for what the module says; (H,) for H x H (or H steps) with the module's own channels; a
    whole shape without the batch; several shapes, or a dict of them by the names of `forward`'s
    arguments. `example`: inputs to call it with, instead (a tensor, a tuple or a dict of them; the first
    axis is the batch). The module is read as in evaluation mode and stays as it is. Raises NetworkError.
    """
    import_torch()
    from lolat.readers.torch.export import export, unwrapped
    from lolat.readers.torch.program import of_program

    if f"{type(model).__module__}.{type(model).__qualname__}" == EXPORTED:
        return read_program(of_program(model, name or "exported", size), name or "exported")
    model = unwrapped(model)
    name = name or type(model).__name__
    return read_program(export(model, name, size, example), name)


def read_file(path: str, size: tuple[int, ...], name: str) -> Graph:
    """Read a `.pt2` file into a Graph; its weights and example inputs are not loaded."""
    import_torch()
    from lolat.readers.torch.program import opened

    return read_program(opened(path, size), name)


def read_program(program: Any, name: str) -> Graph:
    """A `torch_program.Program` as a Graph. Raises NetworkError when it computes nothing."""
    from lolat.readers.torch.walk import Walker

    builder = GraphBuilder(name, "torch")
    builder.warnings += program.warnings
    outputs = Walker(builder, program).run()
    if not outputs:
        raise NetworkError(
            f"network {name!r} returns no tensor that depends on its inputs; its forward must return "
            "what it computed"
        )
    keep_alive(builder, outputs)
    return builder.build(outputs)


def keep_alive(builder: GraphBuilder, outputs: Sequence[int]) -> None:
    """Leave out operations that no output needs, such as attention weights that nobody reads."""
    needed = set(outputs)
    kept = []
    for operation in reversed(builder.operations):
        if needed.isdisjoint(operation.outputs):
            continue
        needed.update(operation.inputs)
        kept.append(operation)
    builder.operations[:] = reversed(kept)
