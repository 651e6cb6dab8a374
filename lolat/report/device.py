"""Lines on a device: its errors, its sections, its formulas; and the prices of devices."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from shlex import quote
from statistics import median
from typing import TYPE_CHECKING, Any

from lolat.device.device import Device
from lolat.device.intervals import conformal_quantile, t_quantile
from lolat.device.predictors.formula import CONSTANT, Formula
from lolat.device.predictors.two_regime import TwoRegime
from lolat.device.remedies import bundled_twin
from lolat.device.summary import Families, Rate, families_of, headline, mode_words, span
from lolat.errors import InputError
from lolat.graph.counts import COLUMNS
from lolat.hardware.card_names import find_gpu
from lolat.hardware.prices import Offer, Prices
from lolat.io.paths import LOCAL, SHIPPED, program
from lolat.llm.gpu import ServedFit, ServingSection, TrainingLevel, section_of
from lolat.parameters import COVERAGE
from lolat.report.tables import Column, Paragraph, Part, ReportTable
from lolat.tables.networks import size_text
from lolat.units import by_text, dollars, milliseconds, percent, plain, plural

if TYPE_CHECKING:
    from lolat.api.listing import ListedModel, Models


# ---- The device

FREED_MEMORY = (
    "your own process: PyTorch was measured with freed memory kept. Start yours with MALLOC_MMAP_MAX_=0 "
    "MALLOC_TRIM_THRESHOLD_=-1; without them a network at 160 px took 1.1 to 1.75 times as long"
)
"""A line on the memory setting of the measurements; its figures are those of docs/how-to/measure.md."""


def describe(device: Device) -> Iterator[Part]:
    """The lines of `lolat show`."""
    sections = [*section_lines(device)]  # a damaged one is an error before the first line
    yield headline(device)
    if device.predictors:
        yield f"it runs networks in {mode_words(device.file)}"
    yield from device_lines(device)
    is_learned = device.file.environment.is_learned
    yield from _titled("while learning" if is_learned else "notes", map(plain, device.file.notes))
    yield from sections


def models_lines(listed: Models) -> Iterator[Part]:
    """The lines of `lolat models`: devices grouped by the questions they answer."""
    models = listed.models
    if not models:
        yield "no profiles yet: learn one with `lolat learn cpu`"
        return
    shown = [m for m in models if "layers" not in m.answers_for]

    def answers(m: ListedModel) -> str:
        return f"cannot be read: {m.problem}" if m.problem else ", ".join(m.answers_for)

    columns = [
        Column(
            "profile",
            lambda m: m.name + (" (local)" if m.origin == LOCAL else ""),
            plain,
            is_text=True,
        ),
        Column("answers for", answers, plain, is_text=True),
        Column("as it runs them", lambda m: m.runs, plain, is_text=True),
        Column("batch", lambda m: m.batch_sizes or None, span),
        Column("error, held out", lambda m: m.error, percent),
    ]
    order = sorted(shown, key=lambda m: (m.origin == SHIPPED, m.answers_for[-1:], m.name))
    yield ReportTable(columns, order)
    if layers := [plain(m.name) for m in models if "layers" in m.answers_for]:
        yield f"Single layers of 2018, for `lolat predict`: {', '.join(layers)}"
    sheets = ((name, find_gpu(name)) for name in listed.data_sheets)
    answered = (
        (n, f"networks{' and language models' if gpu and gpu.bf16 else ''}") for n, gpu in sheets
    )
    for what, names in by_text(answered).items():
        yield f"Devices too, by data sheet, for {what}: {', '.join(names)}"
    yield f"Language models known by name, for `lolat llm`: {', '.join(listed.language_models)}"


def first_network(framework: str | None) -> str:
    """A bundled network of the framework, for a first question; PyTorch's for ONNX Runtime."""
    return "timm:resnet50" if framework in ("torch", "onnxruntime") else "keras:ResNet50"


def first_evaluation(name: str, framework: str | None) -> list[str]:
    """The command for a first `lolat evaluate` of a learned device; [] if it would need a file or a package
    that is not installed. Without arguments `lolat evaluate` measures networks of Keras.
    """
    command = f"{quote(program())} evaluate {quote(plain(name))}"
    if framework == "torch":
        return [f"{command} timm:resnet50"] if importlib.util.find_spec("timm") else []
    return [] if framework == "onnxruntime" else [command]


