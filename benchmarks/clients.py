"""`lolat serve` under load: clients, some of them hostile. Prints tables for docs/reliability.md.

    python benchmarks/clients.py [--clients 200] [--hostile 0.1] [--seconds 600] [--think 10]

Starts a server with the models that come with LoLat. An honest client asks for something every `--think`
seconds on average: the page, a network at a batch size, what fits, training, or it sends a small ONNX file.
A page that says that its network is being read is asked again, as its script does, and so is a 503. A
hostile one goes on at once. Clients and server share the machine: what a page takes is as a client sees it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = ("ResNet50", "MobileNetV2", "VGG16", "DenseNet121", "EfficientNetB0", "InceptionV3")
GIVEN_UP_S = 60.0
AGAIN_S = 0.8  # as page.js


@dataclass
class Seen:
    """What came of the requests: statuses by kind of client and request, ms of each page."""

    statuses: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    page_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    unanswered: list[str] = field(default_factory=list)
    distinct: set[str] = field(default_factory=set)


class Client:
    """One client of the server at `port`."""

    def __init__(self, port: int, seen: Seen, seed: int) -> None:
        self.port, self.seen, self.draw = port, seen, random.Random(seed)

    async def opened(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which `request` was sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**20)
        writer.write(request)
        await writer.drain()
        return reader, writer

    async def answer(self, request: bytes) -> tuple[str, dict[str, str], str]:
        """Status, headers and text of the answer; "" where the server closed without one."""
        reader, writer = await self.opened(request)
        try:
            raw = await asyncio.wait_for(reader.read(), GIVEN_UP_S)
        finally:
            writer.close()
        head, _, body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
        return [*first.split(" "), ""][1], headers, body.decode("utf-8", "replace")

    def request(self, target: str, method: str = "GET", body: bytes = b"", **headers: str) -> bytes:
        """A request as a browser sends it, for a connection of its own."""
        own = f"127.0.0.1:{self.port}"
        first = {"Host": own, "Origin": f"http://{own}", "Connection": "close"}
        first |= {"Content-Length": str(len(body))} if body else {}
        lines = [f"{n.replace('_', '-')}: {v}" for n, v in {**first, **headers}.items()]
        return "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""]).encode() + body

    def file(self, name: str, content: bytes) -> bytes:
        """A request that sends a file."""
        head = f'--xyz\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        body = head.encode() + content + b"\r\n--xyz--\r\n"
        return self.request(
            "/upload", "POST", body, Content_Type="multipart/form-data; boundary=xyz"
        )


# ---- Honest clients.


def small_networks() -> list[bytes]:
    """ONNX files of a few layers, each another network."""
    import onnx
    from onnx import TensorProto, helper

    found = []
    for channels in range(3, 11):
        image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])
        out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, channels, 30, 30])
        weights = helper.make_tensor(
            "w", TensorProto.FLOAT, [channels, 3, 3, 3], [0.0] * (channels * 27)
        )
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("Relu", ["c"], ["y"]),
        ]
        graph = helper.make_graph(nodes, "small", [image], [out], [weights])
        found.append(onnx.ModelProto.SerializeToString(helper.make_model(graph)))
    return found


class Honest(Client):
    """Asks, waits for the answer, thinks."""

    files: list[bytes]

    def question(self) -> tuple[str, str]:
        """The kind of a question, and its address."""
        draw, name = self.draw, self.draw.choice(NETWORKS)
        match draw.choices(("page", "latency", "budget", "training", "generated"), (3, 5, 2, 2, 1))[
            0
        ]:
            case "page":
                return "first page", "/"
            case "latency":
                batch = sorted(draw.sample(range(1, 257), draw.choice((1, 2))))
                query = {"name": name, "batch": ",".join(map(str, batch))}
                return "latency", f"/?{urlencode(query)}"
            case "budget":
                query = {"name": name, "max_ms": str(draw.choice((5, 10, 20, 50, 100)))}
                query |= {"vary": draw.choice(("width", "batch"))}
                return "what fits", f"/?view=budget&{urlencode(query)}"
            case "training":
                query = {"name": name, "samples": str(1000 * draw.randint(1, 200))}
                return "training", f"/?view=training&{urlencode(query)}"
            case _:
                layers = ",".join(str(draw.randint(1, 3)) for _ in range(3))
                query = {"name": f"generate:vgg?layers={layers}"}
                return "generated", f"/?{urlencode(query)}"

    async def run(self, end: float, think_s: float) -> None:
        """Until `end`."""
        await asyncio.sleep(self.draw.uniform(0.0, think_s))
        while time.monotonic() < end:
            if self.draw.random() < 0.03:
                await self.send()
            else:
                kind, target = self.question()
                self.seen.distinct.add(target)
                await self.ask(kind, self.request(target))
            await asyncio.sleep(self.draw.uniform(0.5, 1.5) * think_s)

    async def send(self) -> None:
        """Send a file, then look at its page."""
        found = await self.ask("upload", self.file("net.onnx", self.draw.choice(self.files)))
        if found is not None:
            await self.ask("page of an upload", self.request(found[1]["location"]))

    async def ask(self, kind: str, request: bytes) -> tuple[str, dict[str, str], str] | None:
        """Ask until there is an answer; None where there is none."""
        seen, began, status = self.seen, time.monotonic(), ""
        while time.monotonic() - began < GIVEN_UP_S:
            start = time.perf_counter()
            try:
                found = await self.answer(request)
            except (OSError, TimeoutError) as error:
                seen.unanswered.append(f"{kind}: {error!r}")
                return None
            if kind != "upload":
                seen.page_ms[kind].append(1e3 * (time.perf_counter() - start))
            status, headers, text = found
            seen.statuses[f"honest: {kind}"][status or "closed"] += 1
            if status == "503":
                await asyncio.sleep(float(headers.get("retry-after", "nan")))
            elif "data-waiting" in text:
                await asyncio.sleep(AGAIN_S)
            elif (status == "200" and '<section class="card' in text) or status == "303":
                return found
            else:
                break
        seen.unanswered.append(f"{kind}: {status or 'closed'}")
        return None


# ---- Hostile clients.


def damaged(draw: random.Random) -> tuple[str, bytes]:
    """A file that is none: noise, half an archive, much in little."""
    name = f"net{draw.choice(('.onnx', '.keras', '.json', '.exe', ''))}"
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", draw.choice((b"{}", b"[" * 100_000, b" " * 2**22)))
    whole = made.getvalue()
    return name, draw.choice((draw.randbytes(20_000), whole, whole[: len(whole) // 2], b""))


class Hostile(Client):
    """Does one bad thing after the other."""

    async def run(self, end: float) -> None:
        """Until `end`."""
        kinds = (self.slowly, self.broken, self.headers, self.garbage, self.numbers, self.paths,
                 self.archive, self.methods, self.forged, self.deaf)  # fmt: skip
        while time.monotonic() < end:
            kind = self.draw.choice(kinds)
            status = "closed"
            with contextlib.suppress(OSError, TimeoutError, asyncio.LimitOverrunError):
                status = await kind() or "closed"
            self.seen.statuses[f"hostile: {(kind.__doc__ or '').rstrip('.').lower()}"][status] += 1
            await asyncio.sleep(self.draw.uniform(0.1, 0.5))

    async def drip(self, request: bytes, piece: bytes) -> str:
        """Send `piece` every second until the server has enough; the status that it gave."""
        reader, writer = await self.opened(request)
        try:
            while not reader.at_eof():
                writer.write(piece)
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    return (await asyncio.wait_for(reader.read(64), 1.0)).decode("latin-1")[9:12]
            return ""
        finally:
            writer.close()

    def half(self) -> bytes:
        return self.file("net.onnx", bytes(self.draw.randint(2_000, 2_000_000)))[:-1000]

    async def slowly(self) -> str:
        """A byte of a file a second."""
        return await self.drip(self.half(), b"b")

    async def broken(self) -> str:
        """Half of a file."""
        _, writer = await self.opened(self.half())
        writer.transport.abort()
        return "left"

    async def headers(self) -> str:
        """Headers without end."""
        return await self.drip(self.request("/")[:-2], b"X-More: x\r\n")

    async def garbage(self) -> str:
        """Noise."""
        return (
            await self.answer(self.draw.randbytes(self.draw.randint(1, 100_000)) + b"\r\n\r\n")
        )[0]

    async def numbers(self) -> str:
        """Numbers of 5,000 digits."""
        view = self.draw.choice(("latency", "budget", "training"))
        names = ("batch", "size", "max_ms", "sure", "samples", "devices", "coverage", "compare")
        text = self.draw.choice(("9" * 5000, "1e999", "-1", "0" * 5000 + "1", "\0", "٣", "nan"))
        query = urlencode({"view": view, **dict.fromkeys(names, text)})
        return (await self.answer(self.request(f"/?{query}")))[0]

    async def paths(self) -> str:
        """Paths that lead elsewhere."""
        tricks = ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/..%2f..%2fetc",
                  "/static/..%5capp.py", "/%00", "//evil.example/", "/report?only=../../x")  # fmt: skip
        return (await self.answer(self.request(self.draw.choice(tricks))))[0]

    async def archive(self) -> str:
        """Files that are no networks."""
        return (await self.answer(self.file(*damaged(self.draw))))[0]

    async def methods(self) -> str:
        """Other methods."""
        method = self.draw.choice(("PUT", "DELETE", "TRACE", "CONNECT", "PROPFIND", "OPTIONS"))
        return (await self.answer(self.request("/", method)))[0]

    async def forged(self) -> str:
        """Another host's name."""
        host = self.draw.choice(("evil.example", "127.0.0.1.evil.example", "127.0.0.1:80@evil"))
        return (await self.answer(self.request("/", Host=host)))[0]

    async def deaf(self) -> str:
        """Answers that are not taken."""
        _, writer = await self.opened(self.request("/").replace(b"Connection: close\r\n", b"") * 20)
        await asyncio.sleep(5.0)
        writer.transport.abort()
        return "left"


