"""A device profile in words: its headline, measurements, execution mode, and formula by families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lolat.device.file import UNKNOWN, DeviceFile
from lolat.device.predictors.additive import FAMILY, AdditiveCosts
from lolat.device.predictors.formula import Formula
from lolat.device.predictors.roofline import Roofline
from lolat.device.state import State, ago, moment
from lolat.graph import Graph
from lolat.graph.counts import MEANINGS, MEMBERS
from lolat.graph.modes import EAGER, PRECISION_OF, layout_of
from lolat.hardware.card_names import find_gpu
from lolat.units import milliseconds, percent, plain, plural, rows_of

if TYPE_CHECKING:
    from lolat.device.device import Device

FRAMEWORK_TITLES = {"torch": "PyTorch", "tensorflow": "TensorFlow", "onnxruntime": "ONNX Runtime"}
IN_TF32 = " (convolutions in TF32)"  # PyTorch's default for float32
LAYOUTS = {True: "channels last", False: "channels first", None: ""}


@dataclass(frozen=True)
class FittedPredictor:
    """A formula's coefficients, and its relative errors on held-out points."""

    coefficients: Mapping[str, float]
    error: Mapping[str, float]


@dataclass(frozen=True)
class ModelSummary:
    """A profile without its points.

    `knows`: its sections, in words; without latencies of inference `default` is None and `predictors` is
    empty; `families`: the extended formula as families of work, null without one; `state`: age and last
    check, null if it was learned on another machine; `language_models`: null without them; has the rows and
    errors of `operations`, and of `served` rows by kind of attention ("": usual). `spread`: half width of a
    log interval; for served rows, one per token and one to the first token.
    """

    name: str
    device: str
    file: str
    knows: Sequence[str]
    default: str | None
    points: int
    noise_floor: float | None
    environment: Mapping[str, Any]
    predictors: Mapping[str, FittedPredictor]
    families: Families | None
    state: State | None
    language_models: Mapping[str, Any] | None
    domain: Mapping[str, Any]
    warnings: Sequence[str]


def summary_of(device: Device) -> ModelSummary:
    """The summary of a profile."""
    file, extended = device.file, device.predictors.get(AdditiveCosts.name)
    fitted = {
        name: FittedPredictor(formula.coefficients, file.errors(name))
        for name, formula in device.predictors.items()
    }
    return ModelSummary(
        name=device.name,
        device=device.device,
        file=device.source,
        knows=file.knows,
        default=device.default or None,
        points=len(file.points),
        noise_floor=file.noise.floor,
        environment=file.recorded,
        predictors=fitted,
        families=families_of(extended) if extended else None,
        state=device.state,
        language_models=None if file.llm is None else _language_models(file.llm),
        domain=file.document.get("domain", {}),
        warnings=file.notes,
    )


def _language_models(part: Mapping[str, Any]) -> dict[str, Any]:
    """The section on language models without coefficients; the user's rows are reduced to file names."""

    def some(of: Mapping[str, Any], *names: str) -> dict[str, Any]:
        return {name: of[name] for name in names if name in of}

    served = {"": part, **part.get("fits", {})}
    return {
        "framework": part.get("framework"),
        "operations": {
            name: {dtype: some(one, "rows", "spread", "like") for dtype, one in dtypes.items()}
            for name, dtypes in part["operations"].items()
        },
        "served": {
            kind: some(fit, "served", "spread", "own_error")
            | {"own": [*dict.fromkeys(row.get("source", "") for row in fit.get("own", ()))]}
            for kind, fit in served.items()
        },
    }


# ---- A profile in one line


def headline(device: Device, by: str = "by") -> str:
    """A profile in one line: name, device, measurements, flags, date and noise.

    `by`: the word before the measurements.
    """
    file, where = device.file, device.file.environment
    parts = [known_by(device.name, file, by), *["XLA"] * where.jit]
    parts += [plain(f"{k}={v}") for k, v in (where.flags or {}).items()]
    if where.date and (when := moment(where.date)):
        parts.append(f"learned {ago(where.date)}, {when:%Y-%m-%d %H:%M} UTC")
    if file.noise.floor is not None:
        parts.append(f"noise {percent(file.noise.floor)}")
    return " · ".join(parts)


