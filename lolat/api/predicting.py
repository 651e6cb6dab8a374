"""Predicts one or several networks, batch sizes and devices at once."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from lolat.device.fastest import faster_precision, in_fastest, remedy_words
from lolat.device.limits import NO_LIMITS, Limits, end_ms
from lolat.device.predicting import predict
from lolat.device.prediction import Prediction
from lolat.device.question import (
    LatencyQuestion,
    Question,
    ask_each,
    by_name,
    is_one,
    no_device,
    sizes_of,
)  # fmt: skip
from lolat.device.ranking import cheapest as cheapest_of
from lolat.device.ranking import fastest as fastest_of
from lolat.device.ranking import sample_ms
from lolat.device.summary import not_alike
from lolat.errors import InputError, LolatError, MissingPackageError, NetworkError, arg
from lolat.graph import Graph
from lolat.graph.analysis import Analysis
from lolat.graph.modes import EAGER
from lolat.hardware.prices import Prices, price_list
from lolat.io.results import Several
from lolat.io.writing import check_file
from lolat.parameters import BEST, InputSize
from lolat.units import digits, milliseconds, percent, plain, plural, shortened

if TYPE_CHECKING:
    from lolat.api.model import Model


@dataclass(frozen=True, repr=False)
class Predictions(Several):
    """Predictions of several networks, batch sizes or devices: a sequence of them.

    `failures`: network -> reason why it could not be read; `left_out`: device -> reason why it could not
    answer; `in_fastest`: True if no precision was asked for and each device answers in its fastest
    precision.
    """

    KEYS = ("answers", "failures", "left_out")

    answers: tuple[Prediction, ...]
    errors: Mapping[str, LolatError] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    in_fastest: bool = False

    @property
    def failures(self) -> dict[str, str]:
        """Network -> the reason why it could not be read."""
        return {network: str(error) for network, error in self.errors.items()}

    @property
    def fastest(self) -> Prediction | None:
        """The prediction with the shortest time per sample, among predictions that fit into memory.

        None if precisions or launches differ, or assumed hosts decide. InputError for several networks.
        """
        return fastest_of(self._of_one_network("fastest"))

    @property
    def cheapest(self) -> Prediction | None:
        """The prediction with the lowest price per sample; None without prices, or if precisions differ.

        InputError for several networks.
        """
        return cheapest_of(self._of_one_network("cheapest"))

    def _of_one_network(self, what: str) -> tuple[Prediction, ...]:
        """The answers, if all are of one network; else InputError, with the code to write instead."""
        networks = [*dict.fromkeys(p.network for p in self.answers)]
        if len(networks) > 1:
            own = f"found.filter(lambda p: p.network == {plain(networks[0])!r}).{what}"
            raise InputError(f"{what}: {len(networks)} networks; expected one, such as {own}")
        return self.answers

    def words(self) -> str:
        """The number of predictions, the shortest and longest time, and the devices without an answer."""
        from lolat.report.prediction import precision_lines
        from lolat.report.ranked import assumed_hosts, left_out_lines, not_compared

        if len(self.answers) == 1 and not (self.failures or self.left_out):
            return self.answers[0].words()
        times = sorted(p.latency_ms for p in self.answers)
        ends = " to ".join(dict.fromkeys(milliseconds(ms) for ms in (*times[:1], *times[-1:])))
        lost = [f"{name} could not be read: {why}" for name, why in self.failures.items()]
        lost += left_out_lines(self.left_out)
        differ = not_alike(p.query.device for p in self.answers)
        networks = {plain(p.query.network) for p in self.answers}
        devices = {plain(p.device) for p in self.answers}
        words = plural(len(times), "prediction")
        if times:
            precisions = ", ".join(dict.fromkeys(p.precision for p in self.answers))
            how = "each in its fastest precision, " if self.in_fastest else "in "
            words += (
                f" of {_name_or_count(networks, 'network')} on {_name_or_count(devices, 'device')}"
            )
            words += f", {how}{precisions}: {ends}"
        if not_fit := sum(p.fits is False for p in self.answers):
            words += f", {not_fit} of which {'does' if not_fit == 1 else 'do'} not fit into memory"
        slow = precision_lines(self.answers) if times else ()
        remarks = differ, not_compared(self.answers), assumed_hosts(self.answers)
        return "\n".join(filter(None, ["; ".join([words, *slow, *lost]), *remarks]))

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Write a self-contained HTML page with a chart, the table and its notes.

        InputError if it cannot be written.
        """
        check_file(path, "path")
        self._shown().write_comparison(self, path)


