"""Mutation testing: which small faults in counts, fitting, intervals, tables and documents no test sees.

    pip install mutmut coverage
    python benchmarks/mutants.py counts --sample 300 --output counts.jsonl
    python benchmarks/mutants.py counts --again counts.jsonl --output counts.jsonl    # what survived

The operators are mutmut's, but for those that change text (wording is not tested on purpose). Its runner leaves
out properties, decorated functions and tables of formulas, so here all tests are collected once, the lines
that each runs are recorded, and each mutant is put into a forked child, which runs the tests that reach its
line, quickest first, until one fails. Hypothesis draws the same few examples each time.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import gc
import itertools
import json
import os
import random
import re
import resource
import signal
import sys
import time
import types
from collections import Counter
from pathlib import Path
from typing import Any

import coverage
import libcst as cst
import pytest
from hypothesis import HealthCheck, Phase, settings
from libcst.metadata import MetadataWrapper, WhitespaceInclusivePositionProvider
from mutmut.mutation.mutators import mutation_operators

GROUPS = {
    "counts": ("graph/counts.py graph/work.py", "graph/test_counts.py graph/test_work.py devices"),
    "fitting": (
        "fitting/least_squares.py fitting/points.py fitting/domain.py fitting/predictors",
        "fitting devices",
    ),
    "intervals": ("fitting/intervals.py", "fitting/test_intervals.py"),
    "tables": ("io/tables.py", "io/test_reading_tables.py fitting/test_points.py"),
    "documents": (
        "io/documents.py io/writing.py",
        "model/test_model_file.py model/test_model_file_writing.py",
    ),
}
"""Modules of lolat/, and the quick tests of them."""
EXAMPLES, SLOWEST_S, MOST_S, CPU_S, WALL_S = 15, 2.0, 3.0, 30, 900
STRICT = re.compile(r",?\s*strict=\w+")  # of a zip: an assertion
SHAPE = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom)


class Finder(cst.CSTVisitor):
    """All mutants of a module: (start, end, what stands between them instead)."""

    METADATA_DEPENDENCIES = (WhitespaceInclusivePositionProvider,)

    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self.module, self.found = module, []

    def on_visit(self, node: cst.CSTNode) -> bool:
        text = isinstance(node, cst.BaseString) and not isinstance(node, cst.FormattedString)
        strict = isinstance(node, cst.Arg) and node.keyword and node.keyword.value == "strict"
        if isinstance(node, SHAPE) or text or strict:
            return False
        was = self.module.code_for_node(node) if isinstance(node, cst.Call) else ""
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                at = self.get_metadata(WhitespaceInclusivePositionProvider, node)
                codes = [self.module.code_for_node(other) for other in operator(node)]
                self.found += [
                    (at.start, at.end, code)
                    for code in codes
                    if STRICT.sub("", code) != STRICT.sub("", was)
                ]
        return True


def inner(code: types.CodeType) -> list[types.CodeType]:
    """The functions and classes that are made in a code object."""
    return [c for c in code.co_consts if isinstance(c, types.CodeType)]


def last_line(code: types.CodeType) -> int:
    """Of a code object and what is made in it."""
    return max([*(n or 0 for *_, n in code.co_lines()), *map(last_line, inner(code))])


def code_pairs(old: types.CodeType, new: types.CodeType, line: int) -> Any:
    """Code objects that differ and hold a line, outermost first, with those of the mutant."""
    if old != new and old.co_firstlineno <= line <= last_line(old):
        yield old, new
        for one, other in zip(inner(old), inner(new), strict=False):
            yield from code_pairs(one, other, line)


def put_in(alive: dict[str, list[Any]], path: str, source: str, line: int) -> None:
    """Functions that are there get the mutant's code; of what runs at import, the names bound from there on."""
    name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    module = sys.modules[name]
    file = str(module.__file__)
    old = compile(Path(path).read_text(), file, "exec", dont_inherit=True)
    new = compile(source, file, "exec", dont_inherit=True)
    pairs = list(code_pairs(old, new, line))
    reached = [(f, to) for f in alive.get(file, ()) for was, to in pairs if f.__code__ == was]
    with contextlib.suppress(ValueError):  # a closure that takes other variables: made anew below
        for function, to in reached:
            function.__code__ = to
        if reached:
            return
    fresh = types.ModuleType(name)
    fresh.__dict__.update(__file__=file, __package__=module.__package__)
    sys.modules[name] = fresh  # where dataclasses look names up
    exec(new, fresh.__dict__)
    sys.modules[name] = module
    made = [o for o in gc.get_objects() if isinstance(o, types.FunctionType)]
    defaults = {f.__qualname__: f for f in made if f.__globals__ is fresh.__dict__}
    for function in alive.get(file, ()):
        if other := defaults.get(function.__qualname__):
            function.__defaults__, function.__kwdefaults__ = (
                other.__defaults__,
                other.__kwdefaults__,
            )
    bound = set()
    for statement in ast.parse(source).body:
        assigns = isinstance(statement, ast.Assign | ast.AnnAssign)
        if statement.lineno <= line <= (statement.end_lineno or 0) or (
            statement.lineno > line and assigns
        ):
            names = (n for n in ast.walk(statement) if assigns and isinstance(n, ast.Name))
            bound |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
            bound |= {getattr(statement, "name", "")}
    was = {n: module.__dict__[n] for n in bound if n in module.__dict__}
    for space in [vars(m) for m in [*sys.modules.values()] if isinstance(m, types.ModuleType)]:
        for key, value in was.items():
            if space.get(key) is value:
                space[key] = fresh.__dict__[key]


