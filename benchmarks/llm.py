"""Language models: operations left out, served models by shipped profiles and with models left out.

DATA holds kernels-DEVICE-FRAMEWORK.csv.gz, devices.csv, serving.csv and models/ of others' measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.runner import Table, Tables, benchmark, percent
from lolat.device.file import new_document, read, write
from lolat.device.intervals import normal_quantile
from lolat.io.paths import list_models
from lolat.llm import calibration, fit, operation_tables
from lolat.llm.frameworks import FrameworkOverheads
from lolat.llm.gpu import GPU, ServedRow, ServingSection, operation_ms, section_of, specs_of
from lolat.llm.load import Load
from lolat.llm.names import find_decoder
from lolat.llm.question import ServingQuestion
from lolat.llm.row_parts import ServedNames
from lolat.llm.served_rows import read_served
from lolat.llm.sizing import Sizing
from lolat.llm.steps import deployment_of
from lolat.parameters import COVERAGE

GPUS = {
    ("a100-sxm", "vllm"): "a100-vllm", ("b200-sxm", "trtllm"): "b200-trtllm",
    ("b200-sxm", "vllm"): "b200-vllm", ("h100-sxm", "sglang"): "h100-sglang",
    ("h100-sxm", "trtllm"): "h100-trtllm", ("h100-sxm", "vllm"): "h100-vllm", ("l40s", "vllm"): "l40s-vllm",
    ("b200-sxm", "sglang"): "b200-sglang",
}  # fmt: skip
"""Tables, and the shipped profiles made of them."""
FILES = (
    "kernels-, mla-, gdn-DEVICE-FRAMEWORK.csv.gz, devices.csv, serving.csv, serving-mla.csv, "
    "open-loop.csv"
)
SERVED = ("serving.csv", "serving-mla.csv", "open-loop.csv")


def tables(data: Path, device: str, framework: str) -> list[Path]:
    """The tables of operations of a GPU and a framework."""
    every = (data / f"{kind}-{device}-{framework}.csv.gz" for kind in ("kernels", "mla", "gdn"))
    return [path for path in every if path.exists()]


@cache
def section(data: Path, device: str, framework: str) -> ServingSection:
    """A GPU and a framework from all rows of its tables, with the framework's usual overheads."""
    sheet = operation_tables.read_sheet(data / "devices.csv", device)
    timed = operation_tables.read_operations(*tables(data, device, framework))
    return fit.section_from(sheet, framework, timed, {})


def read_rows(data: Path, name: str, device: str, framework: str) -> list[ServedRow]:
    """The served rows of a table; of dense models and experts only those with attention in one group."""
    rows = read_served(data / name, device, framework)
    return [r for r in rows if r.attention_data_parallel == 1 or "mla" in name]


# ---- Operations.


@benchmark("llm-operations", "llm", "language-models", FILES)
def operations(data: Path, rows: str = "200", seeds: str = "3") -> Tables:
    """Operations of language models left out, from 200 rows of each kind (all-reduce: half of them)."""
    lines = []
    for device, framework in GPUS:
        timed = dict[str, operation_tables.TimedOperations]()
        for path in tables(data, device, framework):
            timed |= operation_tables.read_operations(path)
        specs = specs_of(operation_tables.read_sheet(data / "devices.csv", device))
        for name, dtypes in timed.items():
            for dtype, (sizes, ms) in dtypes.items():
                number = len(ms) // 2 if name == "all_reduce" else int(rows)
                if len(ms) < 1.2 * number:
                    continue
                ratios, ends = [], []
                for seed in range(int(seeds)):
                    order = np.random.default_rng(100 + seed).permutation(len(ms))
                    some, rest = order[:number], fit.take(sizes, order[number:])
                    fitted = fit.fit_operation(name, dtype, fit.take(sizes, some), ms[some], specs)
                    found = operation_ms(name, fitted, rest, specs, dtype, alone=True)
                    ratios.append(found / ms[order[number:]])
                    ends.append(np.full(len(found), normal_quantile(COVERAGE) * fitted.spread))
                ratio = np.concatenate(ratios)
                size, inside = np.abs(ratio - 1.0), np.abs(np.log(ratio)) < np.concatenate(ends)
                cells = [percent(float(at)) for at in (np.median(size), np.quantile(size, 0.9))]
                cells += [
                    f"{100 * np.median(ratio - 1.0):+.1f} %",
                    percent(float(inside.mean()), 0),
                ]
                lines.append([name, dtype, device, framework, *cells])
    columns = ("operation", "data type", "GPU", "framework", "median error", "90 % below", "bias",
               "inside the 90 % interval")  # fmt: skip
    lines.sort()
    return {"llm-operations": (columns, lines), "llm-operations-by-type": by_type(lines)}