def _name_or_count(names: Collection[str], kind: str) -> str:
    """The name if there is only one, else the number of names."""
    return next(iter(names)) if len(names) == 1 else plural(len(names), kind)


def predict_all(
    models: Sequence[Model],
    networks: Sequence[Any] | Mapping[str, Any],
    batch_sizes: Sequence[int | str],
    question: LatencyQuestion,
    left_out: Mapping[str, str] | None = None,
    ranked: bool = False,
) -> Predictions:
    """Predict each network at each batch size on each device, in this order.

    `models`: the devices, in the execution mode asked for; different GPUs answer in their fastest
    precisions if no precision is asked for. `networks`: a sequence, or a mapping from names. `left_out`:
    device -> reason why it cannot answer. `ranked`: the fastest device comes first, and GPUs run eager if
    no launch is asked for: "all" sets neither order nor launches. A network is read once; if it cannot be
    read it is in `errors`. Without `prices` in the question the prices are those of `lolat prices`.
    InputError for an unknown predictor or an impossible coverage, before any network is read.
    """
    for model in models:
        question.check(model)
    prices = question.prices
    finds_best = question.precision is None and (
        ranked or (bool(models[1:]) and _are_cards(models))
    )
    lost = dict(left_out or {})
    listed = None if prices is None else price_list(prices)
    answers: list[Prediction] = []
    errors: dict[str, LolatError] = {}
    graphs: dict[str | int, Graph | Analysis] = {}
    is_eager = ranked and question.launch is None
    each_model = {n: _eager(m) if is_eager else m for n, m in by_name(models).items()}
    named = networks.items() if isinstance(networks, Mapping) else zip(repeat(""), networks)
    for number, (name, network) in enumerate(named, 1):
        key = name or (network if isinstance(network, str) else id(network))
        try:
            if key not in graphs:
                read = read_network(network, question.input_size)
                graphs[key] = read if key is network else _called(read, name, graphs)
            graph = graphs[key]
        except (NetworkError, MissingPackageError) as error:
            which = f" (network {number} of {len(networks)})" if len(networks) > 1 else ""
            own = f"a {type(network).__name__}{which}"
            errors[own if key == id(network) else str(key)] = error
            continue
        for batch_size in batch_sizes:
            seen = set[str]()
            asked = replace(question, batch_size=batch_size)
            to_device = partial(_predict, network=graph, question=asked, finds_best=finds_best)
            each = ask_each(each_model, to_device, lost).values()
            for one in sorted(each, key=sample_ms) if ranked else each:
                p = one.named(network, question.input_size, name)
                is_best = finds_best or question.precision == BEST
                if is_best:
                    if p.row_name in seen:
                        continue  # two profiles of one GPU, the faster one first
                    seen.add(p.row_name)
                answers.append(p if listed is None else priced(p, listed))
    if not answers and not errors:
        raise no_device(lost)
    in_fastest = finds_best and all(model.asked.precision is None for model in models)
    return Predictions(tuple(answers), errors, lost, in_fastest)


def ask(
    network: Any,
    question: LatencyQuestion,
    models: Sequence[Model],
    left_out: Mapping[str, str] | None = None,
    is_single: bool = True,
    ranked: bool = False,
) -> Any:
    """Ask devices for predictions; see `predict_all`.

    Returns a `Prediction` for one network and batch size, neither in a list, if `is_single`; else
    `Predictions`.
    """
    question.check_largest()
    is_named = isinstance(network, dict) and "model_type" not in network  # no language model
    networks = network if is_named or isinstance(network, list) else [network]
    if not networks:
        raise InputError(
            f"{arg('network')} {network}: expected a network, or several in a list", code="network"
        )
    for name in networks if is_named else ():
        if not (isinstance(name, str) and name.strip()):
            raise InputError(
                f"{arg('network')}: {name!r} as a name; expected text: {{'narrow': network}}",
                code="network",
            )
    found = predict_all(models, networks, sizes_of(question), question, left_out, ranked)
    if found.errors and not found.answers:
        raise next(iter(found.errors.values()))
    is_single = is_single and networks is not network and is_one(question.batch_size)
    return found[0] if is_single else found


