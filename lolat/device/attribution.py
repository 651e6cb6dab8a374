"""Attribution and counterfactuals of a prediction.

Attribution: the milliseconds of each term of the formula, for a network, its blocks, and the operations of
one block; they add up to the prediction. Counterfactuals: the time that a change would save, found by
predicting the changed network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from lolat.device.device import Device
from lolat.device.execution_modes import HALVES, as_written, in_precisions, measured_in, with_file
from lolat.device.file import UNKNOWN
from lolat.device.predicting import predict
from lolat.device.prediction import Prediction
from lolat.device.question import DEFAULT, Question, RunAs
from lolat.device.remedies import other_runtimes
from lolat.device.summary import FRAMEWORK_TITLES
from lolat.errors import InputError, arg
from lolat.graph import Graph, Operation, edits
from lolat.graph.analysis import Analysis, analyze
from lolat.graph.blocks import BlockName, is_inside
from lolat.graph.images import has_images, image_side, takes_images
from lolat.graph.kinds import COMPUTE
from lolat.graph.modes import AMP, BFLOAT16, COMPILED, FLOAT16, GRAPH, Mode
from lolat.graph.width import NOTE, Widths, widths
from lolat.io.paths import LOCAL, SHIPPED
from lolat.io.results import Result, Several, nested
from lolat.units import did_you_mean, milliseconds, percent

SMALLEST_SAVING = 0.01  # share of the time of the network or the block
NARROWER = 0.5  # share of the channels of a narrower network or block
ONE_SIZE = (
    "a smaller input was not tried: that is for one square image, which the network can take at half of "
    "its resolution"
)

AtSize = Callable[[int], Graph]
"""A function that reads the network for images of n pixels on a side; NetworkError if it cannot be read."""


@dataclass(frozen=True)
class Term:
    """A line of an attribution: `count` units at `rate_ms` each."""

    KEYS = ("count", "rate_ms", "latency_ms")

    name: str
    count: int
    rate_ms: float
    latency_ms: float


@dataclass(frozen=True)
class Attribution:
    """The time of a network, block or operation, split into terms.

    `share`: its share of the network's time; `kind`: an operation's kind, unset for others.
    """

    KEYS = ("name", "latency_ms", "share", "terms=by_term", "kind")

    named: BlockName
    latency_ms: float
    share: float
    terms: tuple[Term, ...]
    kind: str | UnsetType = UNSET

    @property
    def name(self) -> str:
        """The name of the network, block or operation; a block's includes the kinds of its operations."""
        return str(self.named)

    @property
    def by_term(self) -> dict[str, Term]:
        """The terms by name."""
        return {term.name: term for term in self.terms}

    @property
    def order(self) -> float:
        """A sort key, longest time first; times equal to three digits have equal keys."""
        return -float(f"{self.latency_ms:.3g}")


Change = tuple[str, str, Graph | Device]
"""(kind of a change, its description, the changed network or the device in another mode)."""


@dataclass(frozen=True)
class Counterfactual:
    """The latency predicted after a change of the network or its execution.

    `kind`, `change`: the Change's kind and description. `of_block`: the saving as a share of the explained
    block's time; None without an explained block, or if the host takes longer than the device.
    `becomes_host_bound`: True if the host takes longer than the device only after the change.
    """

    kind: str
    change: str
    latency_ms: float
    interval_ms: tuple[float, float] | None
    saves_ms: float
    of_block: float | None
    of_network: float
    in_domain: bool | None
    becomes_host_bound: bool


