"""Lines of `lolat evaluate` and `lolat doctor`, which compare measured with predicted times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from lolat.device.device import Device
from lolat.device.domain import fit_again
from lolat.device.state import LIMIT, is_noisy
from lolat.device.summary import headline
from lolat.parameters import COVERAGE
from lolat.report.device import first_evaluation
from lolat.report.prediction import note_lines
from lolat.report.tables import Column, Part, ReportTable
from lolat.tables.networks import TimedNetwork, size_text
from lolat.units import between, changed, digits, milliseconds, percent, plain, rows_of

if TYPE_CHECKING:
    from lolat.api.doctor import Diagnosis
    from lolat.api.measuring import EvaluatedNetwork, Evaluation
    from lolat.api.table_evaluation import TableEvaluation
    from lolat.api.table_rows import Compared


OUTSIDE = "outside the measured range"
FEWEST_RANKED = 3  # two networks are in order or not


def evaluation_lines(result: Evaluation) -> Iterator[Part]:
    """The table that `evaluate` prints, and how good the device's profile is."""
    columns = [
        Column("network", lambda r: r.network, is_text=True),
        Column("batch", lambda r: r.batch_size),
        Column("measured", lambda r: r.measured_ms, milliseconds),
        Column("predicted", lambda r: r.predicted_ms, milliseconds),
        Column("error", lambda r: 100 * r.error, "{:+.1f} %".format),
        Column("", _row_remark, is_text=True),
    ]
    if is_unsettled := result.verdict == "unsettled":
        yield verdict(result)
        yield ""
    yield ReportTable(columns, result.networks)
    yield ""
    kept = result.intervals
    inside = ""
    if kept is not None:
        which = "its interval" if kept.of == 1 else "their intervals"
        inside = f", {kept.inside} of {kept.of} inside {which}"
    yield f"as predicted: {_errors(result.summary)}{inside}"
    if result.ratio is not None and result.ratio_taken_out is not None:
        ratio = f"{result.ratio:.2f} times as long as learned"
        fits = (result.ratio_taken_out["median"] or 0.0) <= (result.summary["median"] or 0.0)
        without = f"with that taken out {_errors(result.ratio_taken_out)}"
        other = "a factor that does not fit these networks: their errors would be larger with it taken out"
        yield f"machine meanwhile: {ratio}; {without if fits else other}"
    if not is_unsettled:
        yield verdict(result)
    yield from (f"not the machine of this profile: {plain(str(one))}" for one in result.differences)
    yield ""
    rank = result.summary["spearman"]
    if rank is not None and len(result.networks) >= FEWEST_RANKED:
        yield f"{result.predictor}: Spearman {rank:.3f}"
    if result.noise_floor is not None:
        floor = percent(result.noise_floor)
        yield f"noise floor {floor}: repeated measurements of a block differ by this much"
    yield from (f"not measured: {key}: {reason}" for key, reason in result.failures.items())


def _row_remark(row: EvaluatedNetwork) -> str:
    unsteady = f"usually {row.unrest:.1f} times its fastest round" if row.is_unsteady else ""
    return "; ".join(filter(None, (OUTSIDE * (row.in_domain is False), unsteady)))


def _errors(figures: Mapping[str, Any]) -> str:
    return (
        f"median error {percent(figures['median'])}, bias {100 * figures['bias']:+.0f} %, "
        f"{100 * figures['within_10_percent']:.0f} % within 10 %"
    )