def python_files(path: str) -> list[str]:
    """Of a module or a folder of lolat/."""
    whole = Path("lolat", path)
    return sorted(map(str, whole.rglob("*.py"))) if whole.is_dir() else [str(whole)]


class Mutants:
    """The pytest plugin: one run that records, then a child for each mutant."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.results: list[dict[str, Any]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        files = {
            g: [f for p in GROUPS[g][0].split() for f in python_files(p)]
            for g in self.options.groups
        }
        self.caches = [o for o in gc.get_objects() if isinstance(o, functools._lru_cache_wrapper)]
        reach, seconds = self.record(session, sum(files.values(), []))
        mutants = [m for own in files.values() for m in self.chosen(own)]
        self.alive: dict[str, list[Any]] = {}
        for function in [o for o in gc.get_objects() if isinstance(o, types.FunctionType)]:
            self.alive.setdefault(function.__code__.co_filename, []).append(function)
        gc.freeze()
        running: dict[int, Any] = {}
        for mutant in [*mutants, *[None] * self.options.jobs]:
            if mutant is not None:
                path, line, text, source = mutant
                items = [i for i in session.items if line in reach[path].get(i.nodeid, ())]
                items = items or [*session.items]  # of what runs at import any may tell
                items.sort(key=lambda i: seconds[i.nodeid])
                sums = itertools.accumulate(seconds[i.nodeid] for i in items)
                items = [i for i, spent in zip(items, sums, strict=True) if spent < MOST_S]
                if child := os.fork():
                    running[child] = (path, line, text)
                else:
                    self.child(session, items, path, source, line)
            while running and (len(running) >= self.options.jobs or mutant is None):
                child, status = os.wait()
                code = os.waitstatus_to_exitcode(status)
                said = {0: "survived", 1: "killed", 3: "no mutant"}.get(code, "timeout")
                path, line, text = running.pop(child)
                self.results.append({"path": path, "line": line, "text": text, "status": said})
                with open(self.options.output, "a") as file:
                    file.write(json.dumps(self.results[-1]) + "\n")
        return True

    def record(self, session: pytest.Session, sources: list[str]) -> tuple[Any, dict[str, float]]:
        """Source -> test -> its lines; seconds of each test. Slow tests and those that fail are left out."""
        cover = coverage.Coverage(
            include=[f"*/{s}" for s in sources], data_file=None, config_file=False
        )
        seconds, failed = {}, set()
        cover.start()
        for item, after in zip(session.items, [*session.items[1:], None], strict=True):
            own = getattr(getattr(item, "obj", None), "_hypothesis_internal_use_settings", None)
            if own is not None:
                getattr(item.obj, "__func__", item.obj)._hypothesis_internal_use_settings = settings(
                    own, max_examples=min(own.max_examples, EXAMPLES), deadline=None, derandomize=True,
                    database=None, phases=(Phase.explicit, Phase.generate),
                    suppress_health_check=list(HealthCheck),
                )  # fmt: skip
            self.forget()
            cover.switch_context(item.nodeid)
            started, before = time.process_time(), session.testsfailed
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            seconds[item.nodeid] = time.process_time() - started
            if session.testsfailed > before or seconds[item.nodeid] > SLOWEST_S:
                failed.add(item.nodeid)
                print(f"left out: {item.nodeid} ({seconds[item.nodeid]:.1f} s)")
        cover.stop()
        session.items = [i for i in session.items if i.nodeid not in failed]
        reach: dict[str, dict[str, set[int]]] = {s: {} for s in sources}
        data = cover.get_data()
        for source in sources:
            for line, tests in data.contexts_by_lineno(str(Path(source).resolve())).items():
                for test in tests:
                    reach[source].setdefault(test, set()).add(line)
        return reach, seconds

    def forget(self) -> None:
        """Empty the caches of ours, which would hide what a mutant changes."""
        for cache in self.caches:
            if str(getattr(cache, "__module__", "")).startswith(("lolat", "tests")):
                cache.cache_clear()

    def chosen(self, sources: list[str]) -> Any:
        """(path, line, what changes, the mutant's source) of those asked for, in a seeded order."""
        again = self.options.again and [
            json.loads(x) for x in Path(self.options.again).read_text().splitlines()
        ]
        wanted = {(r["path"], r["text"]) for r in again or () if r["status"] == "survived"}
        found = []
        for path in sources:
            wrapper = MetadataWrapper(cst.parse_module(Path(path).read_text()))
            finder = Finder(wrapper.module)
            wrapper.visit(finder)
            found += [(path, *mutant) for mutant in finder.found]
        print(f"{len(found)} mutants: {dict(Counter(f[0] for f in found))}")
        if not again:
            found = random.Random(1).sample(found, min(self.options.sample, len(found)))
        for path, start, end, instead in found:
            lines = Path(path).read_text().splitlines(keepends=True)
            before, after = lines[start.line - 1][: start.column], lines[end.line - 1][end.column :]
            other = f"{before}{instead}{after}"
            was = "".join(lines[start.line - 1 : end.line])
            text = "\n".join(s + " ".join(t.split()) for s, t in (("- ", was), ("+ ", other)))
            if was != other and (not again or (path, text) in wanted):
                source = "".join([*lines[: start.line - 1], other, *lines[end.line :]])
                yield path, start.line, text, source

    def child(
        self, session: pytest.Session, items: list[Any], path: str, source: str, line: int
    ) -> None:
        """Run tests until one fails; exit code 0: the mutant survived, 1: killed, 3: it is not Python."""
        session.config.pluginmanager.unregister(name="terminalreporter")
        null = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(null, handle)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        signal.alarm(WALL_S)
        try:
            self.forget()
            put_in(self.alive, path, source, line)
        except SyntaxError:
            os._exit(3)
        except BaseException:  # it cannot be imported
            os._exit(1)
        before = session.testsfailed
        try:
            for item, after in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                if session.testsfailed > before:
                    break
        except BaseException:
            os._exit(1)
        os._exit(int(session.testsfailed > before))


def main() -> None:
    """Print a line for each module, and what survived."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("groups", choices=GROUPS, nargs="+")
    parser.add_argument("--sample", type=int, default=300, help="mutants, drawn with a seed")
    parser.add_argument("--again", help="the results of a run: what survived there, once more")
    parser.add_argument(
        "--output", required=True, help="file of the results, one JSON object a line"
    )
    parser.add_argument("--tests", nargs="*", help="others than the usual ones")
    parser.add_argument("--jobs", type=int, default=2)
    plugin = Mutants(parser.parse_args())
    tests = plugin.options.tests or [
        f"tests/{t}" for g in plugin.options.groups for t in GROUPS[g][1].split()
    ]
    options = "-q -p no:cacheprovider -p no:randomly -o timeout=0 -m"
    pytest.main([*options.split(), "not slow", *dict.fromkeys(tests)], plugins=[plugin])
    table = Counter((r["path"], r["status"]) for r in plugin.results)
    for path, status in sorted(table):
        print(path, status, table[path, status])


if __name__ == "__main__":
    main()
