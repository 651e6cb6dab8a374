"""Writing a model file: whole or not at all, whatever goes wrong; a section added, the others kept."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import lolat
from lolat.errors import InputError, LolatError, ModelFileError
from lolat.mlp.layer_model import read_layer_model
from lolat.model import file as model_file
from lolat.model.file import OF_TRAINING, lacks, put, read, with_sections, write
from lolat.readers.cache import Cache
from lolat.training.file import load_training
from microbench.journal import parse
from tests import synthetic
from tests.model_documents import large, small
from tests.strategies import models
from tests.synthetic import network
from tests.training import epoch_tables

_ROOT = Path(model_file.__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model file that is there already."""
    model_file.write(tmp_path / "model.json", small())
    return tmp_path / "model.json"


def unchanged(path: Path) -> bool:
    """Whether the file is as it was, and alone."""
    return model_file.read(path) == small() and os.listdir(path.parent) == [path.name]


def _sorted(document: Any) -> str:
    return json.dumps(document, sort_keys=True)


@given(models())
@settings(max_examples=40)
def test_what_is_written_is_what_json_reads(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("written") / "model.json"
    document["points"] = [document["points"][0] | {"extra": document["environment"]}]
    model_file.write(path, document)
    # As text as well: 1 == 1.0 == True, and a reader must not change one to another.
    oracle = json.loads(path.read_bytes())
    assert oracle == document
    assert _sorted(oracle) == _sorted(document) == _sorted(model_file.read(path))
    assert json.dumps(oracle) == json.dumps(oracle, sort_keys=True), "keys are sorted"
    content = path.read_bytes()
    model_file.write(path, model_file.read(path))
    assert path.read_bytes() == content


def test_a_point_takes_a_line_and_no_line_is_split_in_a_list_of_times(path: Path) -> None:
    document = large(points=20, samples=7)
    model_file.write(path, document)
    lines = path.read_text().splitlines()
    for point in document["points"]:
        line = next(line for line in lines if f'"{point["name"]}"' in line)
        assert json.loads(line.rstrip(",")) == point
    assert ' "name": "desk",' in lines
    assert len(lines) < 20 + 60


@pytest.mark.skipif(os.name != "posix", reason="modes and links as POSIX has them")
def test_it_is_readable_as_the_umask_says_and_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    before = os.umask(0o027)
    try:
        model_file.write(link, small())
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert model_file.read(real) == small()


_CIRCLE: list[Any] = []
_CIRCLE.append(_CIRCLE)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"version": 1},
        {**small(), "points": None},
        {**small(), "noise": {"x": math.nan}},
        *({**small(), "extra": v} for v in ({1: 2}, {"a"}, object(), _CIRCLE, b"x", {None: [1]})),
    ],
    ids=lambda document: "",
)
def test_what_is_no_model_or_no_json_is_one_line_and_changes_nothing(
    path: Path, document: dict[str, Any]
) -> None:
    with pytest.raises(ModelFileError) as caught:
        model_file.write(path, document)
    assert str(caught.value).isprintable()
    assert unchanged(path)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    """A pipe or device is not replaced by a file; the others: tests/io/test_writing.py."""
    with pytest.raises(InputError, match=r"^.*is a folder; "):
        model_file.write(tmp_path, small())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        model_file.write(tmp_path / "pipe", small())
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace", "makedirs"])
def test_a_system_that_refuses_keeps_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Wherever it does; what is said of each reason: tests/io/test_writing.py."""

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(LolatError, match="the disk is full") as caught:
        model_file.write(path, large())
    monkeypatch.undo()
    assert caught.value.exit_code == 1
    assert unchanged(path)


def test_a_read_only_file_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o444)
    if os.access(path, os.W_OK):  # as root
        monkeypatch.setattr(os, "access", lambda *args: False)
    with pytest.raises(InputError, match="no permission"):
        model_file.write(path, large())
    assert unchanged(path)


def test_a_write_that_takes_only_a_part_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(data[:1000])))
    model_file.write(path, large(points=10))
    monkeypatch.undo()
    assert model_file.read(path) == large(points=10)


def test_ctrl_c_in_the_middle_leaves_nothing_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model_file.write(path, large())
    monkeypatch.undo()
    assert unchanged(path)


def _python(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    imports = (
        "import sys\nfrom lolat.model import file as model_file\n"
        "from tests.model_documents import large\n"
    )
    command = [sys.executable, "-c", imports + code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE)


_WRITES_FOR_EVER = (
    "documents = [large(seed=1), large(seed=2)]\n"
    "print('ready', flush=True)\n"
    "while True:\n"
    "    for document in documents:\n"
    "        model_file.write(sys.argv[1], document)\n"
    "        print('written', flush=True)\n"
)


def test_killed_at_any_instant_the_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    documents = [large(seed=1), large(seed=2)]
    model_file.write(path, documents[0])
    moments = random.Random(0)
    for _ in range(6):
        writer = _python(_WRITES_FOR_EVER, path)
        assert writer.stdout.readline() == b"ready\n"
        for _ in range(moments.randint(1, 2)):
            began = time.monotonic()
            assert writer.stdout.readline() == b"written\n"
        time.sleep(moments.uniform(0, time.monotonic() - began))  # while it writes the next one
        writer.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
        writer.wait()
        writer.stdout.close()
        assert json.loads(path.read_bytes()) in documents
    # What a kill leaves behind is never taken for a model.
    assert [name for name in os.listdir(tmp_path) if name.endswith(".json")] == ["model.json"]


_WRITES_ALL_FOR_EVER = """
from pathlib import Path
from lolat.errors import InputError
from lolat.readers.cache import Cache
from microbench.journal import Journal
from tests.synthetic import network
folder = Path(sys.argv[1])
documents = [large(2, 5, seed=1), large(3, 5, seed=2)]
graphs = [network(1), network(2)]
cache = Cache(folder / "cache")
try: journal = Journal(folder / "a.journal", {}, 0.0)
except InputError: journal = None
print("writes" if journal else "refused", flush=True)
for i in range(10**9):
    model_file.write(folder / "model.json", documents[i % 2])
    cache.put("keras:X", None, graphs[i % 2])
    if journal: journal.append({"key": str(i), "failed": "x" * i})