@dataclass(frozen=True, repr=False)
class Explanation(Result):
    """A prediction with its attributions, and the changes that save time, the largest saving first.

    If a network is explained, `blocks` has an attribution for each block and `operations` is empty. If a
    block is explained, `blocks` has its attribution alone, and `operations` one for each of its operations.
    `counterfactuals`: the prediction after each change. `has_one_size`: the network cannot be read with
    images of half the size. `part`: the asked part of the block, if not all of it was asked for. `frame()`
    has a row for each cause, `changes()` one for each change.
    """

    KEYS = (
        *nested("prediction", "state", "network", "batch_size", "predictor", "latency_ms", "interval_ms"),
        *nested("prediction", "coverage", "in_domain", "device", "profile", "precision"), "warnings",
        "prediction.call_ms", "terms=total.by_term", "block", "blocks", "operations", "counterfactuals",
    )  # fmt: skip

    prediction: Prediction
    total: Attribution
    blocks: tuple[Attribution, ...]
    operations: tuple[Attribution, ...]
    counterfactuals: tuple[Counterfactual, ...]
    has_one_size: bool = False
    part: str = ""

    @property
    def has_other_runtimes(self) -> bool:
        """True if a change runs the network in another framework, by a profile of the same processor."""
        device = self.prediction.query.device
        return bool(other_runtimes(device.file, device.source))

    @property
    def modes_to_learn(self) -> list[str]:
        """The options of `lolat learn` for modes of PyTorch in which this CPU could be measured too."""
        query = self.prediction.query
        device, where = query.device, query.device.file.environment
        if not (device.file.is_cpu and where.is_learned and where.framework == "torch"):
            return []
        return [
            f"--{kind.replace('_', '-')}"
            for kind, _, change in _modes_of(device, query.graph)
            if _measured_so(device, replace(device.file.mode, **change)) is None
        ]

    @property
    def block(self) -> str | None:
        """The name of the explained block; None for a whole network."""
        return self.blocks[0].name if self.operations else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on a part of a block, counts at another width, and networks that take one image size."""
        widened = any(c.kind.endswith("width") for c in self.counterfactuals)
        whole = [
            f"{self.part} is a part of the block {self.blocks[0].named.label}, which is explained"
        ]
        return (
            *whole * bool(self.part),
            *[NOTE] * widened,
            *([ONE_SIZE] if self.has_one_size else []),
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the prediction, then `notes`."""
        return (*self.prediction.warnings, *self.notes)

    def changes(self) -> Any:
        """The changes as a pandas DataFrame; `frame` has the causes."""
        return self._shown().changes(self)

    def words(self) -> str:
        """The prediction, and the change with the largest saving."""
        change = "nothing that LoLat knows to try saves time"
        for best in self.counterfactuals[:1]:
            ends = best.interval_ms
            sure = "" if ends is None else f" ({' .. '.join(map(milliseconds, ends))})"
            saves = f"{milliseconds(best.saves_ms)}, {percent(best.of_network)}"
            change = f"{best.change}: saves {saves}; then {milliseconds(best.latency_ms)}{sure}"
        return f"{self.prediction.words()}\n{change}"


@dataclass(frozen=True, repr=False)
class Explanations(Several):
    """Explanations at several batch sizes, as a sequence."""

    answers: tuple[Explanation, ...]


def explain(
    device: Device,
    network: Graph | Analysis,
    question: Question = DEFAULT,
    at_size: AtSize | None = None,
    block: str | None = None,
) -> Explanation:
    """Attribute the time of a network to its blocks and terms, and predict changes that save time.

    `at_size` reads the network at another resolution; None if it has only one. `block`: the only block to
    explain, operation by operation; see `find_blocks`. InputError as in `Model.predict`, and for an unknown
    block.
    """
    analysis = analyze(network)
    positions = None if block is None else find_blocks(analysis, block)
    now = predict(device, analysis, question)
    device = now.query.device  # in the network's own precision
    formula = device.predictor(now.predictor)
    counts = formula.counts_of(analysis, now.batch_size)
    of_blocks = np.zeros((len(analysis.blocks), counts.shape[1]), counts.dtype)
    np.add.at(of_blocks, analysis.owner, counts)
    total = _attribution(
        now, BlockName(now.network), counts.sum(axis=0), now.block_terms.sum(axis=0)
    )
    blocks = tuple(map(partial(_attribution, now), now.names, of_blocks, now.block_terms))
    if positions is None:
        side = image_side(analysis.graph)
        smaller = _at_half(side, at_size)
        of_network = _changes_of_network(analysis, blocks, smaller)
        own = (*_changes_of_mode(device, now), *_changes_of_runtime(device, now))
        worthwhile = _worthwhile(device, now, [*own, *of_network])
        has_one_size = smaller is None and takes_images(analysis.graph)
        return Explanation(now, total, blocks, (), worthwhile, has_one_size)
    terms = formula.of_operations(analysis, now.batch_size)
    inside = sorted(p for position in positions for p in analysis.blocks[position].operations)
    operations = analysis.graph.operations
    parts = tuple(
        _attribution(
            now, BlockName(operations[p].full_name), counts[p], terms[p], operations[p].kind
        )
        for p in inside
    )
    changes = _changes_of_block(analysis.graph, inside)
    explained = blocks[positions[0]]
    if len(positions) > 1:
        summed = of_blocks[positions].sum(axis=0), now.block_terms[positions].sum(axis=0)
        explained = _attribution(now, BlockName(str(block)), *summed)
    worthwhile = _worthwhile(device, now, changes, explained.latency_ms)
    part = "" if block in (explained.name, explained.named.label) else str(block)
    return Explanation(now, total, (explained,), parts, worthwhile, part=part)


