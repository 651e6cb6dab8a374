"""Rules of every test: no network but this machine's own; networks are read anew; no deadlines."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import os
import re
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any

with contextlib.suppress(
    ImportError
):  # PyTorch's with CUDA; imported after TensorFlow it ends the process
    import triton  # noqa: F401

import click
import pytest
from hypothesis import HealthCheck, settings

from lolat.errors import MissingPackageError

# A changed reader would not be asked, and a folder of the user would fill; tests of the cache name one.
os.environ["LOLAT_CACHE"] = "off"


def _own_network() -> bool:
    """Give this process and its children a network of their own, if it is root on Linux.

    It has nothing but the loopback interface. Workers of pytest-xdist are in that of their parent.
    """
    if sys.platform != "linux" or "LOLAT_OWN_NETWORK" in os.environ:
        return bool(os.environ.get("LOLAT_OWN_NETWORK"))
    import fcntl

    clone_newnet, set_flags, up_and_running = 0x40000000, 0x8914, 0x41
    library = ctypes.CDLL(None)
    with open("/proc/self/ns/net") as before:
        if library.unshare(clone_newnet) != 0:
            return False
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
                fcntl.ioctl(one, set_flags, struct.pack("16sH14x", b"lo", up_and_running))
        except OSError:  # a container that lets one make a network and not use it
            library.setns(before.fileno(), clone_newnet)
            return False
    os.environ["LOLAT_OWN_NETWORK"] = "1"
    return True


def _is_here(host: Any) -> bool:
    """True for an address or name of this machine, and for the path of a Unix socket."""
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if host in (None, "", "localhost", socket.gethostname()):
        return True
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        return address.is_loopback or address.is_unspecified
    return False


def _refuse_other_machines(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook, for Python's own sockets, where the network cannot be taken away."""
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        family, address = arguments[0].family, arguments[1]
        if address is None or family not in (socket.AF_INET, socket.AF_INET6):
            return
        host = address[0]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        host = arguments[0]
    else:
        return
    if not _is_here(host):
        raise OSError(errno.ENETUNREACH, f"tests have no network: {host!r} is not this machine")


os.environ["HF_HUB_OFFLINE"] = "1"
if not _own_network():  # child processes are asked to use a proxy that is not there
    for scheme in ("http", "https", "all"):
        os.environ[f"{scheme}_proxy"] = os.environ[f"{scheme.upper()}_PROXY"] = "http://127.0.0.1:9"
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = "localhost,127.0.0.1,::1"
sys.addaudithook(_refuse_other_machines)

# No test depends on how fast the machine is, nor, if nobody asks for it, on luck: what a property test
# draws is the same in each run. Others: pytest --hypothesis-profile new.
settings.register_profile("new", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("new"), derandomize=True)
settings.load_profile("same")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip what needs a package that is not here, if `make check` runs it; elsewhere it fails."""
    try:
        yield
    except (ModuleNotFoundError, MissingPackageError) as error:
        if os.environ.get("LOLAT_NEEDS") != "no-framework":
            raise
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _no_mark_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command prints no line and no JSON with a mark of `lolat.errors.arg`, escaped or not."""
    real = click.echo

    def echo(message: Any = None, *args: Any, **options: Any) -> None:
        assert not re.search(r"(?:\x01|\\u0001|\\x01)[a-z_]", str(message)), message
        real(message, *args, **options)

    monkeypatch.setattr(click, "echo", echo)
