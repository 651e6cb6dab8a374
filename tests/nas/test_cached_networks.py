"""Networks of a function that an earlier run built: used while nothing that they depend on has changed."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lolat.graph.counts import count
from lolat.nas import Space
from lolat.readers import cache
from tests.processes import ROOT, python

SPACE = """
import os

from lolat.graph import GraphBuilder
from lolat.graph.layers import Layers
from lolat.nas import Space
from cells import layer, out

BUILT = []
CHOICES = {"width": (8, 16, 24), "kernel": (1, 3), "depth": (1, 2, 3)}
CLASSES = 10


def network(width, kernel, depth):
    import late

    if len(BUILT) == int(os.environ.get("STOP_AFTER", -1)):
        raise KeyboardInterrupt
    BUILT.append((width, kernel, depth))
    builder = GraphBuilder("net")
    layers, x = Layers(builder), builder.input((1, 16, 16, 3))
    for _ in range(depth):
        x = layer(layers, x, width, kernel)
    x = layers.conv(x, out(width) + late.MORE + int(open("data.txt").read()), 1)
    return builder.build([layers.dense(layers.flatten(layers.global_pool(x)), CLASSES)])


def space():
    return Space.from_factory(network, CHOICES)


def scaled(times):
    def of(width, kernel, depth):
        return network(times * width, kernel, depth)
    return Space.from_factory(of, CHOICES)


def doubled():
    return scaled(2)
"""
CELLS = """
def layer(layers, x, width, kernel):
    return layers.conv(x, width, kernel)

def out(width):
    return 4 * (width > 8)
"""
FILES = {"mine.py": SPACE, "cells.py": CELLS, "late.py": "MORE = 1\n", "data.txt": "1"}


class Runs:
    """Runs of a space's module, as by commands one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.times = folder, itertools.count(1)

    def write(self, name: str, text: str) -> None:
        """Write a file of some time ago; each has another time, by which Python knows a new text."""
        path = self.folder / name
        path.write_text(text)
        os.utime(path, (next(self.times) * 1000,) * 2)

    def __call__(self, maker: str = "space") -> tuple[int, Space]:
        """The number of networks that a function built for its space, and the space, with right counts."""
        for name in ("mine", "cells", "late"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        mine = importlib.import_module("mine")
        space = getattr(mine, maker)()
        space.prepare()
        built = len({*mine.BUILT})  # two of them once more
        rows = space.decode(np.arange(space.size))
        for row in rows[::5]:
            whole = space.decomposer.networks.function(**space.values(row))
            np.testing.assert_array_equal(space.counts(row[None], 3)[0], count(whole).total(3))
            assert space.network(row).operations == whole.operations
        return built, space


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    monkeypatch.setenv("LOLAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Runs(tmp_path)
    for name, text in FILES.items():
        found.write(name, text)
    yield found
    for name in FILES:  # other tests have modules of these names
        sys.modules.pop(name.removesuffix(".py"), None)


def test_a_later_run_builds_a_network_for_each_choice_alone(runs: Runs) -> None:
    built, space = runs()
    assert built == space.decomposition.built == space.size == 18
    assert "earlier" not in str(space.decomposition)
    built, again = runs()
    assert built == 3  # the most choices of a position
    assert again.decomposition.cached == 18 - 3
    assert "18 networks built (15 by an earlier command: LOLAT_CACHE=off" in str(
        again.decomposition
    )
    assert again.fingerprint == space.fingerprint


CHANGES: dict[str, Callable[[Runs, pytest.MonkeyPatch], None]] = {
    "the file": lambda runs, _: runs.write("mine.py", SPACE.replace("CLASSES = 10", "CLASSES = 12")),
    "a helper": lambda runs, _: runs.write("cells.py", CELLS.replace("4 *", "6 *")),
    "a helper where one pair of choices meets": lambda runs, _: runs.write(
        "cells.py", CELLS.replace("width, kernel)\n", "width + ((width, kernel) == (16, 1)), kernel)\n")
    ),
    "a helper that the function imports": lambda runs, _: runs.write("late.py", "MORE = 2\n"),
    "a file of data": lambda runs, _: runs.write("data.txt", "2"),
    "the choices": lambda runs, _: runs.write("mine.py", SPACE.replace("(1, 3)", "(3, 1)")),
    "the readers": lambda _, patch: patch.setattr(cache, "READERS", 10**6),
    "a file that is newer than the process": lambda runs, _: os.utime(runs.folder / "cells.py"),
    "no cache": lambda _, patch: patch.setenv("LOLAT_CACHE", "off"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_all_are_built_anew_after_a_change(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    runs()
    CHANGES[change](runs, monkeypatch)
    assert runs()[0] == 18


TABLE = {
    "read for each network": "def extra(pair): return json.load(open('pairs.json')).get(pair, 0)",
    "read once": """
@functools.cache
def table(): return json.loads(pathlib.Path('pairs.json').read_text())
def extra(pair): return table().get(pair, 0)""",
    "if it is there": """
def extra(pair):
    try:
        return json.load(open('pairs.json')).get(pair, 0)
    except FileNotFoundError:
        return 0""",
}


@pytest.mark.parametrize("table", TABLE)
def test_a_file_of_data_that_changes_one_pair_of_choices(runs: Runs, table: str) -> None:
    """No network that is built anew, of the base or the diagonal, has the pair."""
    wider = CELLS.replace("width, kernel)\n", "width + extra(f'{width} {kernel}'), kernel)\n")
    runs.write("cells.py", f"import functools, json, pathlib\n{TABLE[table]}\n{wider}")
    if table != "if it is there":
        runs.write("pairs.json", "{}")
    assert [runs()[0] for _ in range(2)] == [18, 3]
    for number in (5, 7):
        runs.write("pairs.json", f'{{"16 1": {number}}}')
        built, space = runs()  # which compares the counts of networks
        assert built == 18
        assert "checked on 18 of 18 networks" in str(space.decomposition)
    built, space = runs()
    assert built == 3
    assert "18 networks, cached ones as first built" in str(space.decomposition)
    assert "exact" not in space.decomposition.words()


def test_a_file_that_the_function_writes_builds_nothing_anew(runs: Runs) -> None:
    writes = "    open('log.txt', 'w').write(str(width)), open('log.txt').read()\n    import late\n"
    runs.write("mine.py", SPACE.replace("    import late\n", writes))
    assert [runs()[0] for _ in range(2)] == [18, 3]


def test_a_change_elsewhere_builds_nothing_anew(runs: Runs) -> None:
    runs()
    runs.write("training.py", "import cells\n")
    importlib.import_module("training")
    assert runs()[0] == 3


def test_a_function_with_values_of_its_own_is_built_anew(runs: Runs) -> None:
    assert [runs("doubled")[0] for _ in range(2)] == [18, 18]


def test_an_interrupted_run_goes_on(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOP_AFTER", "8")
    with pytest.raises(KeyboardInterrupt):
        runs()
    monkeypatch.delenv("STOP_AFTER")
    assert runs()[0] == 18 - (8 - 3)


def test_another_process_finds_them(runs: Runs) -> None:
    runs()
    code = "import mine; mine.space().prepare(); print(len({*mine.BUILT}))"
    own = SPACE + "\nspace().prepare(); print(len({*BUILT}))"  # of a module that is no file
    for text, built in ((code, "3"), (own, "18")):
        done = python(text, cwd=runs.folder, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert done.stdout.strip() == built, done.stderr
