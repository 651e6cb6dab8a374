"""Language models: operations left out, served models by shipped models and with models left out.

DATA holds kernels-DEVICE-FRAMEWORK.csv.gz, devices.csv, serving.csv and models/ of others' measurements.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.runner import Tables, benchmark, percent
from lolat.llm import fit
from lolat.llm.answer import find_decoder, to_dict
from lolat.llm.forms import FORMS
from lolat.llm.gpu import ENOUGH, Operation, Section, Ways, facts_of, operation_ms
from lolat.llm.serving import serve
from lolat.model.file import made, write

GPUS = {
    ("a100-sxm", "vllm"): "a100-vllm", ("b200-sxm", "trtllm"): "b200-trtllm",
    ("b200-sxm", "vllm"): "b200-vllm", ("h100-sxm", "sglang"): "h100-sglang",
    ("h100-sxm", "trtllm"): "h100-trtllm", ("h100-sxm", "vllm"): "h100-vllm", ("l40s", "vllm"): "l40s-vllm",
}  # fmt: skip
"""Tables, and the shipped models made of them."""
FILES = "kernels-DEVICE-FRAMEWORK.csv.gz, devices.csv, serving.csv"


@cache
def section(data: Path, device: str, framework: str) -> Section:
    """A GPU and a framework from all rows of its table, with the framework's usual ways."""
    table = data / f"kernels-{device}-{framework}.csv.gz"
    return fit.section_from(fit.read_sheet(data / "devices.csv", device), framework, [table], {})


# ---- Operations.


@benchmark("llm-operations", "llm", "language-models", FILES)
def operations(data: Path, rows: str = "200", seeds: str = "3") -> Tables:
    """Operations of language models left out, from 200 rows of each kind (all-reduce: half of them)."""
    lines = []
    for device, framework in GPUS:
        timed = fit.read_operations(data / f"kernels-{device}-{framework}.csv.gz")
        facts = facts_of(fit.read_sheet(data / "devices.csv", device))
        for name, dtypes in timed.items():
            for dtype, (sizes, ms) in dtypes.items():
                number = len(ms) // 2 if name == "all_reduce" else int(rows)
                if len(ms) < 1.2 * number:
                    continue
                off, inside = [], []
                for seed in range(int(seeds)):
                    order = np.random.default_rng(100 + seed).permutation(len(ms))
                    some, rest = order[:number], order[number:]
                    fitted = fit.fit_operation(name, dtype, fit.take(sizes, some), ms[some], facts)
                    found = operation_ms(
                        name, fitted, fit.take(sizes, rest), facts, dtype, alone=True
                    )
                    off.append(found / ms[rest] - 1.0)
                    inside.append(np.abs(np.log(found / ms[rest])) < ENOUGH * fitted.spread)
                all_off, held = np.concatenate(off), float(np.mean(np.concatenate(inside)))
                lines.append(
                    [name, dtype, device, framework, percent(float(np.median(np.abs(all_off)))),
                     percent(float(np.quantile(np.abs(all_off), 0.9))),
                     f"{100 * np.median(all_off):+.1f} %", percent(held, 0)]
                )  # fmt: skip
    columns = ("operation", "data type", "GPU", "framework", "median error", "90 % below", "bias",
               "inside the 90 % interval")  # fmt: skip
    return {"llm-operations": (columns, sorted(lines))}


# ---- Served models.


def served(data: Path, section: Section, device: str) -> fit.Timed:
    """The served rows of a GPU and framework that did not wait for memory."""
    rows = fit.read_served(data / "serving.csv", device, section.framework)
    return fit.timed_steps(section, rows, find_decoder)


def figures(timed: fit.Timed, ways: Ways, spread: tuple[float, float]) -> list[str]:
    """Errors of time per output token and time to the first token, as cells."""
    found = serve(ways, timed.steps, timed.load)
    off = found.tpot_ms / timed.tpot_ms - 1.0
    few = (timed.load.concurrency <= 8) & (timed.ttft_ms > 0)
    first = np.abs(found.ttft_ms[few] / timed.ttft_ms[few] - 1.0)
    inside = np.abs(np.log(1.0 + off)) < spread[0]
    return [
        str(len(off)), percent(float(np.median(np.abs(off)))),
        percent(float(np.mean(np.abs(off) < 0.1)), 0), f"{100 * np.median(off):+.1f} %",
        percent(float(np.mean(inside)), 0),
        percent(float(np.exp(spread[0]) - np.exp(-spread[0])), 0),
        percent(float(np.median(first)), 0) if few.any() else "",
    ]  # fmt: skip


FIGURES = ("rows", "median error", "within 10 %", "bias", "inside the 90 % interval", "its width",
           "first token, up to 8 users")  # fmt: skip


def groups(timed: fit.Timed) -> Iterator[tuple[str, np.ndarray]]:
    """Each model and data type, and its rows."""
    for group in np.unique(timed.group):
        yield str(group), timed.group == group