"""


def test_readers_beside_two_writers_see_whole_files(path: Path) -> None:
    """Of models, networks that are kept, and a journal, which only one may write."""
    documents = [large(2, 5, seed=1), large(3, 5, seed=2)]
    graphs = [network(1), network(2)]
    cache = Cache(path.parent / "cache")
    model_file.write(path, documents[0])
    cache.put("keras:X", None, graphs[0])
    writers = [_python(_WRITES_ALL_FOR_EVER, path.parent) for _ in range(2)]
    try:
        said = sorted(w.stdout.readline() for w in writers if w.stdout)
        models, kept = set(), set()
        for i in range(1000):
            models.add(documents.index(model_file.read(path)))
            if i % 10 == 0:
                found = cache.graph("keras:X")
                kept.add(graphs.index(found))
                header, records = parse((path.parent / "a.journal").read_bytes())
                assert header is not None
                assert [r["key"] for r in records] == [str(n) for n in range(len(records))]
        assert [w.poll() for w in writers] == [None, None]
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert said == [b"refused\n", b"writes\n"]
    assert (models, kept) == ({0, 1}, {0, 1})
    assert sorted(p.name for p in path.parent.glob("*.*")) == ["a.journal", path.name]


# ---- One file for a device: a section is added and the others stay, lacks are told


def test_a_layer_model_is_told_from_a_device(tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"schema": "lolat-layer-model", "version": 1}))
    for ask in (lolat.load, load_training):
        with pytest.raises(
            ModelFileError, match=r"a layer model, .*`lolat mlp predict`.*expected the"
        ):
            ask(path)
    path.write_text(json.dumps(epoch_tables.document()))
    with pytest.raises(ModelFileError, match="is a model of a device, which `lolat predict` takes"):
        read_layer_model(path)


def test_a_model_without_inference_says_what_adds_it(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    write(path, epoch_tables.document())
    model = lolat.load(path)
    for ask in (
        lambda: model.predict(synthetic.network()),
        lambda: model.predict_counts(1, 1, 1),
        lambda: model.predictor("extended"),
        lambda: model.domain,
    ):
        with pytest.raises(ModelFileError) as caught:
            ask()
        said = str(caught.value)
        assert said.startswith(
            f"{path} knows epochs of training, but no latencies of inference; add"
        )
        assert f"`lolat fit TABLE.csv --output {path}`" in said
        assert f"`lolat learn cpu --output {path}`" in said


def test_each_lack_says_the_command() -> None:
    document = {"environment": {"device": "gpu"}, "spaces": {"darts": {}}}
    said = str(lacks(document, "a b.json", OF_TRAINING))
    assert "a b.json knows networks of darts, but no training" in said
    assert "`lolat learn gpu --mode training --output 'a b.json'`" in said
    assert "`lolat training fit EPOCHS.csv --output 'a b.json'`" in said
    said = str(lacks(document, "m.json", "fbnet"))
    assert "but no networks of fbnet; add them with `lolat nas fit fbnet SAMPLES.csv" in said


def test_a_shipped_file_is_not_to_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("lolat.model.file.shipped_folder", lambda: tmp_path)
    said = str(lacks({"environment": {}}, str(tmp_path / "v100.json"), OF_TRAINING))
    assert said.endswith("--output v100.json`")


def test_sections_are_added_and_the_others_kept(tmp_path: Path) -> None:
    path = tmp_path / "desk.json"
    inference = synthetic.document()
    write(path, inference)
    added: dict[str, Any] = {"epochs": epoch_tables.section(), "spaces": {"fbnet": {"x": 1}}}
    for section, content in added.items():
        put(path, section, content)
    assert read(path) == {**inference, **added}
    put(path, "spaces", {"nasbench201": {"y": 2}})
    put(path, "spaces", {"fbnet": {"x": 3}}, inference["device"])
    found = read(path)
    assert found["spaces"] == {"fbnet": {"x": 3}, "nasbench201": {"y": 2}}
    network = synthetic.network()
    before = lolat.Model(inference).predict(network)  # numbers of what was known stay
    assert lolat.load(path).predict(network).to_dict() == before.to_dict()


def test_another_device_is_refused_and_nothing_lost(tmp_path: Path) -> None:
    path = tmp_path / "desk.json"
    write(path, synthetic.document())
    content = path.read_bytes()
    with pytest.raises(InputError, match=r"another device: a desk, 2 threads, and this is a GPU"):
        put(path, "spaces", {"fbnet": {}}, "a GPU")
    path.with_name("note.json").write_text("{}")
    with pytest.raises(ModelFileError, match="not a LoLat model"):
        put(path.with_name("note.json"), "spaces", {"fbnet": {}})
    assert path.read_bytes() == content
    assert path.with_name("note.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        ("V100", None, "V100"),
        ("V100", "v100", "V100"),
        ("V100 (from 3 networks, float32)", "V100", "V100 (from 3 networks, float32)"),
        ("unknown", "V100", "V100"),
        ("V100", "unknown", "V100"),
    ],
)
def test_what_a_device_is_called(
    own: str, given: str | None, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "gpu.json"
    put(path, "spaces", {"darts": {}}, own)
    assert put(path, "spaces", {"fbnet": {}}, given)["device"] == expected


def test_new_latencies_keep_the_other_sections(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    write(path, epoch_tables.document())
    new = synthetic.document(device="unknown (from a table)")
    found = with_sections(path, new)
    assert found == {**new, "device": "V100 (from a table)", "epochs": epoch_tables.section()}
    assert with_sections(tmp_path / "none.json", new) == new
    assert with_sections(path, synthetic.document(device="V100"))["device"] == "V100"
    with pytest.raises(InputError, match="another device: V100, and this is T4"):
        with_sections(path, synthetic.document(device="T4 (from a table)"))


@pytest.mark.parametrize("section", ["epochs", "spaces"])
def test_a_section_of_another_shape_is_refused(section: str) -> None:
    document = copy.deepcopy(synthetic.document()) | {section: 3}
    with pytest.raises(ModelFileError, match=rf"never\.json: .* at `\$\.{section}`"):
        write(Path("never.json"), document)