def _attribution(
    prediction: Prediction,
    named: BlockName,
    counts: np.ndarray,
    terms: np.ndarray,
    kind: str | UnsetType = UNSET,
) -> Attribution:
    """An Attribution from counts, (COLUMNS,), and times of the formula's terms in ms, (features,)."""
    latency = float(terms.sum())
    numbers = prediction.query.device.predictor(prediction.predictor).units(counts)
    lines = tuple(
        Term(f, int(n), float(ms) / int(n) if n else 0.0, float(ms))
        for f, n, ms in zip(prediction.features, numbers, terms, strict=True)
    )
    return Attribution(named, latency, latency / (prediction.latency_ms or 1.0), lines, kind)


def find_blocks(analysis: Analysis, name: str) -> list[int]:
    """The position of a block, found by its label, its full name or a module in it; the positions of the
    blocks that a module consists of. InputError if there is no such block or module, or if several blocks
    have operations of the module and others.
    """
    labels, names = [b.label for b in analysis.blocks], [str(b.name) for b in analysis.blocks]
    for known in (labels, names):
        if name in known:
            return [known.index(name)]
    operations, dotted = analysis.graph.operations, name.replace("/", ".")

    def is_in(operation: Operation) -> bool:
        return f"{operation.full_name}.".replace("/", ".").startswith(f"{dotted}.")

    holds = [[is_in(operations[p]) for p in b.operations] for b in analysis.blocks]
    within = [i for i, of_block in enumerate(holds) if any(of_block)]
    if name and (len(within) == 1 or (within and all(all(holds[i]) for i in within))):
        return within
    hint = f"its operations are in {', '.join(labels[i] for i in within)}"
    if not within or not name:
        some = f"expected one of {', '.join(labels)}"
        hint = did_you_mean(name, {label: label for label in labels}, some)
    raise InputError(
        f"{arg('block')} {name!r} is no block of {analysis.graph.name!r}; {hint}", code="block"
    )


# ---- Changes that make a block or a network faster


def _worthwhile(
    device: Device, now: Prediction, changes: Iterable[Change], block_ms: float | None = None
) -> tuple[Counterfactual, ...]:
    """The changes that save enough time, the largest saving first; `block_ms`: the explained block's ms."""
    worthwhile = []
    for kind, words, changed in changes:
        asked, graph = (
            (device, changed) if isinstance(changed, Graph) else (changed, now.query.graph)
        )
        new = predict(asked, graph, Question(now.batch_size, now.predictor))
        saves = now.latency_ms - new.latency_ms
        if saves > SMALLEST_SAVING * (now.latency_ms if block_ms is None else block_ms):
            # A host that starts fewer operations saves more than the device takes for them.
            of_block = None if block_ms is None or now.host_bound else saves / block_ms
            worthwhile.append(
                Counterfactual(
                    kind, words, new.latency_ms, new.interval_ms, saves, of_block,
                    saves / now.latency_ms, new.in_domain, bool(new.host_bound) and not now.host_bound,
                )
            )  # fmt: skip
    return tuple(sorted(worthwhile, key=lambda c: -c.saves_ms))


def _changes_of_mode(device: Device, now: Prediction) -> Iterator[Change]:
    """The unchanged network in other execution modes of the device."""
    if now.host_ms and now.launch != GRAPH:
        words = (
            "torch.compile with CUDA graphs, which starts its operations at once (--launch graph)"
        )
        with suppress(InputError):
            yield ("launch", words, device.run_as(None, GRAPH))
    mode, graph = device.file.mode, now.query.graph
    for kind, words, change in _modes_of(device, graph):
        wanted, run = replace(mode, **change), RunAs(**change)
        if kind == "compile" and device.file.product == UNKNOWN:  # it may be a CPU
            continue
        if (its := _measured_so(device, wanted)) and device.file.other_form is None:
            if device.asked.host_us is not None:
                its = its.run_as(host_us=device.asked.host_us)
            yield (kind, f"{words} (as {its.profile})", its)
        else:
            with suppress(InputError):
                its = as_written(run.device(device), graph)
                yield (kind, f"{words} ({run.options.strip()})", its)
    halves = [d for d in in_precisions(device, (AMP, *sorted(HALVES))) if d is not device]
    asked = Question(now.batch_size, now.predictor)
    if halves and mode.dtype not in (FLOAT16, BFLOAT16):
        fastest = min(halves, key=lambda one: predict(one, graph, asked).latency_ms)
        what = "weights in half precision too" if mode.dtype == AMP else "in half precision"
        words = f"{what} (--precision {fastest.asked.precision})"
        yield ("precision", words, fastest)


