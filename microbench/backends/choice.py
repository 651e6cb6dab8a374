"""Which backend measures when none is given: what is installed and, for a GPU, what finds one."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

from lolat.errors import DeviceError, InputError, LolatError, MissingPackageError
from lolat.io.process import ProcessDied, RequestFailed
from microbench.backends import OPTIONS, flag, has, joined
from microbench.process import WorkerProcess

PACKAGES = {
    "tensorflow": ("keras", "tensorflow"),
    "torch": ("torch",),
    "onnxruntime": ("onnx", "onnxruntime"),
}
"""Backend -> what must be installed."""
ORDER = {
    "cpu": ("tensorflow", "torch", "onnxruntime"),
    "gpu": ("torch", "tensorflow", "onnxruntime"),
}
"""Device -> backends, the one that is preferred first."""
ASK_LIMIT_S = 60.0


def lacking(name: str) -> list[str]:
    """Packages of a backend that are not installed; whether they work is not tried."""
    return [package for package in PACKAGES[name] if not _is_installed(package)]


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # a module that hides where it is from
        return False


def pick(
    device: str,
    options: Sequence[str],
    start: Callable[[str, str], WorkerProcess] = WorkerProcess,
) -> tuple[str, str]:
    """(backend with `options`, what to say about the choice; "" where it is the usual one).

    For a CPU the first that is installed; for a GPU the first that finds one, which is tried in a
    process of its own. Raises InputError when no backend has these options, MissingPackageError or
    DeviceError, with what was looked for, when there is none.
    """
    able = [n for n in ORDER[device] if all(has(n, o) for o in options)]
    if not able:
        each = "; ".join(f"{n} has {', '.join(map(flag, own))}" for n, own in OPTIONS.items())
        raise InputError(f"no backend has {' and '.join(map(flag, options))} together; {each}")
    return _for_gpu(able, options, start) if device == "gpu" else _for_cpu(able, options)


def _for_cpu(able: Sequence[str], options: Sequence[str]) -> tuple[str, str]:
    name = next((n for n in able if not lacking(n)), None)
    if name is None:
        needs = "; ".join(f"{n} needs {' and '.join(lacking(n))}" for n in able)
        raise MissingPackageError(
            f"nothing is installed to measure with ({needs}), for example {able[0]}", able[0]
        )
    usual = ORDER["cpu"][0]
    if name == usual:
        return joined(name, options), ""
    why = f"as {usual} is not installed"
    if usual not in able:
        why = "which has that" + (f", as {able[0]} is not installed" if name != able[0] else "")
    return joined(name, options), f"measuring with {name}, {why}"


def _for_gpu(
    able: Sequence[str], options: Sequence[str], start: Callable[[str, str], WorkerProcess]
) -> tuple[str, str]:
    passed_over = []
    for name in able:
        missing = lacking(name)
        if missing:
            passed_over.append(f"{name}: {' and '.join(missing)} not installed")
            continue
        backend = joined(name, options)
        try:
            with start(backend, "gpu") as worker:
                answer = worker.request({"do": "environment"}, ASK_LIMIT_S)["environment"]
        except (LolatError, ProcessDied, RequestFailed) as problem:
            # What a backend says of a device that is not there, without its advice.
            reason = str(problem).partition("; use ")[0].removeprefix("no gpu here: ")
            passed_over.append(f"{name}: {reason}")
            continue
        version = f"{name} {answer.get('framework_version', '')}".strip()
        place = f" on {answer['device_name']}" if answer.get("device_name") else ""
        others = f" ({'; '.join(passed_over)})" if passed_over else ""
        return backend, f"measuring with {version}{place}{others}; --backend chooses another"
    raise DeviceError(
        f"no gpu here: {'; '.join(passed_over)}; use `lolat learn cpu`, or install one of these for "
        "your GPU, and its driver"
    )
