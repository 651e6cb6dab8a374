"""The folders of models and the search for one by name, in a checkout and installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lolat.device.lookup import find_model
from lolat.errors import InputError, ModelFileError
from lolat.io import paths


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """(local, shipped): empty folders in place of the real ones, and a third to work in."""
    local, shipped, work = (tmp_path / name for name in ("mine", "theirs", "work"))
    for folder in (local, shipped, work):
        folder.mkdir()
    monkeypatch.setattr(paths, "local_folder", lambda: local)
    monkeypatch.setattr(paths, "bundled_folder", lambda: shipped)
    monkeypatch.chdir(work)
    return local, shipped


def refusal(name: str) -> str:
    with pytest.raises(ModelFileError) as caught:
        find_model(name)
    assert str(caught.value).isprintable()
    return str(caught.value)


def put(path: Path, age_s: float = 0) -> Path:
    path.write_text("{}")
    os.utime(path, (1e9 - age_s, 1e9 - age_s))
    return path


def test_in_this_checkout() -> None:
    root = Path(__file__).parents[2]
    assert paths.repository_root() == root
    assert paths.local_folder() == root / "models" / "local"
    assert paths.bundled_folder() == root / "models"


def test_what_is_listed(folders: tuple[Path, Path]) -> None:
    """Models by name, a name before longer ones that begin with it; no journals, folders, hidden files."""
    local, shipped = folders
    for name in ("b.json", "a-b.json", "a.json", "a.json.journal.jsonl", ".half.json", "README.md"):
        put(local / name)
    put(shipped / "a.json")
    (shipped / "folder.json").mkdir()
    assert paths.list_models() == [
        *((name, local / f"{name}.json", "local") for name in ("a", "a-b", "b")),
        ("a", shipped / "a.json", "shipped"),
    ]


def test_local_is_the_one_learned_last(folders: tuple[Path, Path]) -> None:
    local, shipped = folders
    put(shipped / "newest.json", age_s=-10)
    assert "`lolat learn cpu`" in refusal("local")
    put(local / "a.json", age_s=100)
    last = put(local / "b.json", age_s=1)
    put(local / "c.json", age_s=50)
    put(local / "b.json.journal.jsonl")
    # A file or folder that happens to be called so does not take the word's meaning.
    Path("local").mkdir()
    assert find_model("local") == last


def test_a_file_comes_before_a_local_and_a_shipped_model(folders: tuple[Path, Path]) -> None:
    local, shipped = folders
    put(shipped / "cpu.json")
    assert find_model("cpu") == find_model("cpu.json") == shipped / "cpu.json"
    put(local / "cpu.json")
    assert find_model("cpu") == local / "cpu.json"
    Path("cpu").mkdir()
    assert find_model("cpu") == local / "cpu.json"
    put(Path("cpu.json"))
    assert find_model("cpu.json") == Path("cpu.json")
    assert find_model("cpu") == local / "cpu.json", "the file that lies here is not meant"
    put(Path("mine.json"))
    assert find_model("mine") == Path("mine.json")
    # An existing file is taken whatever it is called; its reader says whether it is a model.
    put(Path("notes.txt"))
    assert find_model("notes.txt") == Path("notes.txt")


def test_what_is_not_there_names_what_is(folders: tuple[Path, Path]) -> None:
    local, shipped = folders
    put(local / "desk.json")
    put(shipped / "EPYC-2t.json")
    message = refusal("epcy-2t")
    assert message.startswith("epcy-2t: no such device; did you mean EPYC-2t? expected ")
    assert message.endswith("there are desk, EPYC-2t")
    assert "did you mean" not in refusal("something else")
    put(shipped / "rtx-4090-amp.json")
    assert "did you mean rtx-4090, in precision fp16?" in refusal("RTX-4090-fp16")
    assert "is a folder" in refusal(str(local))
    put(local / "net.py")
    for network in ("keras:ResNet50", "net.onnx", str(local / "net.py")):
        assert "looks like a network; where both are expected, the device comes first" in refusal(
            network
        )
    assert "network" not in message
    assert "did you mean desk?" in refusal("models/dsk.json")
    for number in range(11):
        put(shipped / f"card-{number}.json")
    for other in ("tpu", "tpu-v4", "trn1", "mps", "m2"):
        message = refusal(other)
        assert "did you mean" not in message
        assert (
            "CPUs, and GPUs by NVIDIA and AMD, such as epyc-2t, rtx-4090, h100 and mi300x"
            in message
        )
    for name in ("", "a\nb", "a\0b", "x" * 5000, "\udcff", "/", "..", "nothing/"):
        refusal(name)


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"XDG_DATA_HOME": "/data"}, "/data/lolat/models"),
        ("linux", {"XDG_DATA_HOME": "relative"}, "~/.local/share/lolat/models"),
        ("linux", {}, "~/.local/share/lolat/models"),
        ("darwin", {"XDG_DATA_HOME": "/data"}, "~/Library/Application Support/lolat/models"),
        ("win32", {"LOCALAPPDATA": "/appdata"}, "/appdata/lolat/models"),
        ("win32", {}, "~/AppData/Local/lolat/models"),
    ],
)
def test_installed_it_uses_the_users_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, environment: dict[str, str],
    expected: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(paths, "repository_root", lambda: None)
    monkeypatch.setattr(paths.sys, "platform", platform)
    for name in ("XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path), **environment}.items():
        monkeypatch.setenv(name, value)
    assert paths.local_folder() == Path(expected.replace("~", str(tmp_path)))
    assert paths.bundled_folder() == Path(paths.__file__).parents[1] / "shipped"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have their own folders")
def test_the_folder_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for named, xdg, expected in (
        ("/named", "/xdg", Path("/named")),
        ("here", "/xdg", tmp_path / "here"),
        ("", "/xdg", Path("/xdg/lolat")),
        ("", "relative", Path("/home/me/.cache/lolat")),
        ("", "", Path("/home/me/.cache/lolat")),
        ("off", "/xdg", None),
    ):
        monkeypatch.setenv("LOLAT_CACHE", named)
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        assert paths.cache_folder() == expected

    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", no_home)
    assert paths.cache_folder() is None
    monkeypatch.setattr(paths, "repository_root", lambda: None)
    monkeypatch.setenv("XDG_DATA_HOME", "")
    with pytest.raises(InputError, match="set HOME"):
        paths.local_folder()