# ---- The server, from outside.


def of_process(pid: int, name: str) -> int:
    """A number of /proc/PID/status; 0 for a process that is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    return 0


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    parents = {int(p.name): of_process(int(p.name), "PPid") for p in Path("/proc").glob("[0-9]*")}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def memory_mib(pid: int) -> float:
    """What a process and its children hold, pages that they share counted for each."""
    return sum(of_process(p, "VmRSS") for p in family(pid)) / 1024


def busy_s(pid: int) -> float:
    """Processor time that a process has taken, without its children."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def watch(pid: int, held: list[float]) -> None:
    """Note the memory, every two seconds."""
    while True:
        held.append(memory_mib(pid))
        await asyncio.sleep(2.0)


async def load(port: int, pid: int, options: argparse.Namespace, seen: Seen) -> list[float]:
    """All clients until the time is over; the memory meanwhile."""
    Honest.files = small_networks()
    held: list[float] = []
    watching = asyncio.create_task(watch(pid, held))
    end = time.monotonic() + options.seconds
    hostile = round(options.hostile * options.clients)
    bad = [Hostile(port, seen, i).run(end) for i in range(hostile)]
    good = [Honest(port, seen, i).run(end, options.think) for i in range(hostile, options.clients)]
    await asyncio.gather(*bad, *good)
    await asyncio.sleep(15.0)  # for what hostile clients left
    watching.cancel()
    held.append(memory_mib(pid))
    return held


