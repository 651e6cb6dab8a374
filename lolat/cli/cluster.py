"""`lolat learn --fleet`: the models of all nodes of a Ray cluster, gathered in a folder."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lolat.cli import common
from lolat.errors import InputError, LolatError, MeasuringError, MissingPackageError
from lolat.units import plural

if TYPE_CHECKING:
    from microbench.fleet import Failed, Measure, Measured, Node

# ---- The Ray cluster that a command works on: the one at an address, or one started on this
# machine.

NO_ADDRESS = "here"  # no address given
LIMIT_S = 10.0  # until an address is given up
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a client says first, RFC 9113 3.4, with an empty SETTINGS frame; the server answers with its own."""
SETTINGS = 4
_EXPECTED = "expected host:port of the cluster's head, such as 10.0.0.1:6379, or auto"


class Address(click.ParamType):
    """Where a Ray cluster is: host:port, or auto for the one that this machine is a part of."""

    name = "ADDRESS"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """The address itself; a word that follows the option but is none is refused."""
        text = str(value)
        if text in (NO_ADDRESS, "auto", "local") or re.fullmatch(
            r"(\[[0-9a-fA-F:.]+\]|[^\s:/]+):\d{1,5}", text
        ):
            return text
        if text.startswith("ray://"):
            self.fail(
                f"{text!r}: Ray's client is not supported; {_EXPECTED}, on a machine of the cluster (`ray "
                "job submit` runs a command there)"
            )
        self.fail(
            f"{text!r} is no address: {_EXPECTED}; if it is an argument of the command, write the option "
            "last"
        )


def import_ray() -> Any:
    """The package ray; MissingPackageError where it is not installed."""
    # It would send statistics home, and warns of what concerns nobody here.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingPackageError(f"Ray cannot be imported here ({error})", "ray") from error


@contextlib.contextmanager
def connected(address: str, limit_s: float | None = None) -> Iterator[Any]:
    """`ray`, connected to the cluster at `address`, and left again at the end.

    NO_ADDRESS: what this process is connected to already, else what RAY_ADDRESS names, else a Ray that is
    started on this machine for the time. InputError where nothing answers as Ray within `limit_s`
    (LIMIT_S), MissingPackageError without Ray. Stdout is shut meanwhile: Ray prints pages
    there when a worker dies, which are in its logs too.
    """
    ray = import_ray()
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        if address == NO_ADDRESS and ray.is_initialized():
            yield ray
            return
        if address == NO_ADDRESS:
            address = os.environ.get("RAY_ADDRESS") or "local"
        _init(ray, address, LIMIT_S if limit_s is None else limit_s)
        try:
            yield ray
        finally:
            ray.shutdown()


def _init(ray: Any, address: str, limit_s: float) -> None:
    import logging

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        ray.init(address="local", include_dashboard=False, **options)
        return
    end = time.monotonic() + limit_s
    if address != "auto":
        require_answer(address, limit_s)
    try:
        with _mute(), _alarm(end):
            ray.init(address=address, **options)
    except TimeoutError:
        raise _silent(address, f"it is no Ray, or it hangs: given up after {limit_s:g} s") from None
    except Exception as error:  # Ray's are of many types
        said = " ".join(str(error).split())
        hint = "; start one with: ray start --head" if address == "auto" else ""
        raise InputError(
            f"cannot join the Ray cluster at {address}: {said[:300]}; {_EXPECTED}, on a machine that is "
            f"part of it{hint}"
        ) from error