def _modes_of(device: Device, graph: Graph) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (kind, words, what changes) of the other modes of PyTorch that may suit a network."""
    mode = device.file.mode
    for kind, words, change in (
        ("compile", "fused by torch.compile", {"launch": COMPILED}),
        ("channels_last", "images and weights in channels_last", {"channels_last": True}),
    ):
        if replace(mode, **change) == mode or mode.fused:
            continue
        if kind != "channels_last" or has_images(graph):
            yield kind, words, change


def _measured_so(device: Device, mode: Mode) -> Device | None:
    """The device by a profile measured in a mode, preferably one of the user's; None if there is none."""
    each = (measured_in(device, mode.__eq__, origin) for origin in (LOCAL, SHIPPED))
    return next(filter(None, each), None)


def _changes_of_runtime(device: Device, now: Prediction) -> Iterator[Change]:
    """The unchanged network in the framework whose profile of this processor predicts the shortest time."""
    found = []
    for path, file in other_runtimes(device.file, device.source):
        other = with_file(device, file, str(path), path.stem)
        with suppress(InputError):  # it lacks the formula, or cannot run the network
            new = predict(other, now.query.graph, Question(now.batch_size, now.predictor))
            found.append((new.latency_ms, other))
    if found:
        _, fastest = min(found, key=lambda one: one[0])
        title = FRAMEWORK_TITLES[fastest.file.environment.framework or ""]
        yield ("runtime", f"run by {title} (as {fastest.profile})", fastest)


def _at_half(side: int | None, at_size: AtSize | None) -> Graph | None:
    """The network for images of half the side; None if it has no images or cannot be read at that size."""
    if at_size is None or side is None or side < 2:
        return None
    with suppress(InputError):
        return at_size(side // 2)
    return None


def _changes_of_network(
    analysis: Analysis, blocks: Sequence[Attribution], smaller: Graph | None
) -> Iterator[Change]:
    """Yield each change of the whole network that its graph allows.

    The changes are half the width, the removal of the longest block that can go, half the resolution, and
    the changes of `_changes_of_operations`.
    """
    graph = analysis.graph
    if widths(graph).scalable:
        words = f"width x{NARROWER:g}: every channel count, in multiples of 8"
        yield ("width", words, widths(graph).at(NARROWER))
    for position in sorted(range(len(blocks)), key=lambda i: blocks[i].order):
        block = analysis.blocks[position]
        # A last norm of the block may be outside of its module, and stays.
        own = [p for p in block.operations if is_inside(graph.operations[p].full_name, block.label)]
        if changed := edits.bypassed(graph, own or block.operations):
            rest = {*block.operations}.difference(own or block.operations)
            is_part = any(graph.operations[p].kind in COMPUTE for p in rest)
            what = f"the module {block.label} alone" if is_part else block.label
            words = f"drop {what} (input and output shapes match)"
            yield ("drop", words, changed)
            break
    if smaller is not None:
        words = f"an input of {image_side(smaller)} px instead of {image_side(graph)}"
        yield ("resolution", words, smaller)
    yield from _changes_of_operations(graph, range(len(graph.operations)))


def _changes_of_operations(graph: Graph, positions: Sequence[int]) -> Iterator[Change]:
    """Cheaper convolutions, folded batch norms, and fused or fewer attention heads at `positions`."""

    def kernels(able: Callable[[Operation], bool]) -> str:
        found = (o for o in (graph.operations[p] for p in positions) if able(o))
        return " and ".join(sorted({"x".join(map(str, o.attributes["kernel"])) for o in found}))

    if changed := edits.separated(graph, positions):
        words = f"depthwise-separable instead of full {kernels(edits.is_separable)} convolutions"
        yield ("separable", words, changed)
    if changed := edits.with_small_kernels(graph, positions):
        words = f"kernels of {edits.SMALL} in place of {kernels(edits.has_large_kernel)}"
        yield ("kernel", words, changed)
    if changed := edits.folded(graph, positions):
        words = "batch normalization folded into the layers before it"
        yield ("fold", words, changed)
    if changed := edits.with_fused_attention(graph, positions):
        yield ("attention", "attention fused (F.scaled_dot_product_attention)", changed)
    if changed := edits.with_fewer_heads(graph, positions):
        yield ("heads", "attention with half the heads, each twice as wide", changed)


def _changes_of_block(graph: Graph, positions: Sequence[int]) -> Iterator[Change]:
    """Changes of one block, as far as possible.

    These are its removal, half the width inside it, and the changes of `_changes_of_operations`.
    """
    if changed := edits.bypassed(graph, positions):
        words = "drop this block (input and output shapes match)"
        yield ("drop", words, changed)
    yield from _changes_of_operations(graph, positions)
    inside = Widths(graph, positions)
    pairs = [(before, after) for before, after in inside.pairs(NARROWER)[::-1] if after < before]
    if pairs:
        channels = ", ".join(f"{before} -> {after}" for before, after in pairs)
        yield ("inner_width", f"width x{NARROWER:g} inside ({channels})", inside.at(NARROWER))
