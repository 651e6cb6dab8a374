"""PyTorch's DistributedDataParallel: a process for each replica, gloo among CPUs, NCCL among GPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lolat.errors import DeviceError
from lolat.readers.torch import import_torch
from microbench.backends.torch.training import OPTIMIZERS
from microbench.process import meeting_file
from microbench.timing import Clock, timed

FLOAT_BYTES = 4


class Replica:
    """This process as one of the replicas. Use as a context manager: it meets the others, and leaves.

    `request`: device, replicas, threads, and "rank": which of the replicas. DeviceError where there are
    fewer GPUs than replicas.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.replicas, self.rank = request["replicas"], request["rank"]
        self.is_gpu = request["device"] == "gpu"
        if self.is_gpu:
            self.backend = "nccl"
        else:
            self.backend = "gloo"
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
            if sys.platform == "linux":
                # All replicas are on this machine.
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.torch: Any = import_torch()
        if self.is_gpu and self.torch.cuda.device_count() < self.replicas:
            raise DeviceError(
                f"PyTorch {self.torch.__version__} finds {self.torch.cuda.device_count()} GPUs here, but "
                f"{self.replicas} replicas need one each; give fewer --replicas, or cpu"
            )
        self.torch.set_num_threads(request["threads"])
        self.torch.set_flush_denormal(True)
        self.meeting = meeting_file(request)
        self.device = self.torch.device(f"cuda:{self.rank}" if self.is_gpu else "cpu")

    def __enter__(self) -> Replica:
        if self.is_gpu:
            self.torch.cuda.set_device(self.device)
        self.torch.distributed.init_process_group(
            self.backend, f"file://{self.meeting}", rank=self.rank, world_size=self.replicas
        )
        return self

    def __exit__(self, *unused: object) -> None:
        self.torch.distributed.destroy_process_group()

    def meet(self) -> None:
        """Wait until all replicas are here."""
        self.torch.distributed.barrier()

    def environment(self) -> dict[str, Any]:
        """Versions and threads: what makes times comparable."""
        return {
            "framework": "torch",
            "framework_version": self.torch.__version__,
            "exchange": self.backend,
            "intra_op_threads": self.torch.get_num_threads(),
        }

    def parallel(self, module: Any) -> Any:
        """The module as DistributedDataParallel, with its usual buckets."""
        return self.torch.nn.parallel.DistributedDataParallel(module)

    def step(self, module: Any, loss: Callable[[Any], Any]) -> Callable[[], None]:
        """A training step: backward pass of `loss(module)`, then SGD; it waits for the result."""
        optimizer = OPTIMIZERS["sgd"](self.torch, module.parameters())

        def call() -> None:
            optimizer.zero_grad()
            loss(module).backward()
            optimizer.step()
            if self.is_gpu:
                self.torch.cuda.synchronize()

        return call


def exchange(request: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """Times of iterations that compute nothing but an update by known gradients, with DDP and without.

    `request`: see `Replica`, and "gradients": (how many variables, bytes of all) of each. -> samples
    "without_ms" and "with_ms" of each, (gradients, samples), as this replica saw them, and the
    environment.
    """
    with Replica(request) as replica:
        steps: list[Callable[[], object]] = []
        for variables, size_bytes in request["gradients"]:
            numbers = max(1, size_bytes // FLOAT_BYTES // variables)
            for wrap in (lambda module: module, replica.parallel):  # without DDP, and with
                module = known_gradients(replica.torch, variables, numbers).to(replica.device)
                steps.append(replica.step(wrap(module), lambda m: m()))
        times = timed(steps, clock, replica.meet)
        return {
            "without_ms": times[::2],
            "with_ms": times[1::2],
            "environment": replica.environment(),
        }


def known_gradients(torch: Any, variables: int, numbers: int) -> Any:
    """A module of `variables` vectors whose gradients need no computing."""

    class Known(torch.autograd.Function):
        """0, whose gradients are given."""

        @staticmethod
        def forward(context: Any, gradients: Sequence[Any], *parameters: Any) -> Any:
            context.gradients = gradients
            return parameters[0].new_zeros(())

        @staticmethod
        def backward(context: Any, _: Any) -> Any:
            return (None, *context.gradients)

    class Vectors(torch.nn.Module):
        """Parameters, and a gradient for each."""

        def __init__(self) -> None:
            super().__init__()
            zeros = [torch.zeros(numbers) for _ in range(variables)]
            self.vectors = torch.nn.ParameterList(torch.nn.Parameter(z) for z in zeros)
            self.gradients: list[Any] | None = None

        def forward(self) -> Any:
            """The loss."""
            if self.gradients is None:
                self.gradients = [torch.zeros_like(p) for p in self.vectors]
            return Known.apply(self.gradients, *self.vectors)

    return Vectors()
