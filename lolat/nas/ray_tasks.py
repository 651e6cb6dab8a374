"""Ranges of a job as tasks of Ray, on a cluster or on this machine's CPUs."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lolat.errors import InputError, LolatError, arg
from lolat.nas.user_code import needed
from lolat.units import one_line

RETRIES = 10  # of a task whose worker died
AHEAD = 2  # tasks for each CPU, so that none waits for the driver


def on_ray(
    ray: Any, task: Callable[[Any, int], Any], job: Any, starts: Sequence[int]
) -> Iterator[Any]:
    """What `task(job, start)` returns for each start, in the order in which tasks end.

    Ray runs the task of a dead worker again, on another machine if need be. LolatError of a task is raised
    here.
    """
    remote = ray.remote(num_cpus=1, max_retries=RETRIES)(task)
    reference = ray.put(job)
    most = AHEAD * int(ray.cluster_resources().get("CPU", 1))
    left = iter(starts)
    running: list[Any] = []
    try:
        while True:
            new = itertools.islice(left, most - len(running))
            running += [remote.remote(reference, start) for start in new]
            if not running:
                return
            done, running = ray.wait(running)
            yield from ray.get(done)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, LolatError):
            raise cause from None
        raise LolatError(
            f"a task of Ray failed: {type(cause).__name__}: {one_line(cause)}; the files so far stay, the "
            "same command goes on from there"
        ) from error


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Ray, connected to `address`; "": of RAY_ADDRESS, or else started on this machine. None for None.

    A program that is connected already stays so. Ray's prints go to stderr, because stdout is for the
    answer. InputError where there is no Ray, MissingPackageError where it is not installed.
    """
    if address is None:
        yield None
        return
    ray = needed("ray", "Ray", "ray")
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would send statistics home
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or it warns of GPUs
    address = address or os.environ.get("RAY_ADDRESS", "local")
    host, _, port = address.rpartition(":")
    with contextlib.redirect_stdout(sys.stderr):
        try:
            if host:  # where nothing answers, Ray itself gives up after many minutes
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            ray.init(
                address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
            )
        except Exception as error:  # Ray's are of many types
            raise InputError(
                f"no Ray at {address!r} ({type(error).__name__}: {one_line(error)}); expected host:port of "
                f"the head of a cluster of this machine, auto, or {arg('ray')} as the last argument"
            ) from error
        try:
            yield ray
        finally:
            ray.shutdown()
