"""Runs an exported program without loading its weights, which in a file may be pickles."""

from __future__ import annotations

from typing import Any

from lolat.errors import MeasuringError


def runnable(torch: Any, source: Any, size: tuple[int, ...], name: str, batch_size: int) -> Any:
    """An nn.Module that runs a `.pt2` file (`source`: its path) or an ExportedProgram with random weights.

    The graph is read as the reader does it, which executes nothing of the file; weights, buffers and
    constants are made up: their shapes and types are what times depend on. MeasuringError where the
    program is of another batch size.
    """
    from lolat.readers.torch_files import of_program, opened

    if isinstance(source, str):
        program = opened(source, size)
    else:
        program = of_program(source, name, size)
    for node in program.graph_module.graph.nodes:
        if node.op == "placeholder" and node.name in program.inputs:
            own = getattr(node.meta.get("val"), "shape", ())[:1]
            if own and isinstance(own[0], int) and own[0] != batch_size:
                raise MeasuringError(
                    f"{name!r} was exported for batch size {own[0]} and cannot run at {batch_size}; export "
                    'it with an open one, torch.export.Dim("batch")'
                )
    return _module(torch, program.graph_module, program.inputs)


def _module(torch: Any, graph_module: Any, inputs: frozenset[str]) -> Any:
    class Exported(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.code = graph_module
            self.order: list[str | None] = []
            for node in graph_module.graph.nodes:
                if node.op != "placeholder":
                    continue
                if node.name in inputs:
                    self.order.append(None)
                    continue
                own = f"given_{len(self.order)}"
                self.register_buffer(own, _made_up(torch, node.meta.get("val")))
                self.order.append(own)

        def forward(self, *given: Any) -> Any:
            left = iter(given)
            return self.code(*(next(left) if n is None else getattr(self, n) for n in self.order))

    return Exported()


def _made_up(torch: Any, fake: Any) -> Any:
    """Values of a tensor of which only shape and type are known: small weights, vectors of ones."""
    if not hasattr(fake, "shape"):
        return fake
    shape = tuple(int(n) for n in fake.shape)
    if not fake.dtype.is_floating_point:
        return torch.zeros(shape, dtype=fake.dtype)
    if len(shape) < 2:
        return torch.ones(shape, dtype=fake.dtype)
    inside = max(1, fake[0].numel())
    return torch.randn(shape).mul_(inside**-0.5).to(fake.dtype)