def require_answer(address: str, limit_s: float) -> None:
    """InputError unless a gRPC server, as Ray's head is one, answers at host:port within `limit_s`."""
    import socket

    host, _, port = address.rpartition(":")
    end = time.monotonic() + limit_s
    secret = os.environ.get("RAY_USE_TLS", "0") not in ("", "0")
    try:
        place = (host.strip("[]"), int(port))
        with socket.create_connection(place, timeout=limit_s / 2) as line:
            if secret:
                return
            line.sendall(PREFACE)
            said = b""
            while len(said) < 4:
                line.settimeout(max(0.01, end - time.monotonic()))
                piece = line.recv(64)
                if not piece:
                    raise _silent(address, "what is there is no Ray")
                said += piece
    except TimeoutError:
        raise _silent(address, f"silence for {limit_s:g} s") from None
    except (OSError, OverflowError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _silent(address, reason) from None
    if said[3] != SETTINGS:
        raise _silent(address, "what is there is no Ray")


def _silent(address: str, reason: str) -> InputError:
    return InputError(
        f"no Ray cluster answers at {address} ({reason}); {_EXPECTED}; `ray status` says where it is, `ray "
        "start --head` starts one"
    )


@contextlib.contextmanager
def _mute() -> Iterator[None]:
    """No line on stderr, also from C++: Ray's says many times what we say once."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _alarm(end: float) -> Iterator[None]:
    """TimeoutError at `end`, where the system can interrupt the main thread."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def ring(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, end - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- fleet ----------------------------------------


def learn_fleet(
    address: str,
    device: str,
    output: Path | None,
    backend: str | None,
    options: Sequence[str],
    restart: bool,
    measure: Measure | None = None,
    as_json: bool = False,
) -> None:
    """Measure every node of the cluster at `address` that has no model in the folder `output` yet.

    `output`: models/local/fleet (or that of the user's data folder) if None; `measure`: what a node is
    to do, `microbench.fleet.measure_here` if None. Models are written as they come. MeasuringError, in the
    end, where nodes failed; InputError for a wrong call and where the cluster has no such node.
    """
    from lolat.io.paths import local_folder
    from microbench import backends, fleet

    if backend is not None:
        backends.joined(backend, options)
    folder = local_folder() / "fleet" if output is None else output
    if folder.exists() and not folder.is_dir():
        raise InputError(
            f"--output {folder} is a file; with --fleet expected a folder, for a model of each node"
        )
    common.check_writable(folder / "model.json")
    with connected(address):
        nodes, failed = fleet.survey(device)
        if not nodes and not failed:
            raise InputError(
                f"the cluster has no node with a {device} to measure (`ray status` lists them)"
            )
        targets = files(folder, nodes, "-".join(filter(None, [backend, *options])))
        there = [node for node in nodes if targets[node].exists() and not restart]
        for node in there:
            common.say(
                f"{node.name}: measured already, {targets[node]} (--restart measures it again)"
            )
        left = [node for node in nodes if node not in there]
        todo = measure or fleet.measure_here
        measured = fleet.measure_nodes(left, device, backend, tuple(options), restart, todo)
        written = _gathered(measured, len(left), targets, failed)
    _tell(folder, len(nodes), written, len(there), failed, as_json)


def _tell(
    folder: Path, nodes: int, written: Sequence[Path], before: int, failed: Sequence[Failed],
    as_json: bool,
) -> None:  # fmt: skip
    """What became of the nodes; MeasuringError where some failed."""
    told = {
        "folder": str(folder), "written": list(map(str, written)), "before": before,
        "failed": [{"node": bad.name, "reason": bad.reason} for bad in failed],
    }  # fmt: skip
    earlier = f", {before} measured before" if before else ""
    lines = (f"{plural(nodes, 'node')}: {len(written)} measured now{earlier}", f"models: {folder}")
    common.answer("fleet", told, as_json, lines)
    if failed:
        first = "; ".join(f"{bad.name}: {bad.reason}" for bad in failed[:3])
        more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
        raise MeasuringError(
            f"{len(failed)} node{'s' * (len(failed) > 1)} not measured ({first}{more}); the same command "
            "measures those only, once they are back"
        )


def _gathered(
    measured: Iterable[tuple[Node, Measured | Failed]], number: int, targets: Mapping[Node, Path],
    failed: list[Failed],
) -> list[Path]:  # fmt: skip
    """The models written, as their nodes are done; nodes that were not measured go to `failed`."""
    from microbench.fleet import Failed, forget

    written: list[Path] = []
    with common.progress() as bar:
        if number:
            bar.start("measuring nodes", number)
        try:
            for node, came in measured:
                model = keep(targets[node], came)
                if isinstance(model, Failed):
                    failed.append(model)
                    remarks = [f"not measured: {model.reason}"]
                else:
                    written.append(model)
                    forget(node, came)
                    warnings = getattr(came, "warnings", ())
                    remarks = [f"written {model}", *(f"warning: {r}" for r in warnings)]
                for remark in remarks:
                    bar.note(f"{node.name}: {remark}")
                bar.step()
        except KeyboardInterrupt:
            there = f"{len(written)} models are written"
            raise KeyboardInterrupt(f"interrupted; {there}, the same command goes on") from None
    return written


def files(folder: Path, nodes: Sequence[Node], with_what: str) -> dict[Node, Path]:
    """The model file of each node; several nodes of one host and processor are numbered."""
    used: Counter[str] = Counter()
    paths = {}
    for node in nodes:
        stem = "-".join(filter(None, [node.name, re.sub("[_=]", "-", with_what)]))
        used[stem] += 1
        paths[node] = folder / f"{stem}{f'-{used[stem]}' if used[stem] > 1 else ''}.json"
    return paths


def keep(path: Path, came: Measured | Failed) -> Path | Failed:
    """Fit what a node measured and write its model to `path`; or why there is none."""
    from lolat.model.file import write
    from lolat.model.learning import model_document
    from microbench.fleet import Failed

    if isinstance(came, Failed):
        return came
    measured = (came.device, came.points, came.environment, came.noise, came.warnings)
    try:
        write(path, model_document(path.stem, *measured))
    except LolatError as error:
        return Failed(path.stem, str(error))
    return path