def words_of(device: Device) -> str:
    """The `repr` of a profile: headline, execution mode, and error of its default formula."""
    if not device.predictors:
        return f"{headline(device)}\nknows {', '.join(device.file.knows)}"
    errors = device.file.errors(device.default)
    words = f"{mode_words(device.file)}; by default {device.default}"
    if {"median", "points"} <= errors.keys():
        words += f": median error {percent(errors['median'])} on {errors['points']:,.0f} points"
    return f"{headline(device)}\n{words}"


# ---- Its measurements and its execution mode in words


def mode_words(file: DeviceFile, graph: Graph | None = None, last: bool = False) -> str:
    """The execution mode in words: "fp32, PyTorch, eager"; `graph`, `last`: see `layout_of`."""
    mode, framework = file.mode, file.environment.framework
    precision = PRECISION_OF[mode.dtype]
    precision += IN_TF32 * bool(file.kernels and file.has_tf32)
    title = FRAMEWORK_TITLES.get(framework or "", framework)
    parts = [precision, plain(title) if title else ""]
    parts += [mode.launch if framework == "torch" or mode.launch != EAGER else ""]
    parts += [LAYOUTS[layout_of(mode, graph, last)]]
    return ", ".join(filter(None, parts))


PRECISION_REMEDY = "one for all: --precision amp; each fastest precision: --precision best"
LAUNCH_REMEDY = "one for all: --launch eager"


def not_alike(
    models: Iterable[Device], of_precision: str = PRECISION_REMEDY, of_launch: str = LAUNCH_REMEDY
) -> str:
    """A remark on devices whose times are not comparable; "" if they are.

    They are not if only some GPUs run in half precision, or if launches differ without the user having
    asked for them. `of_precision`, `of_launch`: the remedies.
    """
    gpus = [model for model in models if Roofline.name in model.predictors]
    by_own = [model for model in gpus if model.asked.precision is None]
    launched = gpus if any(model.asked.launch is None for model in gpus) else []
    unlike: dict[str, tuple[set[Any], str]] = {
        "precisions": ({m.file.mode.half for m in by_own}, of_precision),
        "launches": ({m.file.mode.launch for m in launched}, of_launch),
    }
    unlike = {what: known for what, known in unlike.items() if len(known[0]) > 1}
    if not unlike or len({m.file.kind for m in gpus}) == 1:  # the user compares modes of one card
        return ""
    each: dict[str, dict[str, None]] = {}
    for model in gpus:
        mode = model.file.mode
        words = {"precisions": PRECISION_OF[mode.dtype], "launches": mode.launch}
        each.setdefault(", ".join(words[what] for what in unlike), {})[plain(model.row_name)] = None
    told = "; ".join(f"{name} on {', '.join(labels)}" for name, labels in each.items())
    return (
        f"{' and '.join(unlike).capitalize()} differ, so these times do not compare the GPUs: {told} "
        f"({'; '.join(remedy for _, remedy in unlike.values())})"
    )


def span(sizes: tuple[int, int]) -> str:
    """A range of numbers in words: "1 to 64"."""
    low, high = sizes
    return str(low) if low == high else f"{low} to {high}"


def fitted_on_words(file: DeviceFile) -> str:
    """The measurements of a device in words.

    They are the numbers of operations, networks or blocks, the batch sizes, and the framework's version.
    """
    where, blocks = file.environment, len(file.points)
    fitted_on = where.fitted_on
    networks = rows_of(fitted_on.network_rows or fitted_on.networks, fitted_on.networks)
    parts = [plural(fitted_on.operations, "operation")] if fitted_on.operations else []
    parts += [networks] if fitted_on.networks else []
    parts += [plural(blocks, "measurement")] if blocks and not parts else []
    if file.batch_sizes:
        parts.append(f"batch {span(file.batch_sizes)}")
    if where.framework_version:
        title = FRAMEWORK_TITLES.get(where.framework or "", where.framework)
        parts.append(plain(f"{title} {where.framework_version}"))
    return ", ".join(parts)