def learned(device: Device, path: str, name: str) -> Iterator[Part]:
    """The lines at the end of `learn` and `fit`; commands find the device by `name`."""
    file, where = device.file, device.file.environment
    took = [] if where.seconds is None else [f"measured in {where.seconds:.0f} s"]
    runs = [mode_words(file)] if device.predictors else []
    yield Paragraph(" · ".join([headline(device), *runs, *took]))
    yield from device_lines(device)
    yield from section_lines(device)
    yield from ("", f"written: {plain(path)}")
    if where.is_learned and (twin := bundled_twin(file, path)):
        yield Paragraph(twin)
    named, lolat = quote(plain(name)), quote(program())
    network = first_network(where.framework)
    kernels = file.kernels
    for step in kernels.own_steps[-1:] if kernels else ():
        is_text = step.network.startswith("transformers:")
        option = "--sequence-length" if is_text else "--input-size"
        network = quote(plain(step.network)) + (
            f" {option} {size_text(step.size)}" if step.size else ""
        )
    if device.predictors:
        evaluate = [f"{lolat} evaluate {named} --table OTHER_TIMES.csv"]
        evaluate = first_evaluation(name, where.framework) if where.is_learned else evaluate
        report, show = f"{lolat} report {named} {network}", f"{lolat} show {named} --formula"
        yield f"Next: {' · '.join([report, *evaluate, show])}"
    if file.llm:
        section = section_of(file.llm, device.source)
        if section.trained:
            asked = (
                "llama-3.1-8b --sequence-length 4096 --batch-size 1 --replicas 8 --sharding fsdp"
            )
            yield f"Next: {lolat} cost {named} {asked}"
        fits = [fit for fit in (section, *section.fits.values()) if fit.own]
        served = fits[-1].own[-1].model if fits else "qwen3-8b"
        if all(one.own_error[:1] < (one.was_error[:1] or (math.inf,)) for one in fits):
            yield f"Next: {lolat} llm {named} {quote(plain(served))}"
        else:
            yield Paragraph(
                "This fit is no better than the device without these rows. Rows of other loads, lengths "
                "and GPUs may help; are dtype and kv_dtype the server's, and was its prefix cache off?"
            )
    if file.training or (kernels and kernels.training_residuals):
        yield f"Next: {lolat} cost {named} {network} --batch-size 32 --samples 50000"


def device_lines(device: Device) -> Iterator[Part]:
    """The titled lines on a device's errors."""
    if device.predictors:
        yield from _titled("how far off", error_lines(device))


def _titled(title: str, lines: Iterable[str]) -> Iterator[Part]:
    """An empty line, a title and indented lines; nothing if there are no lines."""
    if shown := [Paragraph(line, 2, 4) for line in lines]:
        yield ""
        yield title
        yield from shown


def error_lines(device: Device) -> Iterator[str]:
    """The errors of the default formula on held-out times, and how well the machine's times repeat."""
    formula, noise = device.predictors[device.default], device.file.noise
    errors, is_wider = formula.error, formula.elsewhere > 0.0
    wider = (
        "; intervals are wider: they allow for other hosts, versions and precisions"
        if is_wider
        else ""
    )
    fitted_on = device.file.environment.fitted_on
    of_networks = fitted_on.networks > 0 and not fitted_on.operations
    names = {"networks_left_out": "networks", "left_out": "single blocks"}
    if "networks_left_out" not in errors:
        names = {"left_out": "networks" if of_networks else "points"}
    for key, name in names.items():
        figures = errors.get(key)
        if figures and (middle := figures.get("median")) is not None:
            tail = _most_error(formula, key)
            most = "" if tail is None else f", nine of ten within {percent(tail)}"
            within = f"half within {percent(middle)}{most} (formula: {device.default})"
            yield f"{name} that the fit had not seen: {within}{wider}"
    if device.file.kernels is not None and not device.file.kernels.measured:
        half, nine = (math.expm1(conformal_quantile(formula.residuals, q)) for q in (0.5, COVERAGE))
        within = f"half within {percent(half)}, nine of ten within {percent(nine)}"
        others = "; no network of convolutions was checked so"
        yield f"transformers on eight other GPUs, by their data sheets alone: {within}{others}{wider}"
    if noise.floor is not None:
        repeated = noise.repeatability
        times = "" if repeated is None else f"; times repeat within {percent(repeated)}"
        yield f"the machine: blocks measured again differ by {percent(noise.floor)}{times}"
    if device.file.environment.keeps_freed_memory:
        yield FREED_MEMORY