def by_type(lines: Sequence[Sequence[str]]) -> Table:
    """Medians by operation and data type, over GPUs and frameworks."""
    groups: dict[str, list[list[float]]] = {}
    for name, dtype, _, _, *cells in lines:
        numbers = [float(cell.removesuffix(" %")) for cell in cells]
        groups.setdefault(f"{name}, {dtype}", []).append(numbers)
    made = []
    for title, rows in groups.items():
        off, most, _, held = np.array(rows).T
        shown = np.median(off), off.min(), off.max(), np.median(most)
        cells = [f"{value:.1f} %" for value in shown]
        made.append([title, str(len(rows)), *cells, f"{np.median(held):.0f} %"])
    return (
        ("operation, data type", "tables", "median error", "best table", "worst table", "90 % below",
         "inside the 90 % interval"), made
    )  # fmt: skip


# ---- Served models.


def served(data: Path, section: ServingSection, device: str) -> calibration.ServedTimes:
    """The served rows of a GPU and framework that did not wait for memory, simulated as in a fit."""
    rows = read_rows(data, "serving.csv", device, section.framework)
    timed = calibration.timed_steps(section, rows)
    overheads = calibration.fit_overheads(timed, section.overheads, one_server=False)
    return calibration.timed_steps(section, rows, overheads)


class Off(NamedTuple):
    """(rows,) relative errors of time per output token, of time to the first token (nan: unknown, or more
    than 8 requests at once), whether the interval holds the former, and its width.
    """

    tpot: np.ndarray
    first: np.ndarray
    inside: np.ndarray
    width: np.ndarray


def joined(offs: Sequence[Off]) -> Off:
    """Put the errors of several tables together."""
    return Off(*map(np.concatenate, zip(*offs, strict=True)))


def errors(
    timed: calibration.ServedTimes, overheads: FrameworkOverheads, spread: tuple[float, float]
) -> Off:
    """Errors of the predictions for served rows."""
    tpot, ttft = timed.predicted(overheads)
    off = tpot / timed.tpot_ms - 1.0
    few = (timed.concurrency <= 8) & (timed.ttft_ms > 0)
    first = np.where(few, ttft / np.where(few, timed.ttft_ms, 1.0) - 1.0, np.nan)
    width = np.full(len(off), np.exp(spread[0]) - np.exp(-spread[0]))
    return Off(off, first, np.abs(np.log(1.0 + off)) < spread[0], width)


def middle(off: np.ndarray, digits: int = 1) -> str:
    """The median of the sizes of errors as a cell; empty where there is none."""
    known = np.abs(off[~np.isnan(off)])
    return percent(float(np.median(known)), digits) if len(known) else ""


def figures(off: Off) -> list[str]:
    """Format errors as the cells of FIGURES."""
    return [
        middle(off.tpot), percent(float(np.mean(np.abs(off.tpot) < 0.1)), 0),
        f"{100 * np.median(off.tpot):+.1f} %", percent(float(np.mean(off.inside)), 0), middle(off.width, 0),
        middle(off.first, 0),
    ]  # fmt: skip


FIGURES = ("median error", "within 10 %", "bias", "inside the 90 % interval", "its width",
           "first token, up to 8 requests")  # fmt: skip


def groups(timed: calibration.ServedTimes) -> Iterator[tuple[str, np.ndarray]]:
    """Each model and data type, and its rows."""
    for group in np.unique(timed.group):
        yield str(group).strip(), timed.group == group


KNOWN = ("bundled", "left out", "ten rows")
"""The rows that the overheads are fitted to: all models'; other models'; those and ten of its own."""
DRAWS = 5
"""Ten of its own rows are drawn so often; one draw is off by two percent from another."""


