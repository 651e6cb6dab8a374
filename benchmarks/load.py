"""A neighbour: keeps one core busy for a random 20 to 60 % of the time, until it is stopped.

    python benchmarks/load.py [SECONDS]

Every two seconds another share is drawn; within them it works and sleeps in turns of 20 to 80 ms. Under it
`docs/results/accuracy.md` measures what a busy machine does to learning and evaluating.
"""

from __future__ import annotations

import random
import sys
import time

LEAST, MOST = 0.2, 0.6
PERIOD_S = 2.0


def main() -> None:
    """Work and sleep until the time is over."""
    end = time.monotonic() + (float(sys.argv[1]) if len(sys.argv) > 1 else float("inf"))
    draw = random.Random()
    while time.monotonic() < end:
        share = draw.uniform(LEAST, MOST)
        until = min(end, time.monotonic() + PERIOD_S)
        while time.monotonic() < until:
            turn = draw.uniform(0.02, 0.08)
            stop = time.perf_counter() + share * turn
            while time.perf_counter() < stop:
                pass
            time.sleep((1.0 - share) * turn)


if __name__ == "__main__":
    main()
