"""Where models live and how one is found, in a checkout and where LoLat is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lolat.errors import InputError, ModelFileError
from lolat.io import paths as places


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """(local, shipped): empty folders in place of the real ones, and a third to work in."""
    local, shipped, work = (tmp_path / name for name in ("mine", "theirs", "work"))
    for folder in (local, shipped, work):
        folder.mkdir()
    monkeypatch.setattr(places, "local_folder", lambda: local)
    monkeypatch.setattr(places, "shipped_folder", lambda: shipped)
    monkeypatch.chdir(work)
    return local, shipped


def _refusal(name: str) -> str:
    with pytest.raises(ModelFileError) as caught:
        places.find_model(name)
    assert str(caught.value).isprintable()
    return str(caught.value)


def _put(path: Path, age_s: float = 0) -> Path:
    path.write_text("{}")
    os.utime(path, (1e9 - age_s, 1e9 - age_s))
    return path


def test_in_this_checkout() -> None:
    root = Path(__file__).parents[2]
    assert places.repository_root() == root
    assert places.local_folder() == root / "models" / "local"
    assert places.shipped_folder() == root / "models"


def test_what_is_listed(folders: tuple[Path, Path]) -> None:
    local, shipped = folders
    for name in ("b.json", "a.json", "a.json.journal.jsonl", ".half.json", "README.md", "c.jsonl"):
        _put(local / name)
    _put(shipped / "a.json")
    (shipped / "folder.json").mkdir()
    (shipped / "local").mkdir()
    assert places.list_models() == [
        ("a", local / "a.json", "local"),
        ("b", local / "b.json", "local"),
        ("a", shipped / "a.json", "shipped"),
    ]


def test_without_folders_nothing_is_listed(folders: tuple[Path, Path]) -> None:
    for folder in folders:
        folder.rmdir()
    assert places.list_models() == []
    assert "none there is yet, `python learn_model.py cpu` makes one" in _refusal("cpu")


def test_local_is_the_one_learned_last(folders: tuple[Path, Path]) -> None:
    local, shipped = folders
    message = _refusal("local")
    assert "no model has been learned on this machine" in message
    assert "python learn_model.py cpu" in message
    _put(shipped / "newest.json", age_s=-10)
    assert "no model has been learned" in _refusal("local")
    _put(local / "a.json", age_s=100)
    last = _put(local / "b.json", age_s=1)
    _put(local / "c.json", age_s=50)
    _put(local / "b.json.journal.jsonl")
    # A file or folder that happens to be called so does not take the word's meaning.
    Path("local").mkdir()
    assert places.find_model("local") == last


def test_a_file_comes_before_a_name_and_a_local_model_before_a_shipped_one(
    folders: tuple[Path, Path],
) -> None:
    local, shipped = folders
    _put(shipped / "cpu.json")
    assert places.find_model("cpu") == shipped / "cpu.json"
    assert places.find_model("cpu.json") == shipped / "cpu.json"
    _put(local / "cpu.json")
    assert places.find_model("cpu") == local / "cpu.json"
    Path("cpu").mkdir()
    assert places.find_model("cpu") == local / "cpu.json"
    _put(Path("cpu.json"))
    assert places.find_model("cpu.json") == Path("cpu.json")
    assert places.find_model("cpu") == Path("cpu.json")
    # An existing file is taken whatever it is called; its reader says whether it is a model.
    _put(Path("notes.txt"))
    assert places.find_model("notes.txt") == Path("notes.txt")
    assert places.find_model(str(Path("cpu.json").resolve())) == Path("cpu.json").resolve()


def test_what_is_not_there_names_what_is(folders: tuple[Path, Path]) -> None:
    local, shipped = folders
    _put(local / "desk.json")
    _put(shipped / "EPYC-2t.json")
    message = _refusal("epcy-2t")
    assert message.startswith("epcy-2t: no such model; expected ")
    assert "there are desk, EPYC-2t; did you mean EPYC-2t?" in message
    assert "did you mean" not in _refusal("something else")
    assert "is a folder" in _refusal(str(local))
    assert "did you mean desk?" in _refusal("models/dsk.json")
    for name in ("", "a\nb", "a\0b", "x" * 5000, "\udcff", "/", "..", "nothing/"):
        _refusal(name)


@pytest.mark.skipif(os.name != "posix", reason="a link to itself stands for what cannot be read")
def test_a_folder_that_cannot_be_read_is_one_line(folders: tuple[Path, Path]) -> None:
    folders[0].rmdir()
    folders[0].symlink_to(folders[0])
    with pytest.raises(InputError, match="cannot be read"):
        places.list_models()


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"XDG_DATA_HOME": "/data"}, "/data/lolat/models"),
        ("linux", {"XDG_DATA_HOME": "relative"}, "~/.local/share/lolat/models"),
        ("linux", {"XDG_DATA_HOME": ""}, "~/.local/share/lolat/models"),
        ("linux", {}, "~/.local/share/lolat/models"),
        ("darwin", {"XDG_DATA_HOME": "/data"}, "~/Library/Application Support/lolat/models"),
        ("win32", {"LOCALAPPDATA": "/appdata"}, "/appdata/lolat/models"),
        ("win32", {}, "~/AppData/Local/lolat/models"),
    ],
)
def test_installed_it_uses_the_users_data_folder(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    platform: str,
    environment: dict[str, str],
    expected: str,
) -> None:
    monkeypatch.setattr(places, "repository_root", lambda: None)
    monkeypatch.setattr(places.sys, "platform", platform)
    for name in ("XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path), **environment}.items():
        monkeypatch.setenv(name, value)
    assert places.local_folder() == Path(expected.replace("~", str(tmp_path)))
    assert places.shipped_folder() == Path(places.__file__).parents[1] / "shipped"


def test_without_a_home_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(places, "repository_root", lambda: None)
    monkeypatch.setattr(places.sys, "platform", "linux")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(InputError, match="set HOME"):
        places.local_folder()


def test_a_package_elsewhere_finds_the_models_beside_it(tmp_path: Path) -> None:
    """As pip lays it out: the package alone, with its models in `shipped`."""
    source = Path(places.__file__).parents[1]
    package = tmp_path / "site-packages" / "lolat"
    (package / "io").mkdir(parents=True)
    for name in ("__init__.py", "errors.py", "io/__init__.py", "io/paths.py"):
        shutil.copy(source / name, package / name)
    (package / "shipped").mkdir()
    (package / "shipped" / "epyc.json").write_text("{}")
    code = (
        "import json; from lolat.io import paths as places; "
        "print(json.dumps([str(places.repository_root()), str(places.local_folder()), "
        "str(places.find_model('epyc'))]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=package.parent,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path), "PYTHONPATH": str(package.parent)},
        capture_output=True,
        check=True,
    )
    root, local, found = json.loads(done.stdout)
    assert root == "None"
    assert found == str(package / "shipped" / "epyc.json")
    if sys.platform.startswith("linux"):
        assert local == str(tmp_path / "lolat" / "models")


def test_a_name_comes_before_longer_ones_that_begin_with_it(folders: tuple[Path, Path]) -> None:
    _, shipped = folders
    for name in ("cpu-torch.json", "cpu.json"):
        _put(shipped / name)
    assert [name for name, _, _ in places.list_models()] == ["cpu", "cpu-torch"]
