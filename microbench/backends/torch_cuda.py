"""Where PyTorch's tensors lie and how to wait for what is computed there: the host, or a CUDA device.

PyTorch calls AMD's GPUs CUDA devices too.
"""

from __future__ import annotations

from typing import Any

from lolat.errors import DeviceError

PLACE = "cuda:0"
"""The device that is measured; CUDA_VISIBLE_DEVICES chooses which one of several that is."""


class Host:
    """The processors: a call has its result when it returns."""

    place = "cpu"
    refusals: tuple[type[BaseException], ...] = ()
    """What is raised where the device's memory does not suffice; the host's is left to the system."""

    def wait(self) -> None:
        """Nothing to wait for."""

    def free_bytes(self) -> int | None:
        """None: what is free on the host, the host says."""
        return None

    def tidy(self) -> None:
        """Nothing is held back."""

    def environment(self) -> dict[str, Any]:
        """Nothing besides what PyTorch says of itself."""
        return {}


class Cuda(Host):
    """The first CUDA device."""

    def __init__(self, torch: Any) -> None:
        """Raises DeviceError when PyTorch finds none."""
        self.torch = torch
        self.place = PLACE
        if not torch.cuda.is_available():
            built = torch.version.cuda or getattr(torch.version, "hip", None)
            why = (
                f"is built with CUDA {built}, but finds no device"
                if built
                else "is built without it"
            )
            raise DeviceError(
                f"no gpu here: PyTorch {torch.__version__} looked for a CUDA device and {why}; use "
                "`learn_model.py cpu`, or install a PyTorch with CUDA and a driver"
            )
        self.refusals = (torch.cuda.OutOfMemoryError,)

    def wait(self) -> None:
        """Until the device has done everything that it was asked for."""
        self.torch.cuda.synchronize(self.place)

    def free_bytes(self) -> int | None:
        """What the device has free, and what PyTorch holds back there unused."""
        free, _ = self.torch.cuda.mem_get_info(self.place)
        held = self.torch.cuda.memory_reserved(self.place)
        return int(free + held - self.torch.cuda.memory_allocated(self.place))

    def tidy(self) -> None:
        """Give back what PyTorch holds unused."""
        self.torch.cuda.empty_cache()

    def environment(self) -> dict[str, Any]:
        """The device's name, CUDA's and cuDNN's versions, and how exact products and convolutions are."""
        torch = self.torch
        return {
            "device_name": torch.cuda.get_device_name(self.place),
            "cuda_version": torch.version.cuda or getattr(torch.version, "hip", None),
            "cudnn_version": torch.backends.cudnn.version(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "tf32": {
                "convolutions": torch.backends.cudnn.allow_tf32,
                "products": torch.backends.cuda.matmul.allow_tf32,
            },
        }