@benchmark("llm-served", "llm", "language-models", FILES)
def served_models(data: Path) -> Tables:
    """Time per output token of served models: bundled, the model left out, ten of its rows given."""
    lines: list[list[str]] = []
    pooled: dict[str, list[list[Off]]] = {}
    for device, framework in GPUS:
        if not read_rows(data, "serving.csv", device, framework):
            continue
        one = section(data, device, framework)
        timed = served(data, one, device)
        overheads = calibration.fit_overheads(timed, one.overheads, one_server=False)
        spread = calibration.spread_of(calibration.left_out(timed, one.overheads, one_server=False))
        for group, which in groups(timed):
            rows, rest = timed.take(which), timed.take(~which)
            without = one.overheads
            if len(rest.group):
                without = calibration.fit_overheads(rest, one.overheads, one_server=False)
            usual = calibration.SPREADS["served"]
            found = [errors(rows, overheads, spread), errors(rows, without, usual)]
            offs = list[Off]()
            for seed in range(DRAWS if len(rows.group) >= 20 else 0):
                draw = np.random.default_rng(seed).permutation(len(rows.group)) < 10
                ten = calibration.fit_overheads(rows.take(draw), without)
                offs.append(errors(rows.take(~draw), ten, usual))
            if offs:
                found.append(joined(offs))
            cells = [cell for off in found for cell in figures(off)]
            of_ten = [""] * (len(KNOWN) * len(FIGURES) - len(cells))
            lines.append([f"{device}, {framework}, {group}", str(len(rows.group)), *cells, *of_ten])
            kind = "mixtures of experts" if find_decoder(group.split()[0]).experts else "dense"
            pooled.setdefault(f"all of {framework}, {kind}", []).append(found)
    for title, several in sorted(pooled.items()):
        columns = ([f[n] for f in several if n < len(f)] for n, _ in enumerate(KNOWN))
        cells = [cell for offs in columns for cell in figures(joined(offs))]
        lines.append([title, str(sum(len(found[0].tpot) for found in several)), *cells])
    heads = ("served", "rows", *(f"{known}: {figure}" for known in KNOWN for figure in FIGURES))
    return {"llm-served": (heads, lines)}


HALVES = 2
"""The served configurations are divided in two so often."""
AICONFIGURATOR = ("aiconfigurator 0.12, published", "49 of 319", "20 %", "", "", "", "", "81 %")


@benchmark("llm-mla", "llm", "language-models", FILES)
def latent(data: Path, operations: str = "200") -> Tables:
    """Latent and linear attention on a B200: 200 operations a kind, half of the served configurations.

    The errors are those of the other half. Rows that two models share are in one half.
    """
    lines, pooled = [], dict[str, list[Off]]()
    for framework in ("sglang", "trtllm", "vllm"):
        one = _sampled(data, "b200-sxm", framework, int(operations))
        served = read_rows(data, "serving-mla.csv", "b200-sxm", framework)
        for kind in sorted({find_decoder(row.model).kind for row in served}):
            rows = [row for row in served if find_decoder(row.model).kind == kind]
            found: dict[str, list[Off]] = {}
            for seed in range(HALVES):
                fitted_to, rest = _halves(rows, seed)
                known = calibration.served_by(one, fitted_to)[0].of(kind)
                timed = calibration.timed_of(known, rest)
                for group, which in groups(timed):
                    off = errors(timed.take(which), known.overheads, known.spread)
                    found.setdefault(group, []).append(off)
            for group, offs in found.items():
                every = joined(offs)
                lines.append([f"{framework}, {group}", str(len(every.tpot)), *figures(every)])
                for title in (f"all of {framework}, {kind} attention", f"all, {kind} attention"):
                    pooled.setdefault(title, []).extend(offs)
    for title, offs in sorted(pooled.items()):
        every = joined(offs)
        lines.append([title, str(len(every.tpot)), *figures(every)])
    columns = ("served", "rows left out", *FIGURES)
    return {"llm-mla": (columns, [*lines, AICONFIGURATOR])}


def _sampled(data: Path, device: str, framework: str, number: int) -> ServingSection:
    """A GPU and a framework from `number` rows of each operation, completed by the shipped profiles."""
    timed = operation_tables.TimedTables()
    for name, dtypes in operation_tables.read_operations(*tables(data, device, framework)).items():
        for dtype, (sizes, ms) in dtypes.items():
            some = np.random.default_rng(100).permutation(len(ms))[:number]
            timed.setdefault(name, {})[dtype] = fit.take(sizes, some), ms[some]
    sheet = operation_tables.read_sheet(data / "devices.csv", device)
    known = ((name, path) for name, path, _ in list_models() if name in GPUS.values())
    shipped = {name: section_of(read(path).llm, name) for name, path in known}
    others = {n: msgspec.structs.replace(s, fits={}) for n, s in shipped.items()}
    return fit.section_from(sheet, framework, timed, others)


