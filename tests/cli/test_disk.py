"""Disks that are full or read-only, folders in the way, rings of links: of each way to write."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import LolatError
from lolat.model import file as model_file
from lolat.readers.cache import Cache
from microbench.journal import Journal
from microbench.journal import read as read_journal
from tests import synthetic
from tests.cli.commands import Command
from tests.mlp.tables import random_rows, write

MODEL = Path(__file__).resolve().parents[2] / "models" / "epyc-2t.json"
NETWORK = "keras:MobileNet"

COMMANDS = {
    "report": ("report", MODEL, NETWORK, "--html", "{}.html"),
    "fit": ("fit", "{given}/points.csv", "--output", "{}.json"),
    "nas search scores": ("nas", "search", "nasbench201", MODEL, "--objective", "builtins:sum",
                          "--scores", "{}.csv", "--candidates", 200),
    "nas score": ("nas", "score", "nasbench201", MODEL, "--best", 10, "--output", "{}.txt"),
    "mlp fit": ("mlp", "fit", "{given}/layers.csv", "--recipe", "paper", "--epochs", 1,
                "--output", "{}.json"),
}  # fmt: skip


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read."""
    folder = tmp_path_factory.mktemp("given")
    points = synthetic.table(synthetic.measured(), ["acts", "inp", "flops", "latency_ms"])
    (folder / "points.csv").write_text(points)
    write(folder / "layers.csv", random_rows("dense", 30))
    return folder


def old(path: Path) -> bytes:
    """What stands in a file before the command is given."""
    if path.suffix == ".json":
        model_file.write(path, synthetic.document())
    else:
        path.write_text("arch,score\n" if path.suffix == ".csv" else "old")
    return path.read_bytes()


class Disk:
    """A small file system of its own, which can be filled and made read-only; needs to be root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._mount("-t", "tmpfs", "-o", "size=4m", "tmpfs")

    def _mount(self, *options: str) -> None:
        subprocess.run(["mount", *options, str(self.folder)], check=True, capture_output=True)

    def fill(self) -> None:
        """Leave no byte free."""
        with open(self.folder / "filler", "ab", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                return

    def close_for_writing(self) -> None:
        """Nobody may write any more."""
        self._mount("-o", "remount,ro")

    def end(self) -> None:
        """Away with it."""
        subprocess.run(["umount", "-l", str(self.folder)], check=True)


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Disk]]:
    made: dict[str, Disk] = {}

    def disk(name: str) -> Disk:
        if name not in made:
            try:
                made[name] = Disk(tmp_path_factory.mktemp("disk") / name)
            except (OSError, subprocess.CalledProcessError):
                pytest.skip("no file system can be mounted here")
        return made[name]

    yield disk
    for one in made.values():
        one.end()


def call(command: tuple[Any, ...], output: Path, given: Path) -> list[str]:
    """The command with its files."""
    stem = str(output.with_suffix(""))
    return [str(a).replace("{given}", str(given)).replace("{}", stem) for a in command]


def target(name: str, folder: Path) -> Path:
    """The file that a command writes."""
    (suffix,) = (Path(str(a)).suffix for a in COMMANDS[name] if str(a).startswith("{}"))
    return folder / f"{name.replace(' ', '-')}{suffix}"


def refused(lolat: Command, name: str, output: Path, given: Path, code: int) -> str:
    """What a command that cannot write says last; with the code, and no word more of what it is."""
    found = lolat(*call(COMMANDS[name], output, given))
    assert found.code == code, found.err
    last = found.err.splitlines()[-1]
    assert last.startswith("lolat: ")
    assert output.stem in last
    assert "Traceback" not in found.err
    return last


@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_is_full(
    lolat: Command, given: Path, disks: Callable[[str], Disk], name: str
) -> None:
    disk = disks("full")
    (disk.folder / "filler").unlink(missing_ok=True)
    output = target(name, disk.folder)
    before = None if output.suffix == ".folder" else old(output)
    disk.fill()
    there = set(os.listdir(disk.folder)) | {output.name}
    last = refused(lolat, name, output, given, 1)
    assert "disk is full" in last
    goes_on = before is None or "scores" in name
    assert goes_on or output.read_bytes() == before
    assert set(os.listdir(disk.folder)) | {output.name} == there
    if goes_on:  # when there is room again, even from half a line
        (disk.folder / "filler").unlink()
        lolat.done(*call(COMMANDS[name], output, given))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_may_not_be_written_to(
    lolat: Command, given: Path, disks: Callable[[str], Disk], name: str
) -> None:
    disk = disks(f"closed-{name.replace(' ', '-')}")
    output = target(name, disk.folder)
    before = None if output.suffix == ".folder" else old(output)
    disk.close_for_writing()
    refused(lolat, name, output, given, 2)
    assert before is None or output.read_bytes() == before


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_or_a_ring_of_links_in_the_way(
    lolat: Command, given: Path, tmp_path: Path, name: str
) -> None:
    output = target(name, tmp_path)
    output.symlink_to(output)
    refused(lolat, name, output, given, 2)
    assert output.is_symlink()
    output.unlink()
    if output.suffix != ".folder":
        output.mkdir()
    else:
        output.write_text("x")
    refused(lolat, name, output, given, 2)
    assert os.listdir(tmp_path) == [output.name]


# ---- What runs keep while they go on.

RECORD = {"key": "a x1", "samples_ms": [1.5], "reference_ms": [], "at_s": [1.0], "before": ""}


def test_a_journal_on_a_full_disk_keeps_what_it_has(disks: Callable[[str], Disk]) -> None:
    disk = disks("journals")
    path = disk.folder / "j.jsonl"
    journal = Journal(path, {}, 1e9)
    journal.append(RECORD)
    disk.fill()

    def until_its_last_page_is_full() -> None:
        for _ in range(1000):
            journal.append(RECORD)

    with pytest.raises(LolatError, match="the disk is full"):
        until_its_last_page_is_full()
    kept = len(journal.records)
    journal.close()
    (disk.folder / "filler").unlink()
    again = Journal(path, {}, 1e9)
    assert again.records == [RECORD] * kept
    again.append(RECORD)
    again.close()
    assert read_journal(path)[1:] == [RECORD] * (kept + 1)


def test_a_cache_on_a_full_disk_keeps_nothing(disks: Callable[[str], Disk]) -> None:
    disk = disks("caches")
    cache = Cache(disk.folder / "cache")
    (disk.folder / "cache").mkdir()
    disk.fill()
    graph = synthetic.network()
    assert cache.read("keras:NotOneOfThose", (), lambda: graph) == graph
    assert os.listdir(disk.folder / "cache") == []
