"""The libraries that PyTorch computes with on a CPU, as it says: which are built in, and switched on."""

from __future__ import annotations

import re
from typing import Any

_SAID = {
    "onednn_version": r"(?:MKL-DNN|oneDNN) v(\S+)",
    "mkl_version": r"Math Kernel Library Version (\S+)",
    "openmp_version": r"- OpenMP (\d+)",
    "blas": r"BLAS_INFO=(\w+)",
}
"""Where `torch.__config__.show()` says it."""


def libraries(torch: Any) -> dict[str, Any]:
    """oneDNN (PyTorch's mkldnn), MKL, OpenMP and BLAS; `cpu_capability`: of PyTorch's own kernels.

    What this version does not say is left out.
    """
    built = torch.__config__.show()
    found: dict[str, Any] = {
        name: said.group(1) for name, where in _SAID.items() if (said := re.search(where, built))
    }
    backends = torch.backends
    found["onednn"] = bool(backends.mkldnn.is_available())
    found["onednn_enabled"] = bool(backends.mkldnn.enabled)
    found["mkl"] = bool(backends.mkl.is_available())
    found["openmp"] = bool(backends.openmp.is_available())
    capability = getattr(getattr(backends, "cpu", None), "get_cpu_capability", None)
    if capability is not None:
        found["cpu_capability"] = str(capability())
    return found