def verdict(result: Evaluation) -> str:
    """A verdict on the profile here: its errors, their cause, the remedy."""
    error = percent(result.median_error)
    if result.cause is None:
        return f"This profile is good here: half of these networks are within {error}."
    ratio = result.ratio or 1.0
    if result.verdict == "unsettled":
        changes = [f"it is {changed(ratio)} than learned"] if result.has_moved else []
        return (
            "This profile cannot be judged now: the machine is busy or unsteady "
            f"({'; '.join([*changes, *result.unrest])}). Close other programs, if any run, and ask "
            "again (--wait, in Python wait=True, waits for a calm moment); on a virtual machine the cause "
            "may be its neighbors."
        )
    bias, limit = result.summary["bias"] or 0.0, percent(result.limit)
    bias_words = "its errors go both ways"
    if abs(bias) > 0.7 * result.median_error:
        bias_words = f"most come out too {'fast' if bias < 0 else 'slow'}"
    outside = next((r.network for r in result.networks if r.in_domain is False), "")
    moved = (
        ": close other programs and ask `lolat doctor`, and learn again if it stays so"
        if ratio > 1.0
        else ", which was in a slow spell then: learn again"
    )
    fit = f"write their times into timed.csv and fit them in: {fit_again(result.model)}"
    became = f"the machine has become {changed(ratio)} since it was learned (up to {limit} is usual){moved}"
    if result.differences:
        became = (
            f"this is another machine, {changed(ratio)} than that of the profile: learn this one"
        )
    cause = {
        "machine": became,
        "domain": f"most of these networks ({outside} ...) hold what was never measured: {fit}",
        "noise": "half of that or more is noise of the measurements that it was learned from: close other "
        "programs and learn again",
        "level": f"most of that is the machine's speed now, which is within {limit} of the learned one, as "
        "it usually is",
        "formula": f"the formula lacks something here: {bias_words}; {fit}",
    }[result.cause]
    return f"This profile is {result.verdict} here, off by {error} at the median; {cause}."


# ---- `lolat doctor`: does a profile still hold?


def doctor_lines(device: Device, name: str, result: Diagnosis) -> Iterator[Part]:
    """The lines of `lolat doctor`: verdict and remedy, the device, its networks as learned and now."""
    was_noisy = is_noisy(device.file)
    yield from _diagnosis(result, was_noisy)
    where = device.file.environment
    learn = f"`{where.learn_command()}`"
    if result.verdict == "ok":
        yield from (f"Next: {line}" for line in first_evaluation(name, where.framework))
    elif result.verdict == "unsettled" and was_noisy:
        yield f"What to do: close other programs and learn again with {learn} (--wait waits for them)."
    elif result.verdict == "unsettled":
        yield "What to do: close other programs and ask again in some minutes. If it stays so, the"
        yield f"machine has changed: learn again with {learn}."
    else:
        yield f"What to do: learn this machine as it is with {learn}; `lolat models` lists all profiles."
    yield from note_lines(result.warnings)
    yield from ("", headline(device))
    if result.networks:
        columns = [
            Column("network", lambda n: n.name, is_text=True),
            Column("batch", lambda n: n.batch_size),
            Column("learned", lambda n: n.learned_ms, milliseconds),
            Column("now", lambda n: n.now_ms, milliseconds),
            Column("ratio", lambda n: n.ratio, "{:.2f}".format),
        ]
        yield from ("", ReportTable(columns, result.networks))


def _diagnosis(result: Diagnosis, was_noisy: bool) -> Iterator[str]:
    """The verdict in a sentence or two; `was_noisy`: see `is_noisy`."""
    change, spread = (result.ratio or 1.0) - 1.0, result.spread or (1.0, 1.0)
    low, high = map(digits, spread)
    words = "as fast as then" if abs(change) < 0.0005 else changed(1.0 + change)
    median = f"{words} at the median ({low} to {high} times as long)"
    if change >= 0.95:  # "slower" beside "as long" would be two measures of one thing
        median = f"{digits(1.0 + change)} times as long at the median ({low} to {high})"
    limit = f"up to {percent(result.limit)} is usual"
    if result.limit > LIMIT:
        limit = f"up to {percent(result.limit)} is how far this device's own repeated times differ"
    yield {
        "another machine": "another machine: this profile is not good for it: "
        + "; ".join(plain(str(d)) for d in result.differences),
        "ok": "ok: this profile is good for this machine now.",
        "drifted": f"drifted by {100 * change:+.0f} %: this profile is no longer good for this machine.",
        "unsettled": "unsettled: learned while the machine was busy or unsteady; learn again."
        if was_noisy
        else "unsettled: whether this profile is good cannot be told now, as the machine is busy or "
        "unsteady.",
    }[result.verdict]
    if result.ratio is not None:
        verb = "take" if change >= 0.95 else "are"
        yield f"The networks {verb} {median}{f'; {limit}' if result.verdict in ('ok', 'drifted') else ''}."


# ---- `evaluate --table`

MOST_NETWORKS, LISTED = 20, 10
"""A table of more than MOST_NETWORKS networks shows LISTED of them."""

