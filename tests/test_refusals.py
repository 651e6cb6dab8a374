"""Refusals: each row of tests/data/refusals.toml, on each surface that it names.

On every surface the error has the row's code, names its arguments and repeats the value that was given;
nothing is written. The command line says it in one printable line on stderr, and its exit code is 2.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

import lolat
from lolat.cli import main
from lolat.cli.main import lolat as commands
from lolat.errors import LolatError
from tests import synthetic
from tests.llm import known_gpu

USAGE = "usage"
"""The code of the words of a command that click itself refuses."""
SURFACES = ("command", "python")
ROWS = [
    pytest.param(surface, row, id=f"{surface} {row[surface]}")
    for rows in tomllib.loads((Path(__file__).parent / "data" / "refusals.toml").read_text()).values()
    for row in rows
    for surface in SURFACES
    if surface in row
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a call, with models, a network and the configuration of a language model."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "desk.json").write_text(json.dumps(synthetic.document()))
    (here / "net.json").write_text(json.dumps(synthetic.network().to_dict()))
    (here / "gpu.json").write_text(json.dumps(known_gpu.document()))
    damaged = known_gpu.document()
    damaged["llm"]["operations"]["gemm"]["bfloat16"]["terms"]["rate"] = -1
    (here / "damaged.json").write_text(json.dumps(damaged))
    (here / "config.json").write_text(json.dumps(known_gpu.LLAMA))
    monkeypatch.chdir(here)
    return here


@pytest.mark.parametrize(("surface", "row"), ROWS)
def test_a_refusal(
    surface: str, row: dict[str, Any], folder: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert row.get("names") or row.get("given"), "a row that says nothing of its message"
    for package in row.get("needs", ()):
        pytest.importorskip(package)
    for name, text in row.get("files", {}).items():
        (folder / name).write_text(text)
    before = contents(folder)
    if surface == "command":
        raised: list[LolatError] = []
        words_of = main.words_of
        monkeypatch.setattr(main, "words_of", lambda e, *c: raised.append(e) or words_of(e, *c))
        monkeypatch.setenv("COLUMNS", "80")
        exit_code = main.run(commands, shlex.split(row[surface]), "lolat")
        said = one_line(capsys.readouterr().err)
        code = raised[-1].code if raised else USAGE
        assert exit_code == row.get("exit", 2), said
        assert code == (USAGE if row.get("click") else row["code"]), said
        assert [n for n in row.get("names", ()) if not on_command_line(n, said)] == [], said
    else:
        with pytest.raises(LolatError) as caught:
            exec(row[surface], {"lolat": lolat, "model": lolat.load("desk.json"),
                                "gpu": lolat.load("gpu.json"),
                                "network": lolat.read("net.json")})  # fmt: skip
        said = str(caught.value)
        assert caught.value.code == row["code"], said
        assert caught.value.exit_code == row.get("exit", 2)
        assert set(row.get("names", ())) <= set(caught.value.arguments), said
    assert row.get("given", "") in said
    assert contents(folder) == before


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, without what Python compiles beside a module that it imports."""
    return {
        str(p): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.parent.name != "__pycache__"
    }


def one_line(stderr: str) -> str:
    """The last line of stderr; remarks may stand before it, a traceback may not."""
    *remarks, last = stderr.splitlines()
    assert all(line.startswith("lolat: ") for line in (*remarks, last)), stderr
    assert last.isprintable()
    return last


def on_command_line(argument: str, line: str) -> bool:
    """True if a line names an argument in the form of the command line: `--batch-size`, `NETWORK`."""
    option, metavar = "--" + argument.replace("_", "-"), argument.upper()
    return re.search(rf"{option}(?![\w-])|\b{metavar}\b", line) is not None
