"""What runs in a process of `microbench.replicas`: one request, one answer; and how replicas take times."""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from lolat.errors import LolatError
from microbench.timer import Clock, time_once

WARM_CALLS = 3
ROUNDS = 6
CALLS = 3  # of each round that are counted, after one that is not


def timed(
    calls: Sequence[Callable[[], object]],
    clock: Clock,
    meet: Callable[[], object] = lambda: None,
    rounds: int = ROUNDS,
) -> list[list[float]]:
    """Wall times of each call, ms: (calls, rounds x CALLS).

    In rounds, each in an order of its own, so that a slow moment does not land on one call. The order is
    the same in all processes, because calls exchange something; `meet` waits for the others before each.
    """
    for call in calls:
        for _ in range(WARM_CALLS):
            call()
    found: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        order = list(range(len(calls)))
        random.Random(number).shuffle(order)
        for index in order:
            calls[index]()  # others have run: its tensors lie in memory rather than in a cache
            for _ in range(CALLS):
                meet()
                found[index].append(time_once(calls[index], clock))
    return found


def main() -> None:
    """Answer the request on stdin by the function that is named on the command line."""
    # What a framework prints must not mix with the answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())

    def watch() -> None:
        sys.stdin.read()
        shutil.rmtree(request["folder"], ignore_errors=True)
        os._exit(0)  # the parent is gone; a measurement may be under way

    threading.Thread(target=watch, daemon=True).start()
    module, _, attribute = sys.argv[1].partition(":")
    try:
        function: Callable[[Any, Clock], Any] = getattr(importlib.import_module(module), attribute)
        said: dict[str, Any] = {"answer": function(request, time.perf_counter)}
    except LolatError as error:
        said = {"error": str(error), "kind": type(error).__name__}
    except MemoryError:
        said = {"error": "not enough memory; try fewer replicas", "kind": "LolatError"}
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        said = {"error": f"{type(error).__name__}: {lines[0][:300]}", "kind": "MeasuringError"}
    answers.write(json.dumps(said))
    answers.flush()
    # Threads of a framework may wait for replicas that are gone.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