def _halves(rows: Sequence[ServedRow], seed: int) -> tuple[list[ServedRow], list[ServedRow]]:
    times = sorted({row.tpot_ms for row in rows})
    chosen = {*np.random.default_rng(seed).permutation(times)[: len(times) // 2].tolist()}
    return [r for r in rows if r.tpot_ms in chosen], [r for r in rows if r.tpot_ms not in chosen]


ARRIVING = {
    "itl_mean_ms": ("tpot", "between tokens"), "ttft_mean_ms": ("ttft", "first token"),
    "ttft_p90_ms": ("ttft_p90", "first token, P90"), "ttft_p99_ms": ("ttft_p99", "first token, P99"),
    "e2e_mean_ms": ("e2e", "whole request"), "e2e_p90_ms": ("e2e_p90", "whole request, P90"),
    "e2e_p99_ms": ("e2e_p99", "whole request, P99"),
}  # fmt: skip
"""Column of a measured time -> its name in an answer, and in words."""
OTHERS = {
    "BLIS, published": (7.4, 17, 14, 36, 6.7, 6.5, 9.1),
    "aiconfigurator 0.12, published (31 rows)": (11.5, 740, None, None, 7.9, None, None),
}
"""Errors in % that the inference-sim project publishes for all 68 rows, of which these are a half."""


@benchmark("llm-arrivals", "llm", "language-models", FILES)
def arrivals(data: Path) -> Tables:
    """Requests at a rate on vLLM: overheads of all served rows of the GPU, and without the model's own."""
    lines = []
    pooled: dict[str, list[np.ndarray]] = {}
    for device in ("h100-sxm", "a100-sxm", "l40s"):
        one = _without_rows(GPUS[device, "vllm"])
        rows = read_served(data / "open-loop.csv", device, "vllm")
        every = read_rows(data, "serving.csv", device, "vllm") + rows
        for model in sorted({row.model for row in rows}):
            rest = [row for row in every if row.model != model]
            for title, fitted in (("bundled", every), ("left out", rest)):
                known = calibration.served_by(one, fitted, one_server=False)[0] if fitted else one
                own = [_off(known, row) for row in rows if row.model == model]
                pooled.setdefault(title, []).extend(own)
                lines.append([f"{device}, {model}, {title}", str(len(own)), *_figures(own)])
    lines += [[f"all, {title}", str(len(offs)), *_figures(offs)] for title, offs in pooled.items()]
    for title, figures_of in OTHERS.items():
        cells = ["" if figure is None else f"{figure:g} %" for figure in figures_of]
        lines.append([title, "68", *cells, *[""] * len(cells)])
    words = [words for _, words in ARRIVING.values()]
    columns = ("requests at a rate", "rows", *words, *(f"{one}: inside" for one in words))
    return {"llm-arrivals": (columns, lines)}


def _without_rows(name: str) -> ServingSection:
    """A shipped profile before its fit to served rows."""
    shipped = section_of(read(next(path for n, path, _ in list_models() if n == name)).llm, name)
    return msgspec.structs.replace(
        shipped, overheads=shipped.server.overheads, spread=calibration.SPREADS["timed"], served=0,
        kinds=(), before=None, fits={},
    )  # fmt: skip


def _off(known: ServingSection, row: ServedRow) -> np.ndarray:
    """(2, ARRIVING) relative errors of the times of a row, and 1 for each that its interval holds."""
    deployment = deployment_of(known, find_decoder(row.model), *row.deployment)
    asked = ServingQuestion(
        int(row.input_tokens), int(row.output_tokens), request_rate=(row.request_rate,),
        cached_tokens=int(row.cached_tokens), max_num_seqs=row.max_num_seqs or None,
        max_num_batched_tokens=row.max_num_batched_tokens or None,
    )  # fmt: skip
    found = Sizing(GPU(known), "", deployment, asked, None, ServedNames("", "", "", "")).row(
        Load.of(row), 1
    )
    ends = {"tpot": found.tpot_interval_ms, "ttft": found.ttft_interval_ms}
    ends |= found.intervals_ms or {}
    made = []
    for column, (name, _) in ARRIVING.items():
        measured, (low, high) = float(row.row[column]), ends[name] or (0.0, 0.0)
        made.append((getattr(found, f"{name}_ms") / measured - 1.0, low <= measured <= high))
    return np.array(made).T


def _figures(offs: Sequence[np.ndarray]) -> list[str]:
    """Median errors of rows, and the fractions that the intervals hold."""
    off, inside = np.array(offs).transpose(1, 0, 2)
    cells = [percent(float(one)) for one in np.median(np.abs(off), axis=0)]
    return [*cells, *(percent(float(one), 0) for one in inside.mean(0))]


TICKS = (2, 5, 10, 20, 50, 100, 200)


@benchmark("llm-plot", "llm", "language-models", FILES)
def plot(data: Path, figure: str = "docs/figures/served.svg") -> Tables:
    """Draws predicted against measured time per output token of the shipped profiles: an SVG file."""
    from matplotlib import pyplot

    pyplot.rcParams["svg.fonttype"] = "none"  # text is text: a tenth of the size
    keys, ends = [key for key in GPUS if read_rows(data, "serving.csv", *key)], np.array([2, 200])
    size = (2.6 * len(keys), 3.0)
    made, panels = pyplot.subplots(1, len(keys), figsize=size, sharex=True, sharey=True)
    for panel, (device, framework) in zip(panels, keys, strict=True):
        one = section(data, device, framework)
        timed = served(data, one, device)
        found, _ = timed.predicted(calibration.fit_overheads(timed, one.overheads, False))
        for group, which in groups(timed):
            points = timed.tpot_ms[which], found[which]
            panel.loglog(*points, ".", ms=4, label=group, rasterized=True)
        panel.plot(ends, ends, "k-", lw=0.7)
        panel.fill_between(ends, 0.9 * ends, 1.1 * ends, color="k", alpha=0.1)
        panel.set_title(f"{device}, {framework}", fontsize=9)
        panel.set(
            xlabel="measured, ms", xticks=TICKS, xticklabels=TICKS, yticks=TICKS, yticklabels=TICKS
        )
        panel.minorticks_off()
        panel.tick_params(labelsize=7)
        panel.legend(fontsize=6, frameon=False, loc="upper left")
    panels[0].set_ylabel("predicted, ms")
    made.tight_layout()
    made.savefig(figure, dpi=150, metadata={"Date": None})
    return {}


@benchmark("llm-untimed", "llm", "language-models", FILES)
def untimed(data: Path) -> Tables:
    """Overheads of another GPU: its data sheet, and vLLM's overheads fitted to the other GPU's rows."""
    lines = []
    for device, other in (("h100-sxm", "b200-sxm"), ("b200-sxm", "h100-sxm")):
        known = section(data, other, "vllm")
        rows = served(data, known, other)
        overheads = calibration.fit_overheads(rows, known.overheads, one_server=False)
        own = section(data, device, "vllm")
        operations = {
            name: {t: fit.usual_operation(name, t, one.variant) for t, one in dtypes.items()}
            for name, dtypes in own.operations.items()
        }
        alone = msgspec.structs.replace(own, operations=operations, overheads=overheads)
        timed = served(data, alone, device)
        for group, which in groups(timed):
            off = errors(timed.take(which), overheads, calibration.SPREADS["sheet"])
            lines.append([f"{device}, {group}", other, str(len(off.tpot)), *figures(off)])
    return {"llm-untimed": (("served", "overheads of", "rows", *FIGURES), lines)}


@benchmark("llm-models", "llm", "language-models", FILES)
def models(data: Path, folder: str = "models") -> Tables:
    """Makes the shipped profiles of GPUs that serve language models."""
    sections = {name: section(data, *key) for key, name in GPUS.items()}
    lines, fitted, sources = [], dict[str, ServingSection](), dict[str, str]()
    for key, name in GPUS.items():
        one = fit.complete(sections[name], {n: s for n, s in sections.items() if n != name})
        rows = {served: read_rows(data, served, *key) for served in SERVED}
        every = [row for some in rows.values() for row in some]
        one = calibration.served_by(one, every, one_server=False)[0] if every else one
        # Of a user are rows beside these.
        none: dict[str, Any] = {"own": (), "before": None, "own_error": ()}
        fits = {k: msgspec.structs.replace(f, **none) for k, f in one.fits.items()}
        fitted[name] = msgspec.structs.replace(one, **none, fits=fits)
        known = [path.name for path in tables(data, *key)]
        sources[name] = ", ".join([*known, *(served for served, some in rows.items() if some)])
    for (device, framework), name in GPUS.items():
        one, source = fitted[name], sources[name]
        fits = fit.complete(one, {n: s for n, s in fitted.items() if n != name}).fits
        one = msgspec.structs.replace(one, fits=fits)
        document = new_document(
            name, f"{device} ({framework}, from {source})", {"device": "unknown", "source": source}
        )
        path = Path(folder) / f"{name}.json"
        write(path, document | {"llm": msgspec.to_builtins(one)})
        size = len(msgspec.json.encode(msgspec.to_builtins(one)))
        timed = [o for dtypes in one.operations.values() for o in dtypes.values() if not o.like]
        rows_served = one.served + sum(known.served for known in one.fits.values())
        numbers = (str(sum(o.rows for o in timed)), str(rows_served), f"{size:,}")
        lines.append([name, device, framework, *numbers])
    columns = ("model", "GPU", "framework", "operations timed", "served rows", "bytes")
    return {"llm-models": (columns, lines)}
