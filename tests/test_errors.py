"""The line that a missing package is installed with, wherever this LoLat came from."""

from __future__ import annotations

import json
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from lolat import errors

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("inside", [True, False])
def test_in_a_checkout_its_folder_is_named(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT if inside else tmp_path)
    *command, what = shlex.split(errors.install("torch"))
    folder, extra = what.removesuffix("]").split("[")
    assert command == ["pip", "install", "-e"]
    assert extra == "torch"
    assert Path(folder).resolve() == ROOT


@pytest.mark.parametrize(
    ("direct", "url"),
    [
        ({"url": "file:///tmp/lolat-1.whl", "archive_info": {}}, "file:///tmp/lolat-1.whl"),
        (
            {"url": "https://example.org/lolat", "vcs_info": {"vcs": "git", "commit_id": "1"}},
            "git+https://example.org/lolat",
        ),
        (None, None),
    ],
)
def test_installed_the_address_that_pip_had_it_from(
    direct: dict[str, object] | None, url: str | None, tmp_path: Path
) -> None:
    """What pip recorded; the answer is read by the packaging library, as pip reads it."""
    (tmp_path / "lolat").mkdir()
    shutil.copy(errors.__file__, tmp_path / "lolat" / "errors.py")
    (tmp_path / "lolat" / "__init__.py").touch()
    info = tmp_path / "lolat-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lolat\nVersion: 1\n")
    if direct is not None:
        (info / "direct_url.json").write_text(json.dumps(direct))
    code = "from lolat.errors import install; print(install('onnx'))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path[:0] = [{str(tmp_path)!r}]\n{code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    pip, verb, what = shlex.split(done.stdout)
    asked = Requirement(what)
    assert (pip, verb, asked.name) == ("pip", "install", "lolat")
    assert (asked.extras, asked.url) == ({"onnx"}, url)


def test_a_missing_package_travels_between_processes() -> None:
    error = errors.MissingPackageError("no PyTorch", "torch")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error).count("pip install") == 1


def test_nobody_is_told_to_install_what_is_not_released() -> None:
    """`pip install lolat` finds nothing on the package index, or one day somebody else's package."""
    told = re.compile(r"pip install (--upgrade )?'?lolat\b(?!\[\w+\] @)")
    folders = ("lolat", "microbench", "docs", "benchmarks", "examples")
    places = [*ROOT.glob("*.md"), *(p for f in folders for p in (ROOT / f).rglob("*"))]
    texts = [p for p in places if p.suffix in {".py", ".md", ".yml", ".html"}]
    assert [str(p) for p in texts if told.search(p.read_text(encoding="utf-8"))] == []