def _most_error(formula: Formula, key: str) -> float | None:
    """The 90 % quantile of the relative errors of held-out times; None if too few were held out."""
    if key == "networks_left_out" and (networks := formula.networks) is not None:
        return math.expm1(t_quantile(COVERAGE, networks.count) * networks.spread)
    with suppress(InputError):
        return math.expm1(conformal_quantile(formula.residuals, COVERAGE))
    return None


def section_lines(device: Device) -> Iterator[Part]:
    """The lines on the sections of a profile: training, timed epochs, language models, search spaces."""
    file = device.file
    if part := file.training:
        blocks = {p["name"] for p in part["points"]}
        line = (
            f"{len(part['points'])} passes of {len(blocks)} blocks; each block left out: median error "
            f"{percent(part['error']['left_out_median'])} (noise floor {percent(part['noise']['floor'])}); "
            f"{plain(', '.join(sorted(part['update_ms'])))}"
        )
        yield from _titled("training (`lolat cost`)", [line, *map(plain, part.get("warnings", ()))])
    if part := file.epochs:
        networks = {p["network"] for p in part["points"]}
        error = median(abs(math.expm1(-r)) for r in part["residuals"])
        line = (
            f"{len(part['points'])} of {plural(len(networks), 'network')}; each network left out: median "
            f"error {percent(error)}; {plain(', '.join(part['optimizers']))}"
        )
        yield from _titled("epochs of training (`lolat cost`)", [line])
    if file.llm:
        section = section_of(file.llm, device.source)
        yield from _titled("training decoders (`lolat cost`)", _trained_runs(section.trained))
        lines = (*_overheads(section), *_operations(section))
        yield from _titled("language models (`lolat llm`)", map(plain, lines))
    spaces = [
        f"{plain(file.space_labels[name])}: {plural(len(part.get('samples', ())), 'measured network')}"
        for name, part in file.spaces.items()
    ]
    yield from _titled("spaces (`lolat nas search SPACE MODEL`)", spaces)


def _operations(section: ServingSection) -> Iterator[str]:
    """A line for each kind of timed operation, with its error by data type."""
    yield "timed operations, with the standard deviation of those held out:"
    for name, dtypes in section.operations.items():
        told = [f"{t} {percent(one.spread)}" for t, one in dtypes.items() if not one.like]
        others = [dtype for dtype, one in dtypes.items() if one.like]
        told += [f"as on other GPUs {', '.join(others)}"] if others else []
        yield f"- {name}: {'; '.join(told)}"


def _overheads(section: ServingSection) -> Iterator[str]:
    """A line for each fit of the framework's overheads to served rows."""
    fits: dict[str, ServedFit] = {"": section, **section.fits}
    for kind, fit in fits.items():
        if fit.own:
            yield _own_rows(fit)
        rows = "as on other GPUs"
        if fit.served:
            rows = f"fitted to {plural(fit.served, 'serving measurement')}"
        of = f" of {kind} attention" if kind else ""
        tpot, ttft = map(math.expm1, fit.spread)
        yield (
            f"{section.framework}{of}: scheduling and starts of kernels {rows}; "
            f"{percent(COVERAGE)} of models held out: time per output token within {percent(tpot)}, first "
            f"token within {percent(ttft)}"
        )


def _trained_runs(trained: TrainingLevel | None) -> Iterator[str]:
    """The line on the user's runs of training decoders, if there are any."""
    if trained:
        runs, spread = plural(trained.rows, "own run"), math.expm1(trained.spread)
        agree = f", which agree within {percent(spread)}" if trained.rows > 1 else ""
        yield f"{runs}{agree}: {trained.level:.2f} times as long as the kernels say"


def _own_rows(fit: ServedFit) -> str:
    """Words on the user's served rows: their files, their level and their held-out errors."""
    files = ", ".join(dict.fromkeys(row.source for row in fit.own)) or "files"
    errors = zip(("time per output token", "first token"), fit.own_error, strict=False)
    told = [f"{name} off by {percent(error)}" for name, error in errors]
    rows, level = (
        plural(len(fit.own), "own row"),
        f"{fit.overheads.level:.3g} times as long as usual",
    )
    return f"{rows} ({files}): {level}; held out, at the median: {', '.join(told)}"


