"""Mutation testing of counts, fitting, intervals, tables and documents: which small faults no test sees.

    pip install mutmut coverage
    python -m benchmarks.mutants tables --sample 300 --output tables.jsonl
    python -m benchmarks.mutants tables --again tables.jsonl --output again.jsonl    # what survived

The operators are mutmut's, but for those of text: wording is not tested on purpose. Its runner leaves out
properties, decorated functions and tables of formulas. So each mutant is put into a forked child of a
process that has imported everything; the child runs the tests that reach the mutant's line, quickest first.
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
import sys
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import coverage
import libcst as cst
import pytest
from hypothesis import HealthCheck, Phase, settings
from libcst.metadata import MetadataWrapper, WhitespaceInclusivePositionProvider
from mutmut.mutation.mutators import mutation_operators

GROUPS = {
    "counts": ("graph/counts.py graph/work.py", "graph/test_counts.py graph/test_work.py devices"),
    "fitting": ("fitting/[!i_]*.py fitting/predictors/*.py", "fitting devices"),
    "intervals": ("fitting/intervals.py", "fitting/test_intervals.py"),
    "tables": ("io/tables.py", "io/test_reading_tables.py fitting/test_points.py"),
    "documents": ("io/documents.py io/writing.py", "io/test_documents.py io/test_writing.py"),
}
"""Modules of lolat/, and the tests of them that are quick."""
SLOWEST_S, MOST_S, CPU_S = 2.0, 3.0, 30  # of a test; of the tests, of all that are run for a mutant
FEW = {
    "deadline": None, "derandomize": True, "database": None, "suppress_health_check": [*HealthCheck],
}  # fmt: skip
STRICT = re.compile(r",?\s*strict=\w+|,\s*(?=\))")  # of a zip: an assertion
LEFT = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom, cst.SimpleString)


class Finder(cst.CSTVisitor):
    """All mutants of a module: (start, end, what stands between them instead)."""

    METADATA_DEPENDENCIES = (WhitespaceInclusivePositionProvider,)

    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self.code, self.found = module.code_for_node, []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, LEFT) or (isinstance(node, cst.Arg) and STRICT.match(self.code(node))):
            return False
        at, was = (
            self.get_metadata(WhitespaceInclusivePositionProvider, node, None),
            self.code(node),
        )
        others = [
            m for kind, make in mutation_operators if isinstance(node, kind) for m in make(node)
        ]
        codes = [self.code(n) for n in others]
        kept = [n for n in codes if STRICT.sub("", n) != STRICT.sub("", was)]
        self.found += [(at.start, at.end, n) for n in kept]
        return True


def inner(code: CodeType) -> list[CodeType]:
    return [c for c in code.co_consts if isinstance(c, CodeType)]


def last_line(code: CodeType) -> int:
    return max([*(n or 0 for *_, n in code.co_lines()), *map(last_line, inner(code))])


def code_pairs(old: CodeType, new: CodeType, line: int) -> Any:
    """Code objects that differ and hold a line, outermost first, with those of the mutant."""
    if old != new and old.co_firstlineno <= line <= last_line(old):
        yield old, new
        for one, other in zip(inner(old), inner(new), strict=False):
            yield from code_pairs(one, other, line)


def put_in(path: str, source: str, line: int, at_import: bool, functions: list[Any]) -> None:
    """Functions that are there get the mutant's code. For what runs at import the module is made once more;
    defaults and the names bound from that line on are taken from it, wherever they were imported to."""
    module = sys.modules[path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")]
    old, new = (compile(s, str(module.__file__), "exec") for s in (Path(path).read_text(), source))
    own = [f for f in functions if f.__code__.co_filename == module.__file__]
    reached = [(f, to) for was, to in code_pairs(old, new, line) for f in own if f.__code__ == was]
    with contextlib.suppress(ValueError):  # a closure that takes other variables: made anew
        for function, to in reached:
            function.__code__ = to
        if reached and not at_import:
            return
    fresh = sys.modules[module.__name__] = ModuleType(module.__name__)
    exec(new, fresh.__dict__)
    sys.modules[module.__name__] = module
    made = [
        o for o in gc.get_objects() if isinstance(o, FunctionType) and o.__globals__ is vars(fresh)
    ]
    for one, other in itertools.product(own, made):
        if one.__qualname__ == other.__qualname__:
            one.__defaults__, one.__kwdefaults__ = other.__defaults__, other.__kwdefaults__
    bound = set()
    for statement in ast.parse(source).body:
        assigned = isinstance(statement, ast.Assign | ast.AnnAssign)
        if statement.lineno <= line <= statement.end_lineno or (
            assigned and statement.lineno > line
        ):
            names = ast.walk(statement) if assigned else [statement]
            bound |= {getattr(n, "id", getattr(n, "name", None)) for n in names}
    was = {n: vars(module)[n] for n in bound if n in vars(module)}
    for space in [vars(m) for m in [*sys.modules.values()] if isinstance(m, ModuleType)]:
        space.update({n: vars(fresh)[n] for n, value in was.items() if space.get(n) is value})


class Mutants:
    """The pytest plugin: one run that records, then a child for each mutant."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        objects = gc.get_objects()
        caches = [o for o in objects if isinstance(o, functools._lru_cache_wrapper)]
        self.caches = [o for o in caches if o.__module__.startswith(("lolat", "tests"))]
        self.functions = [o for o in objects if isinstance(o, FunctionType)]
        globs = GROUPS[OPTIONS.group][0].split()
        sources = sorted(str(p) for glob in globs for p in Path("lolat").glob(glob))
        reach, seconds = self.record(session, sources)
        running: dict[int, Any] = {}
        for path, line, text, source in [*chosen(sources), *[[""] * 4] * OPTIONS.jobs]:
            if path:
                items = [i for i in session.items if line in reach[path].get(i.nodeid, ())]
                at_import = not items
                items = items or [*session.items]  # of what runs at import any may tell
                items.sort(key=lambda i: seconds[i.nodeid])
                sums = itertools.accumulate(seconds[i.nodeid] for i in items)
                items = [i for i, spent in zip(items, sums, strict=True) if spent < MOST_S]
                child = os.fork() or self.child(session, items, path, source, line, at_import)
                running[child] = {"path": path, "line": line, "text": text}
            while running and (len(running) >= OPTIONS.jobs or not path):
                child, status = os.wait()
                said = {0: "survived", 1: "killed"}.get(
                    os.waitstatus_to_exitcode(status), "timeout"
                )
                with open(OPTIONS.output, "a") as file:
                    file.write(json.dumps(running.pop(child) | {"status": said}) + "\n")
        return True

    def record(self, session: pytest.Session, sources: list[str]) -> tuple[Any, dict[str, float]]:
        """Source -> test -> its lines; seconds of each test. Slow tests and failing ones are left out."""
        include = [f"*/{s}" for s in sources]
        cover = coverage.Coverage(include=include, data_file=None, config_file=False)
        seconds, kept = {}, []
        cover.start()
        for item, after in zip(session.items, [*session.items[1:], None], strict=True):
            function = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
            if own := getattr(function, "_hypothesis_internal_use_settings", None):
                phases, most = (Phase.explicit, Phase.generate), min(own.max_examples, 15)
                few = settings(own, max_examples=most, phases=phases, **FEW)
                function._hypothesis_internal_use_settings = few
            for cache in self.caches:
                cache.cache_clear()
            cover.switch_context(item.nodeid)
            started, before = time.process_time(), session.testsfailed
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            seconds[item.nodeid] = time.process_time() - started
            if session.testsfailed == before and seconds[item.nodeid] < SLOWEST_S:
                kept.append(item)
        cover.stop()
        session.items = kept
        reach: dict[str, dict[str, set[int]]] = {s: {} for s in sources}
        for source in sources:
            lines = cover.get_data().contexts_by_lineno(str(Path(source).resolve()))
            for line, test in ((n, test) for n, tests in lines.items() for test in tests):
                reach[source].setdefault(test, set()).add(line)
        return reach, seconds

    def child(self, session: pytest.Session, items: list[Any], *mutant: Any) -> None:
        """Run tests until one fails; exit code 0: the mutant survived, 1: killed."""
        session.config.pluginmanager.unregister(name="terminalreporter")
        for handle in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), handle)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        before = session.testsfailed
        try:
            for cache in self.caches:
                cache.cache_clear()
            put_in(*mutant, self.functions)
            for item, after in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                if session.testsfailed > before:
                    break
        except BaseException:  # it cannot even be imported
            os._exit(1)
        os._exit(int(session.testsfailed > before))


