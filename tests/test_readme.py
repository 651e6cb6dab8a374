"""The README's commands and snippets run: what it tells people to type works as it stands."""

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lolat.cli.main import COMMANDS, lolat
from lolat.errors import NetworkError
from tests.mlp import tables

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """Every `lolat ...` line of the README's unmarked blocks, comments left out, as words."""
    lines = [line for block in blocks("") for line in block.splitlines()]
    found = [shlex.split(line, comments=True) for line in lines if line.startswith("lolat ")]
    return [words[1:] for words in found]


def test_the_readme_shows_every_command() -> None:
    assert {words[0] for words in commands()} == set(COMMANDS)


MEASURING = {"evaluate", "doctor", "learn", "training link", "serve"}
"""What measures, or does not end by itself."""

STOPPED = [
    ("lolat.model", "load"),
    ("microbench.exchange", "measure_link"),
    ("lolat.web.app", "serve"),
]
"""What each of them calls first."""

QUICKLY = ["--recipe", "paper", "--epochs", "1"]
"""What does not train to the end."""
CELLS = ("skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")

DRIVER = """
import json, sys
from lolat.cli.common import run
from lolat.cli.main import lolat

codes = [run(lolat, words, "lolat") for words in json.loads(sys.argv[1])]
print("codes", codes)
"""

NETWORK = """
import keras


def make_net():
    x = inputs = keras.Input((None, None, 3))
    x = keras.layers.Conv2D(8, 3, strides=2, activation="relu")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))
"""


def measures(words: list[str]) -> bool:
    """Whether a command is one of MEASURING, or asks for this machine's state."""
    asks = words[-2:] == ["--state", "now"]
    return asks or words[0] in MEASURING or " ".join(words[:2]) in MEASURING


def test_the_commands_run(tmp_path: Path) -> None:
    """All that do not measure, as they stand; `local` is the shipped model."""
    pytest.importorskip("keras")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "points.csv").write_text(
        "acts,inp,flops,latency_ms\n"
        + "".join(f"{i * i}000,{9 - i}0000,{i}00000,{1 + i / 3}\n" for i in range(1, 9))
    )
    save = f"{NETWORK}\nmake_net().save('mynet.keras')"
    subprocess.run([sys.executable, "-c", save], cwd=tmp_path, check=True, capture_output=True)
    told = [["epyc-2t" if w == "local" else w for w in words] for words in commands()]
    told = [words for words in told if not measures(words)]
    assert len(told) >= 10
    told = [[*words, *QUICKLY] if words[:2] == ["mlp", "fit"] else words for words in told]
    for layer in ("convolution", "dense"):
        tables.write(tmp_path / f"{layer}.csv", tables.random_rows(layer, 40))
    cells = [f"|{a}~0|+|{b}~0|none~1|+|none~0|{a}~1|{b}~2|" for a in CELLS for b in CELLS]
    (tmp_path / "archs.csv").write_text("\n".join(["arch", *cells]))
    epochs = [
        f"generate:fc?hidden={n},{batch},4096,sgd,{4096 / batch * (0.4 + n * (batch / 10 + 1) / 1e3)}"
        for n in (100, 400, 1600) for batch in (16, 64, 256)
    ]  # fmt: skip
    header = "network,batch_size,samples,optimizer,epoch_s"
    (tmp_path / "epochs.csv").write_text("\n".join([header, *epochs]))
    scores = [f"{cell},{i % 7}" for i, cell in enumerate(cells)]
    (tmp_path / "scores.csv").write_text("\n".join(["arch,score", *scores]))
    samples = [f"{cell},{3 + 0.1 * i}" for i, cell in enumerate(cells[:12])]
    (tmp_path / "samples.csv").write_text("\n".join(["arch,latency_ms", *samples]))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(told)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert f"codes {[0] * len(told)}" in done.stdout, done.stdout + done.stderr
    made = {"blocks.csv", "fit.svg", "model.json", "compare.html", "space.json", "latencies.csv"}
    assert made <= {p.name for p in tmp_path.iterdir()}


def test_what_measures_takes_the_options_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is parsed in full and gets as far as its model."""

    def stop(*args: object, **kwargs: object) -> None:
        raise NetworkError("stopped by the test")

    for (
        module,
        name,
    ) in STOPPED:  # modules as an import finds them, whatever other tests imported anew
        monkeypatch.setattr(importlib.import_module(module), name, stop)
    shown = [words for words in commands() if measures(words)]
    assert len(shown) >= len(MEASURING)
    for words in shown:
        result = CliRunner().invoke(lolat, words)
        assert isinstance(result.exception, NetworkError), result.output


def test_the_report_shown_is_the_report_printed() -> None:
    """The sample in the README is what the shipped model answers, but for the day it was learned."""
    pytest.importorskip("keras")
    sample = next(b for b in blocks("") if b.startswith("$ lolat report"))
    words = shlex.split(sample.splitlines()[0])[2:]
    done = subprocess.run(
        [sys.executable, "-m", "lolat.cli.main", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    shown = sample.splitlines()[1:]
    assert [x for x in printed if "learned" not in x] == [x for x in shown if "learned" not in x]


def test_the_snippet_that_times_as_lolat_does_runs() -> None:
    pytest.importorskip("keras")
    text = (ROOT / "docs/explanation/stopwatch.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", snippet], capture_output=True, text=True, timeout=300
    )
    assert re.fullmatch(r"\d+\.\d\d ms\n", done.stdout), done.stderr


def test_make_targets_exist() -> None:
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"learn", "test"} <= set(targets)
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_python_snippets_run() -> None:
    snippets = blocks("python")
    assert snippets
    for snippet in snippets:
        done = subprocess.run(
            [sys.executable, "-c", snippet], cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert "slowest:" in done.stdout


def test_local_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", README) + re.findall(r'src="([^"]+)"', README)
    assert targets
    missing = [t for t in targets if not (ROOT / t).exists()]
    assert not missing


def test_shipped_models_load_and_are_listed() -> None:
    from lolat.model import load

    text = (ROOT / "models" / "README.md").read_text(encoding="utf-8")
    shipped = sorted((ROOT / "models").glob("*.json"))
    assert shipped
    for path in shipped:
        model = load(path)
        assert f"`{path.stem}`" in text
        # Those that others measured keep the formulas, not the times.
        of_tables = "kernels" in model.predictors
        assert of_tables or len(model.document["points"]) >= 90
        assert model.predict_counts(1e6, 1e6, 1e8, 1e6, 1e5, 20) > 0