def known_by(name: str, file: DeviceFile, by: str = "by") -> str:
    """The name of a profile, its device and the source of its times: "l4: L4, data sheet only".

    `by`: the word before the measurements.
    """
    is_sheet = file.kernels is not None and not file.kernels.measured
    fitted = fitted_on_words(file)
    by = f"{by} {fitted}" if fitted else ("data sheet only" if is_sheet else "")
    product = file.product
    gpu = None if " " in product else find_gpu(product)  # tables may write "l4"
    device = gpu.name if gpu else product
    device = "device not named" if product == UNKNOWN else device
    return ", ".join(filter(None, (f"{plain(name)}: {plain(device)}", by)))


# ---- A formula as families of counts with a rate each

FAMILIES = {
    "flops": ("computing", "Multiplying and adding."),
    "elements": ("moving", "Reading and writing tensors."),
    "weights": ("weights", "Reading kernels, once a pass whatever the batch size."),
    "ops": ("operations", "What each operation costs before it does anything."),
}
"""Family of counts -> (its name, a sentence that explains it)."""
PER = {
    "MACs": (1e9, "GMAC"),
    "elements": (1e6, "million elements"),
    "weights": (1e6, "million weights"),
    "operations": (1.0, "operation"),
    "groups": (1.0, "group"),
}
"""Unit of a count -> (number of these units in a rate's unit, name of the rate's unit)."""


@dataclass(frozen=True)
class Rate:
    """The cost of a count on a device: `ms` for each `per`.

    `name`: the count (`lolat.graph.counts`); `words`, `why`: its name and a sentence for people;
    `of_family`: the rate / its family's rate; None without a family, or if the family costs nothing.
    """

    name: str
    words: str
    ms: float
    per: str
    why: str
    of_family: float | None = None

    def __str__(self) -> str:
        """The rate in words: "8.1 ms a GMAC", "12.3 us an operation"."""
        article = "an" if self.per[0] in "aeio" else "a"
        number = milliseconds(self.ms) if self.ms >= 0.1 else f"{1e3 * self.ms:.3g} us"
        return f"{number} {article} {self.per}"


@dataclass(frozen=True)
class Family:
    """A family of work with its rate, and the rates of its kinds, the highest first."""

    rate: Rate
    kinds: tuple[Rate, ...]


@dataclass(frozen=True)
class Families:
    """An extended formula: the sum of counts times their rates, plus one call of the framework, `call_ms`.

    `besides`: extra costs of some kinds of work, in addition to their families'.
    """

    families: tuple[Family, ...]
    besides: tuple[Rate, ...]
    call_ms: float


def families_of(formula: Formula) -> Families | None:
    """The families and kinds of a fitted formula, even kinds that cost 0; None if it has no families."""
    if formula.families is None:
        return None
    families, cost = [], dict(zip(formula.features, formula.slopes, strict=True))
    for family, (words, why) in FAMILIES.items():
        common = formula.families.get(family, 0.0)
        kinds = [_rate(n, ms, common) for n, ms in cost.items() if FAMILY.get(n) == family]
        number, per = PER[MEANINGS[MEMBERS[family][0]].unit]
        kinds.sort(key=lambda kind: -kind.ms)
        families.append(Family(Rate(family, words, common * number, per, why), tuple(kinds)))
    besides = tuple(_rate(n, ms) for n, ms in cost.items() if n not in FAMILY)
    return Families(tuple(families), besides, formula.constant)


def _rate(name: str, ms: float, common: float = 0.0) -> Rate:
    """The rate of a count; `ms`: its cost per unit; `common`: ms per unit of its family."""
    meaning = MEANINGS[name]
    number, per = PER[meaning.unit]
    of_family = ms / common if common > 0.0 else None
    return Rate(name, meaning.words, ms * number, per, meaning.why, of_family)
