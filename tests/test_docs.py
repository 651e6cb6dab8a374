"""The pages in docs/: commands are commands, tutorials run, figures are those of the results.

`python -m tests.test_docs` writes the output of the tutorials' commands anew.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import lolat as api  # noqa: E402
from benchmarks import pages, tables  # noqa: E402
from lolat.cli.main import lolat  # noqa: E402
from lolat.device.limits import VERDICTS  # noqa: E402
from lolat.report import cost_table  # noqa: E402
from tests.processes import python, script  # noqa: E402

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TUTORIALS = [DOCS / "index.md", *sorted((DOCS / "tutorial").glob("*.md"))]
OWN = [*PAGES, *(ROOT / folder / "README.md" for folder in (".", "benchmarks", "models"))]
FENCED = re.compile(r"(?:^<!-- (not run): [^>]+ -->\n)?^```([^\n]*)\n(.*?)^```$", re.M | re.S)
"""A block: whether it is marked as not run, its language and title, its lines."""


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def commands(text: str) -> Iterator[list[str]]:
    """The `lolat ...` lines of the blocks without a language, as words."""
    for _, language, block in FENCED.findall(text):
        for line in () if language else block.splitlines():
            if line.removeprefix("$ ").startswith("lolat "):
                yield shlex.split(line.removeprefix("$ "), comments=True)[1:]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """A link or an anchor that leads nowhere, a page that no menu has."""
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {p: p.read_text(encoding="utf-8") for p in tmp_path.rglob("*.html")}
    shown_as_text = [p.name for p, text in pages.items() if "```" in text]
    assert shown_as_text == []
    built = pages[tmp_path / "index.html"]
    assert not re.findall(r'(?:src|href)="https?://(?!squidfunk)[^"]*\.(?:js|css|woff2?)"', built)


OTHERS = [ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY")]
TEMPLATES = sorted((ROOT / ".github").rglob("*.*"))


@pytest.mark.parametrize("page", [*OWN, *OTHERS, *TEMPLATES], ids=named)
def test_its_links_lead_somewhere_as_plain_files(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    targets = re.findall(r"\]\((?!http)([^)#\s]+)", text) + re.findall(r'src="([^"]+)"', text)
    assert [t for t in targets if not (page.parent / t).exists()] == []
    paths = re.findall(r"`((?:benchmarks|examples|lolat|microbench|tests|models)/[\w./-]+)", text)
    paths = [p.rstrip(".") for p in paths if not p.startswith("models/local")]
    assert [p for p in paths if not (ROOT / p).exists()] == []


def find(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that the first words name, and the words that are left for it."""
    command: click.Command = lolat
    context = click.Context(lolat, info_name="lolat")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        assert inner is not None, words
        command, words = inner, words[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    return command, context, words


@pytest.mark.parametrize("page", OWN, ids=named)
def test_its_commands_are_commands(page: Path) -> None:
    """Every option is there, is not an old name, and takes the value shown."""
    for words in commands(page.read_text(encoding="utf-8")):
        if "|" in words or "..." in words or any(w.startswith("[") for w in words):
            continue  # a pattern, not a line to type
        command, context, rest = find(words)
        context.resilient_parsing = False
        values, _, order = command.make_parser(context).parse_args(list(rest))
        assert not any(getattr(p, "hidden", False) for p in order), words
        for parameter in {p for p in order if isinstance(p, click.Option)}:
            if isinstance(parameter.type, click.Choice | click.types.IntParamType):
                parameter.type_cast_value(context, values[parameter.name])


def test_every_command_is_shown() -> None:
    every_line = (words for page in OWN for words in commands(page.read_text("utf-8")))
    shown = {" ".join(w[: 1 + (w[0] in GROUPS)]) for w in every_line if w}
    context = click.Context(lolat)
    every = {n for n in lolat.list_commands(context) if n not in GROUPS}
    every |= {
        f"{g} {n}"
        for g in GROUPS
        for n in (lolat.get_command(context, g) or lolat).list_commands(context)  # type: ignore[attr-defined]
    }
    assert every <= shown


GROUPS = {
    n for n in lolat.list_commands(click.Context(lolat))
    if isinstance(lolat.get_command(click.Context(lolat), n), click.Group)
}  # fmt: skip
"""Commands that have commands."""


def test_the_reference_says_which_options_a_command_requires() -> None:
    """At the command, or for all commands above; click knows which."""
    page = (DOCS / "reference/command-line.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    marks = r"`(--[\w-]+)[^`]*`(?: \((required)\))?"
    said = {title: {(o, bool(m)) for o, m in re.findall(marks, text)} for title, text in sections}
    checked = 0
    for title in (t for t in said if t.startswith("lolat ")):
        command, _, _ = find(title.split()[1:])
        for option in (p for p in command.params if isinstance(p, click.Option) and not p.hidden):
            at_all = {(n, True) for n in option.opts} & said["Options of several commands"]
            told = {(n, True) for n in option.opts} & said[title] or at_all
            assert bool(told) == option.required, (title, option.name)
            checked += option.required
    assert checked > 5


# ---- tutorials


def files(text: str) -> dict[str, str]:
    """The files that a tutorial has its reader save."""
    return {
        title[1]: block
        for _, info, block in FENCED.findall(text)
        if (title := re.fullmatch(r'python title="([\w.]+)"', info))
    }


def samples(text: str) -> list[tuple[str, list[str]]]:
    """The commands with `$ ` that are run, and the lines that stand below each."""
    found = FENCED.findall(text)
    run = [block.splitlines() for skipped, language, block in found if not (skipped or language)]
    run = [lines for lines in run if lines[0].startswith("$ lolat")]
    return [(lines[0].removeprefix("$ "), lines[1:]) for lines in run]


PLAYER = """
import json, sys
from lolat.cli.main import lolat, run

commands, snippets = json.loads(sys.argv[1])
for words in commands:
    if "keras" in sys.modules:
        sys.modules["keras"].backend.clear_session()  # which counts the names that it gives to layers
    if code := run(lolat, words, "lolat"):
        sys.exit(f"lolat {' '.join(words)}: exit code {code}")
    print("\\x1e")
for snippet in snippets:
    exec(snippet, {})
"""


def answers(text: str, folder: Path) -> list[list[str]]:
    """Run the samples' commands in a folder with the page's files, then its Python; return the output.

    All in one process, which imports its framework once.
    """
    for name, content in files(text).items():
        (folder / name).write_text(content, encoding="utf-8")
    words = [shlex.split(command)[1:] for command, _ in samples(text)]
    snippets = [block for _, info, block in FENCED.findall(text) if info == "python"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "COLUMNS": "110"}
    done = python(PLAYER, json.dumps([words, snippets]), cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.replace(f"{ROOT}/", "").split("\x1e\n")[:-1]
    return [[line.rstrip() for line in out.strip("\n").splitlines()] for out in printed]


def timeless(lines: list[str]) -> list[str]:
    """The lines, the same however long ago something was."""
    return [re.sub(r"\b\d+ (minute|hour|day)s? ago", "... ago", line.rstrip()) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=named)
def test_a_tutorial_is_played(page: Path, tmp_path: Path) -> None:
    """Its commands print what the page shows; its Python runs beside its files."""
    pytest.importorskip("keras")
    pytest.importorskip("torch")
    text = page.read_text(encoding="utf-8")
    for (command, shown), printed in zip(samples(text), answers(text, tmp_path), strict=True):
        assert timeless(printed) == timeless(shown), command
    marked = [block for mark, _, block in FENCED.findall(text) if mark]
    skipped = sum(len(re.findall("^lolat ", block, re.M)) for block in marked)
    assert len(list(commands(text))) == len(samples(text)) + skipped


# ---- the README: what it tells people to type works as it stands

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_one_page_with_its_questions() -> None:
    assert len(README.splitlines()) <= 100
    questions = {"predict", "report", "cost", "llm", "learn"}
    assert questions <= {w[0] for w in commands(README)}


def cut(shown: list[str], printed: list[str]) -> list[str]:
    """The lines of `printed` that begin like those shown; one that ends in ... after as many commas.

    A line begins with two words, or with the option behind "with". A line of three dots stands for others;
    without it the next line is that which is printed next.
    """
    found: list[str] = []
    at = -1
    for line in shown:
        if line == "...":
            found.append(line)
            continue
        first = line.split()[: 3 if " with --" in line else 2]
        is_next = found and found[-1] != "..."
        begins = (p.split()[: len(first)] == first or is_next for p in printed[at + 1 :])
        at += 1 + next(n for n, begin in enumerate(begins) if begin)
        whole = printed[at].rstrip()
        parts = whole.split(", ")[: line.count(", ")]
        found.append(f"{', '.join(parts)}, ..." if line.endswith(", ...") else whole)
    return found


def test_the_commands_and_snippets_of_the_readme_run(tmp_path: Path) -> None:
    """They run unchanged; one process imports its framework once."""
    pytest.importorskip("keras")
    pytest.importorskip("torch")
    told = [words for words in commands(README) if words[0] != "learn"]  # which measures
    assert len(told) >= 4
    snippets = [block for _, language, block in FENCED.findall(README) if language == "python"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = python(PLAYER, json.dumps([told, snippets]), cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert all(shown == cut(shown, printed) for _, shown in samples(README)), (
        "python -m tests.test_docs"
    )
    assert done.stdout.rpartition("\x1e\n")[2].count("slowest:") == len(snippets) > 0
    assert (tmp_path / "report.html").exists()


def test_the_times_that_no_fit_used_are_the_published_ones() -> None:
    """benchmarks/published_figures.csv has them; the prediction is the present one."""
    times = r"measured.* H100 .*: (\d+) and (\d+) ms\. .*LoLat predicts (\d+) ms,"
    said = re.search(rf"{times} with a 90 % interval of ([\d,]+) to ([\d,]+) ms", README)
    assert said
    lines = (ROOT / "benchmarks/published_figures.csv").read_text(encoding="utf-8").splitlines()
    rows = [one.split(",") for one in lines if "H100 80GB SXM,amp,training,first,1280" in one]
    assert sorted(round(float(row[7])) for row in rows) == [int(said[1]), int(said[2])]
    (run,) = api.load("h100-fp16").cost("timm:resnet50", 1280, precision="amp").options
    assert round(run.iteration_ms) == int(said[3])
    assert [f"{end:,.0f}" for end in run.interval_ms] == [said[4], said[5]]


def python_blocks(page: str) -> list[str]:
    """The blocks of Python of a page that stand for themselves: they begin with an import."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = [block for _, language, block in FENCED.findall(text) if language == "python"]
    return [block for block in blocks if block.startswith(("import ", "from "))]


def test_the_calls_of_the_page_of_networks_have_their_parameters() -> None:
    """Every keyword in its Python is one of the call that it stands in."""
    text = (DOCS / "how-to/networks.md").read_text(encoding="utf-8")
    owners = {"lolat": api, "model": api.Model}
    checked = 0
    for _, language, block in FENCED.findall(text):
        for node in ast.walk(ast.parse(block)) if language == "python" else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = owners.get(getattr(node.func.value, "id", ""))
                if owner is not None:
                    parameters = inspect.signature(getattr(owner, node.func.attr)).parameters
                    assert {k.arg for k in node.keywords} <= parameters.keys(), node.func.attr
                    checked += 1
    assert checked > 5


def test_the_snippet_that_times_as_lolat_does_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (code,) = python_blocks("how-to/measure.md")
    script(code, tmp_path, monkeypatch)
    assert re.fullmatch(r"\d+\.\d\d ms\n", capsys.readouterr().out)


def test_the_hosts_of_the_page_are_those_of_the_profiles() -> None:
    told = re.findall(r"`([\w-]+-amp)` (\d+)", (DOCS / "explanation/formula.md").read_text("utf-8"))
    kept = {name: api.load(name).file.document["predictors"]["kernels"]["host"] for name, _ in told}
    assert len(told) == 2
    assert all(round(1e3 * kept[name]["start_ms"]) == int(us) for name, us in told)


def test_shipped_models_load_and_are_listed() -> None:
    text = (ROOT / "models" / "README.md").read_text(encoding="utf-8")
    shipped = sorted((ROOT / "models").glob("*.json"))
    assert shipped
    for path in shipped:
        model = api.load(path)
        assert f"`{path.stem}`" in text
        told = [*model.file.warnings, *(model.file.training or {}).get("warnings", ())]
        assert not re.search(r"[:;] (run|learn|measure)\b|close other", " ".join(told)), path.stem
        if model.predictors == {}:
            assert model.llm("llama-3.1-8b", dtype="bfloat16").chosen.fits
            continue
        # Those that others measured keep the formulas, not the times; a data sheet has none.
        of_tables = (
            "mode" in model.file.document["environment"]
            or "data sheet" in model.file.document["device"]
        )
        assert of_tables or len(model.file.document["points"]) >= 90
        assert model.predict_counts(1e6, 1e6, 1e8, 1e6, 1e5, 20) > 0


# ---- figures


FIGURE = re.compile(r"([+-]?\d[\d.,]*)( %| ms| µs| s)?<!-- ([\w-]+)#([\w-]+): (.+?): (.+?) -->")


@pytest.mark.parametrize("page", [p for p in OWN if "#" in p.read_text("utf-8")], ids=named)
def test_its_figures_are_those_of_the_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(FIGURE.findall(text)) == len(re.findall(r"<!-- [\w-]+#", text))
    for shown, unit, topic, table, row, column in FIGURE.findall(text):
        rows = tables.cells(topic, table)
        assert row in rows, f"{topic}#{table}: {row}"
        cell = rows[row][column]
        assert cell in {f"{shown}{unit}", shown}, f"{row}: {column}"


CLAIM = re.compile(
    r"(?<!within )\b\d[\d.,]* %(?!<!--)(?= (?:off|too (?:fast|slow)|at the median|of (?:the )?networks))"
)
"""A figure of how far off an answer is, without the cell that it is from."""


@pytest.mark.parametrize("page", [p for p in OWN if p.parent.name != "results"], ids=named)
def test_no_error_stands_without_its_cell(page: Path) -> None:
    text = re.sub(
        r"^```.*?^```|^<!-- (made|table) .*?^<!-- end",
        "",
        page.read_text("utf-8"),
        flags=re.M | re.S,
    )
    assert CLAIM.findall(text) == []


def test_the_figures_of_the_readme_are_marked() -> None:
    """No error without the cell that it is from."""
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## How accurate")[2]
    assert len(FIGURE.findall(table)) >= 12


@pytest.mark.parametrize("page", list(tables.pages()), ids=named)
def test_tables_of_a_page_are_those_of_the_results_and_of_the_code(page: Path) -> None:
    """Else: python -m benchmarks.pages"""
    text = page.read_text(encoding="utf-8")
    assert pages.rendered(text) == text
    assert text.count("<!-- table ") + text.count("<!-- made ") == text.count("<!-- end of ") + (
        text.count("<!-- made by")
    )


def unsaid(topic: str) -> list[str]:
    """The tables of a formula's earlier version, each with its page, that do not name both versions."""
    made = tables.read(topic)
    present = tables.versions()[made["formula"]]
    found = []
    for name, table in made["tables"].items():
        words = f"formula `{made['formula']}` {table['version']}; the present one is {present}"
        for page in tables.pages() if table["version"] < present else ():
            parts = page.read_text("utf-8").split(f"<!-- table {topic}#{name} ")[1:]
            ends = [part.partition(f"<!-- end of {topic}#{name} ")[0] for part in parts]
            found += [f"{named(page)}: {name}" for end in ends if words not in end]
    return found


@pytest.mark.parametrize("topic", tables.topics())
def test_results_of_an_earlier_formula_say_so(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the version of a formula rises, a page that shows its former results has to say so."""
    made = tables.read(topic)
    newest = max(table["version"] for table in made["tables"].values())
    assert newest <= tables.versions()[made["formula"]]
    assert unsaid(topic) == []
    risen = {name: version + 1 for name, version in tables.versions().items()}
    monkeypatch.setattr(tables, "versions", lambda: risen)
    assert unsaid(topic) or not any(f"<!-- table {topic}#" in p.read_text() for p in tables.pages())


@pytest.mark.slow
def test_the_accuracy_of_a_device_is_still_what_the_page_says() -> None:
    """One device of the zoo, learned anew: a changed formula makes the page old. Raise its version then."""
    from benchmarks.zoo import judge

    device = judge.learn(ROOT / "benchmarks/zoo/results/epyc-26-2/ort-1t.json.xz")
    cells, _ = judge.row(device, judge.REPORTED)
    assert list(tables.cells("accuracy", "epyc-26-2-reported")["ort-1t"].values()) == cells


@pytest.mark.parametrize("name", sorted(pages.WHOLE))
def test_pages_made_from_the_code_are_up_to_date(name: str) -> None:
    """Else: python -m benchmarks.pages"""
    made = pages.WHOLE[name]()
    assert (pages.REFERENCE / name).read_text(encoding="utf-8") == made


def test_the_page_of_result_tables_has_every_mark() -> None:
    """A row of it for each mark of `lolat cost`, and a word for each verdict on a limit."""
    page = (DOCS / "reference/tables.md").read_text(encoding="utf-8")
    assert {*re.findall(r"^\| `(.)` \| ", page, re.M)} == {*cost_table.MARKS, cost_table.NO_ROOM}
    assert {*VERDICTS} <= {*re.findall(r"^\| ([\w ]+) \|", page, re.M)}


# ---- English


INTERNAL = re.compile(
    r"\b(receipts?|companion|the house|trainings|a training(?=[.,;]| of| on| that)|goals?)\b",
    re.I,
)
BRITISH = re.compile(
    r"\b\w*(optimis|normalis|standardis|synchronis|initialis|recognis|colour|neighbour|behaviour|favour|licence|catalogue)\w*\b"
)


@pytest.mark.parametrize("page", OWN, ids=named)
def test_its_words_are_the_fields(page: Path) -> None:
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", page.read_text(encoding="utf-8"))
    assert INTERNAL.findall(text) == []
    assert BRITISH.findall(text) == []


def main() -> None:
    """Write what the tutorials' commands print into the tutorials."""
    import tempfile

    for page in [*TUTORIALS, ROOT / "README.md"]:
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            for (command, shown), printed in zip(
                samples(text), answers(text, Path(folder)), strict=True
            ):
                old = "".join(f"{line}\n" for line in (f"$ {command}", *shown))
                of_page = cut(shown, printed) if page.name == "README.md" else printed
                new = "".join(f"{line}\n" for line in (f"$ {command}", *of_page))
                text = text.replace(f"```\n{old}```", f"```\n{new}```")
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