def tables(seen: Seen, facts: dict[str, str]) -> str:
    """Markdown."""
    lines = [
        "| what | |",
        "| --- | --: |",
        *(f"| {what} | {value} |" for what, value in facts.items()),
    ]
    lines += [
        "",
        "| page | asked | median, ms | p99, ms | longest, ms |",
        "| --- | --: | --: | --: | --: |",
    ]
    every = [ms for own in seen.page_ms.values() for ms in own]
    for kind, own in [*sorted(seen.page_ms.items()), ("all", every)]:
        if len(own) > 1:
            p99 = statistics.quantiles(own, n=100, method="inclusive")[98]
            lines.append(
                f"| {kind} | {len(own):,} | {statistics.median(own):.0f} | {p99:.0f} | {max(own):.0f} |"
            )
    lines += ["", "| request | answers |", "| --- | --- |"]
    for kind, counts in sorted(seen.statuses.items()):
        said = ", ".join(f"{status}: {n:,}" for status, n in sorted(counts.items()))
        lines.append(f"| {kind} | {said} |")
    return "\n".join(lines)


def main() -> None:
    """Start the server, run the clients, end it, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--hostile", type=float, default=0.1, help="share of the clients")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--think", type=float, default=10.0, help="seconds between two questions")
    options = parser.parse_args()
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        server = subprocess.Popen(
            [sys.executable, "-u", "-m", "lolat.cli.main", "serve", "--port", "0"],
            stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, env=os.environ | {"TMPDIR": folder},
        )  # fmt: skip
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().split(":")[3].split("/")[0])
            held = asyncio.run(load(port, server.pid, options, seen))
            threads, files = (
                of_process(server.pid, "Threads"),
                len(os.listdir(f"/proc/{server.pid}/fd")),
            )
            busy = busy_s(server.pid)
            during = len(list(Path(folder).iterdir()))
            server.send_signal(signal.SIGTERM)
            code = server.wait(60)
        finally:
            server.kill()
            server.wait()
        errors.seek(0)
        said = errors.read().splitlines()
        left = len(list(Path(folder).iterdir()))
    honest = sum(sum(c.values()) for k, c in seen.statuses.items() if k.startswith("honest"))
    every = [ms for own in seen.page_ms.values() for ms in own]
    faults = sum(c[s] for c in seen.statuses.values() for s in c if s[:1] == "5" and s != "503")
    facts = {
        "clients, of them hostile": f"{options.clients}, {round(options.hostile * options.clients)}",
        "seconds": f"{options.seconds:g}",
        "honest requests, a second": f"{honest:,}, {honest / options.seconds:.1f}",
        "different addresses among them": f"{len(seen.distinct):,}",
        "honest requests not answered": f"{len(seen.unanswered):,}",
        "answers with 500": f"{faults:,}",
        "a page, p99": f"{statistics.quantiles(every, n=100, method='inclusive')[98]:.0f} ms",
        "processor time of the server": f"{busy:.0f} s",
        "memory, server and children: start, middle, end, most":
            ", ".join(f"{m:.0f}" for m in (held[0], held[len(held) // 2], held[-1], max(held))) + " MiB",
        "threads, open files after it": f"{threads}, {files}",
        "temporary folders: with the server idle, ended": f"{during}, {left}",
        "exit code after SIGTERM, lines on stderr": f"{code}, {len(said)}",
    }  # fmt: skip
    print(tables(seen, facts))
    for line in [*Counter(seen.unanswered).most_common(10), *said[-20:]]:
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