FEW = 4
"""Served rows are shown one by one if there are at most so many."""
TIMES = {"tpot": "time per output token", "ttft": "first token", "e2el": "whole request"}


OF_NETWORKS = (
    Column("network", lambda pair: pair[1].name, is_text=True),
    Column("batch", lambda pair: pair[1].batch_size),
    Column("size", lambda pair: size_text(pair[1].network[1]) or None),
    Column("measured", lambda pair: pair[0].latency_ms, milliseconds),
    Column("predicted", lambda pair: pair[0].predicted_ms, milliseconds),
    Column("error", lambda pair: 100 * pair[0].error, "{:+,.1f} %".format),
    Column("", lambda pair: OUTSIDE * (pair[0].in_domain is False), is_text=True),
)
"""Columns on the network of a compared row."""


def table_lines(result: TableEvaluation) -> Iterator[Part]:
    """The lines of `evaluate --table`: each network, or each kind of operations, then all together."""
    rows, content, overall = result.compared, result.content, result.summary
    networks = [(row, row.timed) for row in rows if isinstance(row.timed, TimedNetwork)]
    distinct = len({timed.network[:2] for _, timed in networks})
    if len(networks) > MOST_NETWORKS:
        networks.sort(key=lambda pair: -abs(math.log1p(pair[0].error)))
        yield f"The {LISTED} that are farthest off, of {len(networks)} (--predictions FILE has all):"
        networks = networks[:LISTED]
    if networks:
        yield from (ReportTable(OF_NETWORKS, networks), "")
    few = rows if content == "served" and len(rows) <= FEW else ()
    for row in few:
        yield from _served_lines(row)
    kinds = () if few or content in ("networks", "blocks") else (row.timed.name for row in rows)
    for name in dict.fromkeys(kinds):
        some = [row for row in rows if row.timed.name == name]
        error = f"{100 * median(abs(row.error) for row in some):.1f} %"
        if firsts := [abs(row.first_error) for row in some if row.first_error is not None]:
            error += f" per output token, {100 * median(firsts):.1f} % to the first"
        for further in dict.fromkeys(further for row in some for further in row.further_errors):
            off = [
                abs(row.further_errors[further]) for row in some if further in row.further_errors
            ]
            error += f", {100 * median(off):.1f} % {further}"
        yield f"{plain(name)}: {len(some)} timed, median error {error}"
    inside = (
        f"{overall['inside']} of {overall['intervals']} inside the {percent(COVERAGE)} interval"
    )
    number = int(overall[content])
    what = f"{number} {content.removesuffix('s') if number == 1 else content}"
    if content == "networks":
        what = rows_of(number, distinct)
    yield (
        f"{what}: median error {100 * overall['median']:.1f} %, mean "
        f"{100 * overall['mean']:.1f} %, {100 * overall['within_10']:.0f} % within 10 %, "
        f"{inside if overall['intervals'] else 'too few were measured for intervals'}; at the "
        f"median predicted {digits(1.0 + overall['bias'])} times what was measured"
    )


def _served_lines(row: Compared) -> Iterator[str]:
    """A line for each time of a served row: measured, predicted, and the interval if known."""
    rate, number = row.row.get("requests_per_s"), row.row.get("concurrency")
    load = f"{rate} requests/s" if rate else f"{float(number or 0.0):g} requests in progress"
    yield f"{plain(row.timed.name)}, {load}:"
    low, high = row.interval_ms or (0.0, 0.0)
    ends = f" ({between(low, high, row.predicted_ms)})" if high else ""
    yield _time_line("mean time per output token", row.latency_ms, row.predicted_ms, ends)
    if row.first_error is not None:
        first = row.more["predicted_ttft_ms"]
        yield _time_line("mean first token", first / (1.0 + row.first_error), first)
    for name, error in row.further_errors.items():
        at, time, _ = name.split("_")
        ms = row.more[f"predicted_{name}"]
        yield _time_line(f"{at.replace('p', 'P')} {TIMES[time]}", ms / (1.0 + error), ms)


def _time_line(name: str, measured: float, predicted: float, ends: str = "") -> str:
    both = f"{milliseconds(measured)} measured, {milliseconds(predicted)}{ends} predicted"
    return f"  {name}: {both}, {100.0 * (predicted / measured - 1.0):+,.1f} %"