def _predict(
    model: Model, network: Graph | Analysis, question: LatencyQuestion, finds_best: bool
) -> Prediction:
    """The prediction of a device, in its fastest precision if `precision` is BEST.

    `finds_best`: use the fastest precision also if the device was not asked for any precision.
    """
    is_best = question.precision == BEST or (finds_best and model.asked.precision is None)
    return (in_fastest if is_best else predict)(model, network, question)


def _are_cards(models: Sequence[Model]) -> bool:
    """True for several devices that all differ in card or launch; False if two differ only in precision."""
    return len({(model.file.kind, model.asked.launch) for model in models}) == len(models)


def read_network(network: Any, input_size: InputSize) -> Graph | Analysis:
    """Read a network into a graph; a graph, or its analysis, stays as it is."""
    if isinstance(network, (Graph, Analysis)) and input_size is None:
        return network
    from lolat.readers import read  # late: a network that was read needs none

    try:
        return read(network.graph if isinstance(network, Analysis) else network, input_size)
    except NetworkError as error:
        from lolat.llm.names import is_decoder

        if error.code != "unknown-network" or not is_decoder(network):
            raise
        words = (
            "a language model; `lolat llm` answers for its serving, `lolat cost` for its training, and for "
            "one pass as a network give transformers:config.json"
        )
        raise error.reworded(f"no network {shortened(str(network))!r}: {words}") from error


def _called(
    network: Graph | Analysis, name: str, others: Mapping[str | int, Graph | Analysis]
) -> Graph | Analysis:
    """The graph under the name that the user gave it.

    An object without such a name keeps the network's own name, with a number if another object has it:
    "Sequential 2".

    `others`: the networks so far: by text if they were given as one, objects by number.
    """
    graph = _graph(network)
    taken = {_graph(other).name for key, other in others.items() if isinstance(key, int)}
    names = chain([graph.name], (f"{graph.name} {number}" for number in count(2)))
    name = name or next(name for name in names if name not in taken)
    return network if graph.name == name else msgspec.structs.replace(graph, name=name)


def _graph(network: Graph | Analysis) -> Graph:
    return network.graph if isinstance(network, Analysis) else network


def _eager(model: Model) -> Model:
    """A GPU in eager mode; any other device unchanged."""
    return model.run_as(launch=EAGER) if model.file.kernels and model.file.mode.fused else model


def priced(prediction: Prediction, listed: Prices) -> Prediction:
    """The prediction with the prices of a given list, and a remark if the device is not in the list."""
    found = replace(prediction, prices=listed)
    if found.price_per_hour is not None:
        return found
    remark = f"no price of {plain(found.device)} in {listed.prices}"
    return replace(found, warnings=(*found.warnings, remark))


MOST_TRIED = 4096
"""The largest batch size that is tried if a smaller one computes too few samples per second."""


def _larger(prediction: Prediction, limits: Limits) -> Prediction | None:
    """The prediction at the first batch size that keeps the limits, by doubling; None without one."""
    query, size = prediction.query, prediction.batch_size
    while (size := 2 * size) <= MOST_TRIED:
        asked = Question(size, prediction.predictor, query.coverage)
        found = predict(query.device, query.graph, asked)
        if found.fits is False:
            return None
        if end_ms(found, limits.sure) <= limits.longest_ms(size):
            return found
    return None