@benchmark("llm-served", "llm", "language-models", FILES)
def served_models(data: Path) -> Tables:
    """Time per output token of served models: as shipped, the model left out, ten of its rows given."""
    ships, outs, tens = [], [], []
    for device, framework in GPUS:
        one = section(data, device, framework)
        if not fit.read_served(data / "serving.csv", device, framework):
            continue
        timed = served(data, one, device)
        ways, spread = fit.fit_ways(timed, one.ways), fit.spread_of(timed, one.ways)
        for group, which in groups(timed):
            title, rows = [device, framework, group], timed.take(which)
            ships.append([*title, *figures(rows, ways, spread)])
            rest = timed.take(~which)
            without = fit.fit_ways(rest, one.ways) if len(rest.group) else one.ways
            outs.append([*title, *figures(rows, without, fit.SPREADS["served"])])
            draw = np.random.default_rng(0).permutation(len(rows.group)) < 10
            if (~draw).sum() >= 10:
                ten = fit.fit_ways(rows.take(draw), without)
                tens.append([*title, *figures(rows.take(~draw), ten, fit.SPREADS["served"])])
    columns = ("GPU", "framework", "model", *FIGURES)
    return {
        "llm-served": (columns, ships),
        "llm-model-left-out": (columns, outs),
        "llm-ten-rows": (columns, tens),
    }


@benchmark("llm-plot", "llm", "language-models", FILES)
def plot(data: Path, figure: str = "docs/figures/served.svg") -> Tables:
    """Draws predicted against measured time per output token of the shipped models: an SVG file."""
    from matplotlib import pyplot

    keys = [key for key in GPUS if fit.read_served(data / "serving.csv", *key)]
    made, panels = pyplot.subplots(
        1, len(keys), figsize=(3 * len(keys), 3.4), sharex=True, sharey=True
    )
    for panel, (device, framework) in zip(panels, keys, strict=True):
        one = section(data, device, framework)
        timed = served(data, one, device)
        found = serve(fit.fit_ways(timed, one.ways), timed.steps, timed.load)
        for group, which in groups(timed):
            panel.loglog(timed.tpot_ms[which], found.tpot_ms[which], ".", ms=4, label=group)
        ends = np.array([2.0, 200.0])
        panel.plot(ends, ends, "k-", lw=0.7)
        panel.fill_between(ends, 0.9 * ends, 1.1 * ends, color="k", alpha=0.1)
        panel.set(title=f"{device}, {framework}", xlabel="measured, ms an output token")
        panel.legend(fontsize=6)
    panels[0].set_ylabel("predicted, ms")
    made.tight_layout()
    made.savefig(figure)
    return {}


@benchmark("llm-untimed", "llm", "language-models", FILES)
def untimed(data: Path) -> Tables:
    """A GPU that was never timed: its data sheet, and the ways of vLLM fitted to the other GPU's rows."""
    lines = []
    for device, other in (("h100-sxm", "b200-sxm"), ("b200-sxm", "h100-sxm")):
        known = section(data, other, "vllm")
        ways = fit.fit_ways(served(data, known, other), known.ways)
        operations: dict[str, dict[str, Operation]] = {}
        for name, dtypes in section(data, device, "vllm").operations.items():
            for dtype, operation in dtypes.items():
                centers = FORMS[name].terms(dtype, operation.variant)
                terms = {term: center for term, (center, _) in centers.items()}
                operations.setdefault(name, {})[dtype] = Operation(
                    terms=terms, variant=operation.variant
                )
        sheet = fit.read_sheet(data / "devices.csv", device)
        alone = Section(sheet=sheet, operations=operations, ways=ways, framework="vllm")
        timed = served(data, alone, device)
        for group, which in groups(timed):
            cells = figures(timed.take(which), ways, fit.SPREADS["sheet"])
            lines.append([device, other, group, *cells])
    return {"llm-untimed": (("GPU", "ways of", "model", *FIGURES), lines)}


@benchmark("llm-models", "llm", "language-models", FILES)
def models(data: Path, folder: str = "models") -> Tables:
    """Makes the shipped models of GPUs that serve language models."""
    sections = {name: section(data, *key) for key, name in GPUS.items()}
    lines = []
    for (device, framework), name in GPUS.items():
        one = fit.complete(sections[name], {n: s for n, s in sections.items() if n != name})
        rows = fit.read_served(data / "serving.csv", device, framework)
        one = fit.served_by(one, rows, find_decoder) if rows else one
        source = f"kernels-{device}-{framework}.csv.gz{', serving.csv' * bool(rows)}"
        where = {"device": "unknown", "source": source}
        document = made(name, f"{device} ({framework}, from {source})", where)
        path = Path(folder) / f"{name}.json"
        write(path, document | {"llm": to_dict(one)})
        size = len(msgspec.json.encode(to_dict(one)))
        timed = [o for dtypes in one.operations.values() for o in dtypes.values() if not o.like]
        number = sum(operation.rows for operation in timed)
        lines.append([name, device, framework, str(number), str(one.served), f"{size:,}"])
    columns = ("model", "GPU", "framework", "operations timed", "served rows", "bytes")
    return {"llm-models": (columns, lines)}