def chosen(sources: list[str]) -> Any:
    """(path, line, what changes, the mutant's source) of those asked for."""
    found = []
    for path in sources:
        wrapper = MetadataWrapper(cst.parse_module(Path(path).read_text()))
        wrapper.visit(finder := Finder(wrapper.module))
        found += [(path, *mutant) for mutant in finder.found]
    print(f"{len(found)} mutants: {dict(Counter(f[0] for f in found))}")
    again = Path(OPTIONS.again).read_text().splitlines() if OPTIONS.again else []
    wanted = {(r["path"], r["text"]) for r in map(json.loads, again) if r["status"] != "killed"}
    if not again:
        found = random.Random(1).sample(found, min(OPTIONS.sample, len(found)))
    for path, start, end, instead in found:
        lines = Path(path).read_text().splitlines(keepends=True)
        was = "".join(lines[start.line - 1 : end.line])
        other = lines[start.line - 1][: start.column] + instead + lines[end.line - 1][end.column :]
        text = "\n".join(s + " ".join(t.split()) for s, t in (("- ", was), ("+ ", other)))
        if was != other and (not again or (path, text) in wanted):
            source = "".join([*lines[: start.line - 1], other, *lines[end.line :]])
            yield path, start.line, text, source


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--sample", type=int, default=300, help="mutants, drawn with a seed")
    parser.add_argument("--again", help="results of a run: what survived there, once more")
    parser.add_argument("--output", required=True, help="results, one JSON object a line")
    parser.add_argument("--jobs", type=int, default=2)
    OPTIONS = parser.parse_args()
    plain = ["-q", "-pno:cacheprovider", "-pno:randomly", "-otimeout=0", "-mnot slow"]
    tests = [f"tests/{test}" for test in GROUPS[OPTIONS.group][1].split()]
    pytest.main([*plain, *tests], plugins=[Mutants()])
    results = [json.loads(line) for line in Path(OPTIONS.output).read_text().splitlines()]
    for (path, status), number in sorted(
        Counter((r["path"], r["status"]) for r in results).items()
    ):
        print(path, status, number)
