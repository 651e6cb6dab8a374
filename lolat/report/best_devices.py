"""Sentences on the fastest and the cheapest of several devices, also in other layouts and launches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import inf

from lolat.device.fastest import in_better_modes, in_mode, in_other_modes
from lolat.device.limits import NO_LIMITS, Limits
from lolat.device.prediction import Prediction
from lolat.device.ranking import (
    by_assumed_host,
    compared,
    fastest,
    fastest_launches,
    hosts_decide,
    sample_ms,
)
from lolat.device.summary import not_alike
from lolat.report.ranked import MOST_NAMES, apart_words, device_words, few, groups_of, rated
from lolat.units import digits, milliseconds, plain


def compares(predictions: Iterable[Prediction]) -> bool:
    """True if the predictions are of several devices."""
    return len({p.row_name for p in predictions}) > 1


def has_prices(predictions: Sequence[Prediction]) -> bool:
    """True if prices are shown: if asked for, or for several devices that are not all CPUs, which have one
    price for all.
    """
    return any(p.prices for p in predictions) or (compares(predictions) and _has_gpu(predictions))


def _has_gpu(predictions: Iterable[Prediction]) -> bool:
    """True if one of the devices is a GPU."""
    return not all(p.query.device.file.is_cpu for p in predictions)


def told_modes(predictions: Sequence[Prediction]) -> InModes:
    """The predictions in other modes (`in_other_modes`); {} if a device has several predictions."""
    return {} if _are_several(predictions) else in_other_modes(predictions)


def _are_several(predictions: Sequence[Prediction]) -> bool:
    """True for a device with several networks or batch sizes."""
    return len({device_words(p) for p in predictions}) < len(predictions)


def best_lines(predictions: Sequence[Prediction], limits: Limits = NO_LIMITS) -> Iterator[str]:
    """Sentences on the fastest and, with prices, the cheapest device; with limits also on the lowest price
    an hour. None for different precisions or launches, which are not compared.
    """
    if not_alike(p.query.device for p in predictions):
        return
    predictions = compared(predictions)
    others = told_modes(predictions)
    yield from fastest_lines(predictions, others, limits)
    if _are_several(predictions) and compares(predictions) and _has_gpu(predictions):
        yield "Faster modes, such as --launch compiled, are named for one network at one batch size"
    if not has_prices(predictions):
        return
    cheapest = [*cheapest_lines(predictions, limits, others)]
    best = cheapest, [*_lowest_rent(predictions, limits)]
    for lines in best if limits.min_samples_per_s is None else reversed(best):
        yield from lines


InModes = Mapping[str, Sequence[Prediction]]
"""Option of an execution mode -> the predictions in this mode; see `in_other_modes`."""


def fastest_lines(
    predictions: Sequence[Prediction],
    in_modes: InModes | None = None,
    limits: Limits = NO_LIMITS,
) -> Iterator[str]:
    """A sentence on the fastest device for each network and batch size, or that assumed hosts decide it.
    Sizes with the same device share a sentence. Lines below name the fastest in clearly faster modes. With
    limits the fastest is one that keeps them. Devices with batch sizes of their own are compared by their
    samples a second.
    """
    if len({p.batch_size for p in predictions}) > 1 and not _are_several(predictions):
        yield from _most_samples(predictions, limits)
        return

    def grouped(each: Iterable[Prediction]) -> dict[tuple[str, int], list[Prediction]]:
        return groups_of(p for p in each if p.fits is not False and _keeps(limits, p))

    groups = grouped(predictions)
    within = f" {limits.words}" if limits else ""
    able = groups_of(p for p in predictions if p.fits is not False)
    compared_at = {key for key, its in able.items() if compares(its)}
    others = {option: grouped(each) for option, each in (in_modes or {}).items()}
    networks, sizes = ({key[n] for key in able} for n in (0, 1))
    found = dict[tuple[str, str, str, str], dict[int, str]]()
    for key, its in groups.items():
        of = f" for {key[0]}" if len(networks) > 1 else ""
        if key not in compared_at:
            continue
        if (own := fastest(its)) is None:
            found.setdefault(("", of, _undecided(its), ""), {})[key[1]] = ""
            continue
        each_best = ((name, fastest(groups_in.get(key, []))) for name, groups_in in others.items())
        modes_best = [(name, one) for name, one in each_best if one]
        better = in_better_modes(modes_best, lambda one: one[1].latency_ms, own.latency_ms)
        for option, first in (("", own), *better):
            best, each = device_words(first), others[option][key] if option else its
            alike = apart_words(best, {device_words(p): rated(p) for p in each}, "; ")
            found.setdefault((option, of, best, alike), {})[key[1]] = milliseconds(first.latency_ms)
    for (option, of, best, alike), ms in found.items():
        at = f" at batch {', '.join(map(str, ms))}" if len(sizes) > 1 else ""
        words = f"{', '.join(filter(None, [best, *ms.values()]))}{alike}"
        yield f"Fastest{f' with {option}' if option else ''}{within}{at}{of}: {words}"


def _most_samples(predictions: Sequence[Prediction], limits: Limits) -> Iterator[str]:
    """A sentence on the device that computes the most samples a second; each has one prediction."""
    able = {
        f"{device_words(p)} at batch {p.batch_size}": p
        for p in predictions
        if p.fits is not False and _keeps(limits, p)
    }
    if len(able) < 2 or hosts_decide([*able.values()]):
        return
    best = min(able, key=lambda name: sample_ms(able[name]))
    alike = apart_words(best, {n: rated(p, 1.0 / p.batch_size) for n, p in able.items()}, "; ")
    within = " within the limits" if limits else ""
    yield f"Most samples/s{within}: {best}, {digits(able[best].samples_per_s or 0.0)}{alike}"


def _keeps(limits: Limits, prediction: Prediction) -> bool:
    """True if the prediction keeps the limits, at least likely; always without limits."""
    return not limits or limits.kept(prediction) in ("yes", "likely")


def _undecided(predictions: Sequence[Prediction]) -> str:
    """Words that assumed hosts decide which device is the fastest: the host-bound devices, and the fastest
    with CUDA graphs.
    """
    bound = [device_words(p) for p in fastest_launches(predictions) if by_assumed_host(p)]
    are = f"{few(bound)} {'is' if len(bound) == 1 else 'are'} host-bound"
    others = in_mode(predictions, "--launch graph")
    if (best := fastest(others)) is None or len(others) < len(predictions):
        return f"not decided, as {are}"
    return f"not decided, as {are} (--launch graph: {plain(best.device)}, {milliseconds(best.latency_ms)})"


def cheapest_lines(
    predictions: Sequence[Prediction],
    limits: Limits = NO_LIMITS,
    in_modes: InModes | None = None,
) -> Iterator[str]:
    """A sentence on the cheapest device for each network and batch size; sizes with the same device share
    it.

    With limits, or if devices have different sizes (auto), the sentence is on the cheapest device and size
    for each network. Lines below name the cheapest in other modes if these are clearly cheaper.
    """
    networks = dict.fromkeys(plain(p.query.network) for p in predictions)
    sizes = {p.batch_size: None for p in predictions}
    devices = {device_words(p) for p in predictions}
    has_all = len(networks) * len(sizes) * len(devices) == len(predictions)
    by_size = len(sizes) > 1 and len(devices) > 1 and has_all and not limits
    at = "" if len(sizes) == 1 else " at batch {}"
    found = dict[tuple[str, str, str, str], dict[int | None, str]]()
    for network, size in product(networks, sizes if by_size else [None]):
        priced = [
            (
                option,
                {
                    device_words(p) + at.format(p.batch_size) * (size is None): p
                    for p in each
                    if p.dollars_per_million is not None
                    and (plain(p.query.network), size or p.batch_size) == (network, p.batch_size)
                    and _keeps(limits, p)
                },
            )
            for option, each in ({"": predictions} | dict(in_modes or {})).items()
        ]
        better = in_better_modes(priced[1:], _least_dollars, _least_dollars(priced[0]))
        for option, each in (priced[0], *better):
            if each:
                best, price, alike = _cheapest_words(each)
                of = f" for {network}" if len(networks) > 1 else ""
                found.setdefault((option, of, best, alike), {})[size] = price
    no_price = {device_words(p): None for p in predictions if p.price_per_hour is None}
    without = f"; no price of {few([*no_price], MOST_NAMES)}" if no_price else ""
    busy = ", if always busy" if limits.min_samples_per_s is not None else ""
    for (option, of, best, alike), prices in found.items():
        size = at.format(", ".join(map(str, prices))) * by_size
        usd = ", ".join(
            dict.fromkeys(prices.values()) if len({*prices.values()}) == 1 else prices.values()
        )
        within = f" {limits.words}" if limits else size
        words = f"{best}, {usd} a million samples{busy}{alike}{without * (not option)}"
        yield f"Cheapest{f' with {option}' if option else ''}{within}{of}: {words}"


def _least_dollars(of_option: tuple[str, Mapping[str, Prediction]]) -> float:
    """The lowest price of a million samples in a mode; infinite without a price."""
    return min((p.dollars_per_million or 0.0 for p in of_option[1].values()), default=inf)


def _cheapest_words(priced: Mapping[str, Prediction]) -> tuple[str, str, str]:
    """(name of the cheapest prediction, its price, a clause on others too close to call)."""
    ranked = {
        name: rated(p, (p.dollars_per_million or 0.0) / (p.latency_ms or 1.0))
        for name, p in priced.items()
    }
    best = min(ranked, key=lambda name: ranked[name].value)
    device = device_words(priced[best])  # the batch sizes of a device share its errors
    rivals = {n: r for n, r in ranked.items() if n == best or device_words(priced[n]) != device}
    alike = _with_one_host(best, priced) + apart_words(best, rivals, "; ")
    return best, f"${digits(ranked[best].value)}", alike


def _with_one_host(best: str, priced: Mapping[str, Prediction]) -> str:
    """A clause that prices depend on assumed launch overheads; "" if the best is best with any overhead.

    The clause names the cheapest device if all these devices had the longest assumed overhead.
    """
    waits = {name: p.host_ms for name, p in priced.items() if p.host_ms and by_assumed_host(p)}
    slowest = max(waits.values(), default=0.0)

    def dollars(name: str) -> float:
        p, dollars = priced[name], priced[name].dollars_per_million or 0.0
        return dollars * (slowest + p.after_host_ms) / p.latency_ms if name in waits else dollars

    other = min(priced, key=dollars)
    if not waits or (other == best and best not in waits):
        return ""
    how = (
        "set yours with --host-us"
        if other == best
        else f"with the longest of them for all: {other}"
    )
    names = few([*waits])
    if len(waits) == 1:
        return f"; the time of {names} depends on an assumed launch overhead; {how}"
    return f"; the times of {names} depend on assumed launch overheads; {how}"


def by_hour(predictions: Sequence[Prediction]) -> list[tuple[str, float]]:
    """(device, US$ an hour) of the devices that fit and have a price, the lowest price first."""
    prices = {name: p.price_per_hour or 0.0 for name, p in with_price(predictions).items()}
    return sorted(prices.items(), key=lambda one: one[1])


def with_price(predictions: Sequence[Prediction]) -> dict[str, Prediction]:
    """Device -> one of its predictions that fit and have a price."""
    rented = (p for p in predictions if p.price_per_hour is not None and p.fits is not False)
    return {device_words(p): p for p in rented}


def _lowest_rent(predictions: Sequence[Prediction], limits: Limits) -> Iterator[str]:
    """A line on the lowest price an hour of devices that keep the limits, for each network.

    A device rented for a steady load is paid by the hour, not by the sample. Several devices of one kind
    count if each keeps the limit on the time.
    """
    networks = dict.fromkeys(plain(p.query.network) for p in predictions)
    for network in networks if limits else ():
        of_network = [p for p in predictions if plain(p.query.network) == network]
        able = [p for p in of_network if _keeps(limits, p)]
        alone = by_hour(able)
        together = _by_hour_together(of_network, limits)
        if not (alone or together):
            continue
        of = f" for {network}" if len(networks) > 1 else ""
        if together and (not alone or together[0][0] < alone[0][1]):
            dollars, number, device = together[0]
            beside = f"; alone: {alone[0][0]}, ${digits(alone[0][1])}" if alone else ""
            best = f"{number} x {device}, ${digits(dollars)}"
            yield f"Lowest price an hour{of}: {best}, for a steady load that they share{beside}"
            continue
        steady = "for a steady load within its rate"
        best, dollars = alone[0]
        size, rate = with_price(able)[best].batch_size, limits.min_samples_per_s
        if limits.max_ms is not None and rate is not None and size > 1:
            fill = milliseconds(1e3 * size / rate)
            steady += f"; the {fill} in which {size} samples come at {rate:g}/s are not counted"
        yield f"Lowest price an hour{of}: {best}, ${digits(dollars)}, {steady}"


def _by_hour_together(
    predictions: Sequence[Prediction], limits: Limits
) -> list[tuple[float, int, str]]:
    """(US$ an hour, number, device) of equal devices that keep the rate together, lowest price first."""
    found = []
    for p in predictions:
        dollars, number = p.price_per_hour, limits.devices_needed(p) or 0
        if dollars is not None and p.fits is not False and number > 1:
            found.append((number * dollars, number, device_words(p)))
    return sorted(found)