# ---- The formulas


def formula_lines(device: Device) -> Iterator[Part]:
    """The lines of `lolat show --formula`: each formula of the device and its terms."""
    yield headline(device)
    if not device.predictors:
        return
    yield "A time is the sum of counts times rates. 1 MAC is one multiply-accumulate."
    for name, formula in device.predictors.items():
        mark = " (default)" if name == device.default else ""
        yield ""
        if families := families_of(formula):
            yield f"{name}{mark}: families of work with a rate each, and how many times that a kind takes"
            yield from _family_lines(families)
        else:
            yield f"{name}{mark}: {formula_text(formula.to_dict())}"
        if isinstance(formula, TwoRegime) and formula.breakpoint_ms > 0:
            below = milliseconds(formula.breakpoint_ms)
            yield f"  below {below}: {formula.slope:.3f} * t + {formula.to_dict()['offset_ms']:.3f}"


def _family_lines(families: Families) -> Iterator[Part]:
    """Lines on each family: its rate, and the kinds in it with their cost as a multiple of the rate."""
    for family in families.families:
        if family.kinds:
            rate = f", {family.rate}" if family.rate.ms > 0 else ""
            yield f"  {family.rate.words}{rate}. {family.rate.why}"
            yield from _kind_lines(family.kinds)
    if any(rate.ms > 0 for rate in families.besides):
        yield "  besides"
        yield from _kind_lines(families.besides)
    yield f"  a call of the network, {milliseconds(families.call_ms)}"


def _kind_lines(kinds: Sequence[Rate]) -> Iterator[Part]:
    for kind in kinds:
        if kind.ms > 0:
            of_family = kind.of_family is not None
            head, rate = (f"{kind.of_family:5.2f} x ", "") if of_family else ("    + ", f", {kind}")
            yield Paragraph(f"{head}{kind.words}{rate}. {kind.why}", 4, 12)
    if free := [kind.words for kind in kinds if kind.ms == 0]:
        yield Paragraph(f"free: {', '.join(free)}", 6, 12)


CAPITALS = {"acts": "ACTS", "inp": "INP", "flops": "FLOPs"}  # the names of the publications


def equation(coefficients: Mapping[str, float]) -> str:
    """A formula as an equation: "t = 1.2e-07*ACTS + ... + 0.2 ms"."""
    parts = [
        f"{coefficients[name]:.3g}*{CAPITALS.get(name, name)}"
        for name in COLUMNS
        if coefficients.get(name, 0.0) > 0
    ]
    return "t = " + " + ".join([*parts, f"{coefficients.get(CONSTANT, 0.0):.3g} ms"])


def formula_text(entry: Mapping[str, Any]) -> str:
    """A predictor's entry in a device file as a formula on one line."""
    sum_of_terms, classes = equation(entry["coefficients"]), entry.get("classes")
    if not isinstance(classes, Mapping):
        return sum_of_terms
    return f"each operation by the terms of its class ({len(classes)}); large fast ones: {sum_of_terms}"


def price_lines(prices: Prices) -> Iterator[Part]:
    """A line for each instance type of a source, in its cheapest region."""
    yield f"US$ an hour of a whole instance, from {prices.prices}"
    yield ""
    best: dict[tuple[str, str, str, int], Offer] = {}
    for offer in prices.offers:
        key = (offer.source, offer.instance_type, offer.accelerator, offer.count)
        best[key] = min(best.get(key, offer), offer, key=lambda o: o.price)
    columns = [
        Column("accelerator", lambda o: plain(o.accelerator) or "cpu", is_text=True),
        Column("", lambda o: o.count or None, "x{}".format, is_text=True),
        Column("instance type", lambda o: plain(o.instance_type), is_text=True),
        Column("$/hour", lambda o: dollars(o.price, sign="")),
        Column("region", lambda o: plain(o.region), is_text=True),
        Column("source, read", lambda o: ", ".join(filter(None, (plain(o.source), o.date))),
               is_text=True),
    ]  # fmt: skip
    order = sorted(best.values(), key=lambda o: (not o.count, o.accelerator, o.count, o.price))
    yield ReportTable(columns, order)