def _remedy(prediction: Prediction, limits: Limits) -> str:
    """The remedy for a missed rate: the fastest precision; a larger batch or more devices that keep it."""

    def rate(p: Prediction) -> str:
        return digits(1e3 * p.batch_size / end_ms(p, limits.sure))

    words, better = "", faster_precision(prediction)
    if better:
        words = f"; {remedy_words(better, f'it computes {rate(better)}')}"
    larger = _larger(prediction, limits)
    if larger is None and better and limits.kept(better) == "no":
        larger = _larger(better, limits)
    if larger:
        of = f" in {larger.precision}" if larger.precision != prediction.precision else ""
        words += f"; with {arg('batch_size')} {larger.batch_size}{of} it computes {rate(larger)}"
    fastest = better or prediction
    number = limits.devices_needed(fastest)
    if number is not None and larger is None and limits.kept(fastest) == "no":
        words += (
            f"; {number} such devices compute as many{f' in {better.precision}' if better else ''}"
        )
    return words


def _other_limit(prediction: Prediction, limits: Limits) -> str:
    """The missed limit besides the one that asks for the shorter time; "" if there is no other."""
    ms, most, least = end_ms(prediction, limits.sure), limits.max_ms, limits.min_samples_per_s
    rate = 1e3 * prediction.batch_size / ms
    if most is None or least is None or ms <= most or rate >= least:
        return ""
    if limits.longest_ms(prediction.batch_size) == most:
        few = f"{digits(rate)} samples/s, fewer than the {least:g} of {arg('min_samples_per_s')}"
        return f" and, with {few}"
    return f" and, with {milliseconds(ms)}, longer than the {most:g} ms of {arg('max_ms')}"


def kept_by_none(
    predictions: Sequence[Prediction], limits: Limits, by_size: bool = True
) -> Sequence[Prediction]:
    """The predictions of networks for which no device keeps the limits, the nearest to them first.

    `by_size`: each batch size is judged alone. InputError if a sure one has no interval.
    """
    groups: dict[tuple[str, int], list[Prediction]] = {}
    for p in predictions:
        groups.setdefault((p.query.network, p.batch_size if by_size else 0), []).append(p)
    found = [p for its in groups.values() if not any(map(limits.are_kept, its)) for p in its]
    return sorted(
        found,
        key=lambda p: (p.fits is False, end_ms(p, limits.sure) / limits.longest_ms(p.batch_size)),
    )


def exceeded(predictions: Collection[Prediction], limits: Limits = NO_LIMITS) -> list[str]:
    """A line for each prediction that exceeds a limit; without limits, if no prediction fits into memory.

    The first line has a remedy. InputError if a limit must be kept surely and a prediction has no interval.
    """
    from lolat.report.ranked import device_words

    sure, lines = limits.sure, []
    none_fits = {*map(attrgetter("fits"), predictions)} == {False}
    for prediction in predictions if limits != NO_LIMITS or none_fits else ():
        on = f" on {device_words(prediction)}"  # as in the table
        longest = limits.longest_ms(prediction.batch_size)
        if prediction.fits is False:
            lines.append(f"{prediction.title}{on} does not fit into its memory")
        elif (most_ms := end_ms(prediction, sure)) > longest:
            surely, ratio = percent(prediction.coverage or 0.0), most_ms / longest
            end = f" (upper end of the {surely} interval)" * sure
            if longest != limits.max_ms:
                least = digits(1e3 * prediction.batch_size / most_ms)
                lines.append(
                    f"{prediction.title}{on} {'may compute' if sure else 'computes'} {least} samples/s"
                    f"{end}, fewer than the {limits.min_samples_per_s:g} of {arg('min_samples_per_s')}"
                    f"{_other_limit(prediction, limits)}{'' if lines else _remedy(prediction, limits)}"
                )
                continue
            over = f"{percent(ratio - 1.0)} more than" if ratio < 2.0 else f"{digits(ratio)} times"
            time = f" (predicted: {milliseconds(prediction.latency_ms)})" * sure
            better = None if lines else faster_precision(prediction)
            remedy = "`lolat report` says where the time goes"
            if better is not None:
                remedy = remedy_words(better, f"it takes {milliseconds(end_ms(better, sure))}")
            lines.append(
                f"{prediction.title}{on} {'may take' if sure else 'takes'} {milliseconds(most_ms)}{end}, "
                f"{over} the {longest:g} ms of {arg('max_ms')}{time}{_other_limit(prediction, limits)}; "
                f"{remedy}"
            )
    return lines
