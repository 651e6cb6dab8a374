"""How fast the pages of `lolat serve` answer, over HTTP on a real server.

A request is a whole page; each asks for another number of samples, so that nothing could be kept from the
one before. The first one comes as soon as the server takes it, while Keras is being loaded in a process of
its own.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

from benchmarks.runner import Tables, benchmark

ROOT = Path(__file__).resolve().parent.parent


def asked(address: str, network: str, samples: int) -> tuple[float, str]:
    """Milliseconds of a page, and its text."""
    query = urllib.parse.urlencode({"view": "training", "name": network, "samples": samples})
    start = time.perf_counter()
    with urllib.request.urlopen(f"{address}?{query}", timeout=120) as reply:
        text = reply.read().decode()
    return 1e3 * (time.perf_counter() - start), text


def waited(address: str, network: str) -> float:
    """Seconds until a network that has not been read yet is answered."""
    return asked(address, network, 50_000)[0] / 1e3


@benchmark("serve", "speed", "extended")
def serve(model: str = "epyc-2t", requests: str = "50") -> Tables:
    """Pages of `lolat serve`, the first one and those after it."""
    start = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "lolat.cli.main", "serve", model, "--port", "0"],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        address = found[0]
        first, _ = asked(address, "ResNet50", 50_000)
        since_start = time.perf_counter() - start
        other = waited(address, "MobileNetV2")
        rows = [
            ["the command until the first page, with its answer", f"{since_start:.1f} s"],
            ["of that, the page", f"{first:.0f} ms"],
            [
                "another network right after that: Keras is loaded, the network read",
                f"{other:.1f} s",
            ],
            ["a network once Keras is there (VGG16)", f"{waited(address, 'VGG16'):.2f} s"],
        ]
        for network in ("ResNet50", "MobileNetV2", "VGG16"):
            times = [asked(address, network, 60_000 + i)[0] for i in range(int(requests))]
            words = f"{network}, read before: median of {len(times)} pages, the slowest"
            rows.append([words, f"{statistics.median(times):.0f} ms, {max(times):.0f} ms"])
    finally:
        server.terminate()
        server.wait()
    return {"serve": (["what", "time"], rows)}
