"""The package as others get it: built from the source archive, checked, with models and pages inside."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import lolat

ROOT = Path(__file__).resolve().parent.parent
ADDRESS = "https://code.example/lolat"


def check_out(folder: Path) -> None:
    """Copies what git would commit."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and source archive; the wheel is built from the archive."""
    pytest.importorskip("build")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    check_out(source)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)],
        cwd=source, check=True, capture_output=True, env=os.environ | {"LOLAT_REPOSITORY": ADDRESS},
    )  # fmt: skip
    return out


def test_the_lock_file_holds_what_the_tests_ask_for() -> None:
    """A hash and a version inside its range for each package of the extra `test`; else: make lock."""
    packaging = pytest.importorskip("packaging.requirements")
    lines = (ROOT / "tests/requirements.txt").read_text(encoding="utf-8").replace("\\\n", "")
    locked: dict[str, list[str]] = {}
    for name, version, rest in re.findall(r"^([\w.-]+)==(\S+)(.*)$", lines, re.MULTILINE):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", rest), name
        locked.setdefault(name, []).append(version)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras, asked = ["test"], project["dependencies"]
    for extra in extras:
        asked = asked + project["optional-dependencies"][extra]
        extras += [
            e for a in asked for e in packaging.Requirement(a).extras if a.startswith("lolat[")
        ]
        extras[:] = dict.fromkeys(extras)
    for text in asked:
        wanted = packaging.Requirement(text)
        # PyTorch's wheel differs from place to place under one version.
        if wanted.name not in ("lolat", "torch"):
            assert all(map(wanted.specifier.contains, locked[wanted.name.lower()])), text


@pytest.mark.slow
def test_it_builds_and_the_checkers_have_nothing_to_say(built: Path) -> None:
    wheel, archive = next(built.glob("*.whl")), next(built.glob("*.tar.gz"))
    for command in (
        [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(archive)],
        [sys.executable, "-m", "check_wheel_contents", str(wheel)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_models_pages_and_licenses_are_inside(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        told = email.message_from_bytes(wheel.read(metadata))
    shipped = {Path(n).name for n in names if n.startswith("lolat/shipped/")}
    assert {p.name for p in (ROOT / "models").glob("*.json")} <= shipped
    data = [
        p for p in (ROOT / "lolat").rglob("*") if p.is_file() and p.suffix not in {".py", ".pyc"}
    ]
    assert {p.relative_to(ROOT).as_posix() for p in data} <= names
    assert not any(n.startswith(("tests/", "benchmarks/", "docs/")) for n in names)
    assert {Path(n).name for n in names if "/licenses/" in n} == {"LICENSE", "NOTICE"}
    assert {n.partition("/")[0].partition("-")[0] for n in names} == {"lolat"}
    measuring = {p.relative_to(ROOT).as_posix() for p in (ROOT / "microbench").rglob("*.py")}
    assert {f"lolat/{name}" for name in measuring} <= names
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Version"] == lolat.__version__
    assert f"Repository, {ADDRESS}" in told.get_all("Project-URL", ())
    _of_an_index(told.get_payload())
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        packed = {n.partition("/")[2] for n in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "models/epyc-2t.json", "Makefile"} <= packed
    assert {
        f"tests/{Path(__file__).name}",
        "tests/conftest.py",
        "microbench/runner.py",
    } - packed == set()


def _of_an_index(readme: Any) -> None:
    """Every link and picture of the README is absolute, and its file is in the checkout."""
    here = f"{ADDRESS}/(?:blob|raw)/v{re.escape(lolat.__version__)}/"
    links = re.findall(r'\]\(([^)]+)\)|src="([^"]+)"', readme)
    assert len(links) > 10
    for link in map("".join, links):
        assert link.startswith("https://"), link
        if inside := re.match(here, link):
            assert (ROOT / link[inside.end() :].partition("#")[0]).exists(), link
    assert "<!--" not in readme
    assert f"git clone {ADDRESS} " in readme
    assert "REPOSITORY" not in readme


@pytest.mark.slow
def test_installed_elsewhere_it_answers(built: Path, tmp_path: Path) -> None:
    """Its files alone, away from the checkout, beside a package called microbench."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path)
    (tmp_path / "microbench").mkdir()
    (tmp_path / "microbench/__init__.py").write_text("raise ImportError('of another project')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import lolat; model = lolat.load('rtx-4090-amp'); print(model.name, lolat.__file__)\n"
        "from lolat.microbench import worker, learn; import lolat.api.learning; print(worker.__file__)\n"
        "import pkgutil; print(pkgutil.resolve_name(worker.WORKER).__module__)\n"
        "print(lolat.load('epyc-2t').predict_counts(acts=1e6, inp=1e6, flops=1e8))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    name, file, start, ms = done.stdout.splitlines()
    assert str(tmp_path) in name
    assert file == str(tmp_path / "lolat/microbench/worker.py")
    assert start == "lolat.microbench.worker"
    assert float(ms) > 0


@pytest.mark.parametrize("script", ["learn_model.py", "lolat/__main__.py"])
@pytest.mark.parametrize("given", ["3.10", "3.9"])
def test_an_older_python_gets_one_line(given: str, script: str) -> None:
    """Run by the older one where it is there, else by one that says so."""
    code = (
        f"import runpy, sys; sys.version_info = ({given.replace('.', ', ')}, 1, 'final', 0)\n"
        f"runpy.run_path({script!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert given in line
    assert "3.11" in line


def test_a_wheel_needs_no_environment_of_tests() -> None:
    """`make package` installs three tools, and nothing that learning or testing needs."""
    done = subprocess.run(
        ["make", "--dry-run", "package", "VENV=/nowhere"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "build twine" in done.stdout
    assert not re.search(r"\.\[test\]|tensorflow|requirements\.txt", done.stdout)


def test_one_story_of_installation() -> None:
    """README and the first page say the same; the page adds the extras that there are."""
    readme, words = (
        re.sub("<!-- not run: .*-->\n", "", section[1])
        for page in ("README.md", "docs/index.md")
        if (section := re.search(r"(?s)## Install\n(.*?)\n## ", (ROOT / page).read_text("utf-8")))
    )
    assert words.startswith(readme)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].keys()
    named = re.findall(r"`(\w+)`", words.partition("Extras, ")[2])
    assert set(named) == extras - {"docs", "test", "check"}
