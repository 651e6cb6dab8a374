"""Loads of a server, at a request rate or with concurrent requests, and the requests drawn from a load."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lolat.arrays import np
from lolat.errors import InputError
from lolat.io.tables import Row, read_table
from lolat.llm.gpu import ServedRow
from lolat.llm.scheduler import Requests
from lolat.parameters import EVEN, POISSON, TRACE
from lolat.units import digits, duration, plural

REQUESTS = 1000
"""Number of requests that count in the simulation of a load at a rate."""
MOST_AT_ONCE = 4096
"""Most concurrent requests that are simulated; the times of a larger closed loop follow from its rate."""
STRATA, VARIES = 256, 0.1
"""Closed loop: each block of STRATA answers has lengths spread evenly from 1 - VARIES to 1 + VARIES times
the mean. Otherwise requests of equal length that start in one step would end together forever."""
SEED = 1
TRACE_NAMES = (
    ("timestamp",),
    ("contexttokens", "prompt_tokens"),
    ("generatedtokens", "completion_tokens"),
)
"""Other names of the columns TRACE, from Azure (AzureLLMInferenceTrace) and from OpenAI's usage records."""
COLUMNS = [(name, *others) for name, others in zip(TRACE, TRACE_NAMES, strict=True)]
LONGEST_TRACE = 7 * 86400.0
"""Longest trace, in seconds; a longer one must have times in another unit."""
LATEST = 1e11
"""An arrival above so many seconds since 1970 (in the year 5138) must be in milliseconds."""
MOST_REPEATED = 20_000
"""Most requests of a trace that is repeated for a higher rate; one answer simulates dozens of such
traces."""


@dataclass(frozen=True)
class Trace:
    """Recorded requests: arrival times in s, tokens of prompts, tokens of answers, as equally long tuples.

    `unread`: the names of the table's other columns; `source`: the table's file.
    """

    arrival_s: tuple[float, ...]
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    unread: tuple[str, ...] = ()
    source: str = ""

    @property
    def rate(self) -> float:
        """Requests a second."""
        span = self.arrival_s[-1] - self.arrival_s[0]
        return (len(self.arrival_s) - 1) / span

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Mean tokens of a prompt and of an answer."""
        number = len(self.input_tokens)
        return sum(self.input_tokens) / number, sum(self.output_tokens) / number

    def words(self) -> str:
        """Words on the number of requests, their duration, the mean rate, and the rate of the busiest
        minute.
        """
        at, minute = np.array(self.arrival_s), 60.0
        span = float(at[-1] - at[0])
        told = f"{plural(len(at), 'request')} in {duration(span)}: {digits(self.rate)} a second on average"
        if span > minute:
            most = int(np.max(np.searchsorted(at, at + minute) - np.arange(len(at))))
            told += f", {digits(most / minute)} a second in the busiest minute"
        return told

    def at_rate(self, rate: float) -> Trace:
        """The trace at another rate.

        A lower rate keeps evenly chosen requests. A higher rate repeats each request at random times before
        the next arrival, so that bursts grow with the rate. A result of more than MOST_REPEATED requests
        keeps only the busiest part.
        """
        factor = max(rate / self.rate, 2.0 / len(self.arrival_s))
        if abs(factor - 1.0) < 1e-9:
            return self
        at = np.array(self.arrival_s)
        copies = np.diff(np.floor(factor * np.arange(len(at) + 1) + 1e-9)).astype(int)
        number = max(int(MOST_REPEATED / factor), 1)
        if factor > 1.0 and number < len(at):
            first = int(np.argmin(at[number:] - at[:-number]))
            copies[:first] = copies[first + number :] = 0
        which = np.repeat(np.arange(len(at)), copies)
        is_first = np.diff(which, prepend=-1) > 0
        gaps = np.append(np.diff(at), 0.0)[which]
        later = np.random.default_rng(0).random(len(which)) * gaps * ~is_first
        order = np.argsort(at[which] + later, kind="stable")
        arrives, which = (at[which] + later)[order], which[order]
        inputs, outputs = (np.array(of)[which] for of in (self.input_tokens, self.output_tokens))
        return Trace(tuple(arrives.tolist()), tuple(inputs.tolist()), tuple(outputs.tolist()))

    def shares(self, number: int) -> list[Trace]:
        """The traces of single replicas, each of which gets every `number`th request.

        There are as many traces as together have REQUESTS requests. The first trace begins with a request
        of several output tokens.
        """
        step = min(number, max(len(self.arrival_s) // 2, 1))
        first = next((n for n, tokens in enumerate(self.output_tokens) if tokens > 1), 0)
        most = min(step, -(-REQUESTS * step // len(self.arrival_s)))
        some = [slice((first + n) % step, None, step) for n in range(most)]
        return [Trace(self.arrival_s[n], self.input_tokens[n], self.output_tokens[n]) for n in some]


def read_trace(path: str | Path) -> Trace:
    """Read a table with the columns TRACE; InputError (code "trace") if arrivals do not rise or are too
    few.

    Columns may have the names in TRACE_NAMES; arrivals may be dates.
    """
    known = read_table(path).names
    names = [next((one for one in some if one in known), some[0]) for some in COLUMNS]
    columns = ", ".join(map(" or ".join, COLUMNS))
    rows = [*read_table(path, names, f"expected a trace with the columns {columns}")]
    arrives, *tokens = names
    arrivals = [_seconds(row, arrives) for row in rows]
    for row, before, after in zip(rows[1:], rows, np.diff(arrivals), strict=False):
        if after < 0.0:
            raise row.wrong(
                arrives, f"{before[arrives]} or later; sort the rows by it, as logs are often in the order "
                "of completion",
            )  # fmt: skip
    span = arrivals[-1] - arrivals[0] if rows else 0.0
    for is_wrong, why in (
        (len(rows) < 2, f"{plural(len(rows), 'request')}; expected 2 or more"),
        (span == 0.0, "all requests arrive at once; expected arrival_s to rise"),
        (any(at > LATEST for at in arrivals[:1]), f"{arrives} {arrivals[0] if rows else 0:.0f} is later "
         "than the year 5000 in seconds since 1970; expected seconds, not milliseconds"),
        (span > LONGEST_TRACE, f"the last request arrives after {max(arrivals, default=0.0):,.0f} s; "
         f"expected seconds, and at most {LONGEST_TRACE:,.0f} of them (a week)"),
    ):  # fmt: skip
        if is_wrong:
            raise InputError(f"{path}: {why}", code="trace")
    inputs, outputs = (tuple(row.whole(name) for row in rows) for name in tokens)
    unread = tuple(name for name in rows[0] if name not in names)
    return Trace(tuple(arrivals), inputs, outputs, unread, Path(path).name)


def _seconds(row: Row, column: str) -> float:
    """The time of an arrival in s, from a number or a date."""
    if row[column][4:5] == "-":
        with suppress(ValueError):
            date = datetime.fromisoformat(row[column])
            return date.replace(tzinfo=date.tzinfo or UTC).timestamp()
    return row.number(column, 0.0, expected="seconds, or a date such as 2023-11-16 18:15:46.68")


@dataclass(frozen=True)
class Load:
    """Requests of a server: `request_rate` a second, or `concurrency` of them at any time.

    `arrivals`: EVEN, POISSON, or a trace (its arrivals are scaled to the rate, see `Trace.at_rate`).
    `cached_tokens`: tokens of each prompt that the cache holds; the first `distinct_prompts` requests have
    none. `range_ratio`: lengths are drawn evenly between this fraction of the tokens and all of them.
    `requests`: number of requests, all of which count, as in a benchmark; 0: as many as a steady load
    needs.
    """

    input_tokens: float
    output_tokens: float
    concurrency: float = 0.0
    request_rate: float = 0.0
    arrivals: str | Trace = POISSON
    cached_tokens: float = 0.0
    distinct_prompts: int = 0
    range_ratio: float = 1.0
    requests: int = 0

    @classmethod
    def of(cls, row: ServedRow) -> Load:
        """The load of each attention group of a served row."""
        groups = row.attention_data_parallel
        inputs, outputs = (tokens[::groups] for tokens in row.lengths or ((), ()))
        return cls(
            row.input_tokens, row.output_tokens, row.concurrency * (not row.request_rate) / groups,
            row.request_rate / groups, Trace((), inputs, outputs) if inputs else POISSON, row.cached_tokens,
            distinct_prompts=row.distinct_prompts, range_ratio=row.range_ratio,
            requests=row.requests // groups,
        )  # fmt: skip

    @property
    def longest(self) -> float:
        """Tokens of the longest request."""
        if isinstance(self.arrivals, Trace):
            pairs = zip(self.arrivals.input_tokens, self.arrivals.output_tokens, strict=True)
            return float(max(map(sum, pairs)))
        return self.tokens

    @property
    def tokens(self) -> float:
        """Tokens of a request, on average."""
        return self.input_tokens + self.output_tokens

    @property
    def new_tokens(self) -> float:
        """Tokens of a prompt that are not cached, at least one."""
        return self.input_tokens - min(self.cached_tokens, self.input_tokens - 1.0)

    def drawn(
        self,
        at_once: int,
        front_ms: float,
        running: int | None = None,
        counted_requests: int = REQUESTS,
    ) -> Requests:
        """Draw the requests of the load; `at_once`: requests at the server, at a rate the expected mean.

        `running`: requests of a steady load that already decode at the start; None: all `at_once`.
        `counted_requests`: number of requests that count in a steady load at a rate.
        """
        running = at_once if running is None else min(running, at_once)
        rng = np.random.default_rng(SEED)
        trace = self.arrivals if isinstance(self.arrivals, Trace) else None
        is_closed, is_steady = not self.request_rate, not self.requests
        number, counted, arrivals, ages = self.requests, slice(None), None, np.zeros(0)
        if trace and trace.arrival_s and not is_closed:
            number, arrivals = len(trace.arrival_s), 1e3 * np.array(trace.arrival_s)
            arrivals = (arrivals - arrivals[0]) * (trace.rate / self.request_rate)
            is_steady = False
        elif is_steady:
            begin, blocks = at_once * (2 - is_closed), STRATA * -(-at_once // STRATA)
            counted = slice(begin, begin + (blocks if is_closed else counted_requests))
            number = counted.stop + 2 * at_once + STRATA
        if arrivals is None and not is_closed:
            gaps = np.ones(number) if self.arrivals == EVEN else rng.exponential(1.0, number)
            gaps = gaps * (1e3 / self.request_rate / gaps[counted].mean())
            gaps[: at_once * is_steady] = 0.0
            arrivals = np.cumsum(gaps)
        if trace:
            pairs = np.column_stack([trace.input_tokens, trace.output_tokens])
            if is_closed and is_steady:
                order = np.argsort(pairs.sum(1))[:: len(pairs) // REQUESTS + 1]
                pairs = _shuffled(rng, pairs[order], number, at_once)
            inputs, outputs = np.resize(pairs, (number, 2)).T
        else:
            both = self.input_tokens, self.output_tokens
            inputs, outputs = (self._lengths(rng, most, number) for most in both)
        if is_steady:
            if is_closed and not trace:
                strata = (np.arange(STRATA) + 0.5) / (STRATA / 2.0) - 1.0
                varies = VARIES * _shuffled(rng, strata, number, at_once)
                outputs = outputs + np.rint(outputs * varies)
            ages = rng.permutation((np.arange(running) + 0.5) / running) * outputs[:running]
        cached = np.minimum(self.cached_tokens, inputs - 1.0)
        cached[: self.distinct_prompts] = 0.0
        return Requests(
            inputs, outputs, cached, arrivals=arrivals, at_once=at_once, front_ms=front_ms, ages=ages,
            counted=counted,
        )  # fmt: skip

    def _lengths(self, rng: Any, most: float, number: int) -> np.ndarray:
        most = max(round(most), 1)
        if self.range_ratio >= 1.0:
            return np.full(number, most)
        return rng.integers(max(int(self.range_ratio * most), 1), most + 1, number)


def _shuffled(rng: Any, values: np.ndarray, number: int, begin: int) -> np.ndarray:
    """`number` values: repeated permutations of all `values`, one of which starts at position `begin`."""
    first = -begin % len(values)
    orders = (rng.permutation(len(values)) for _ in range(-(-(first + number) // len(values))))
    return values[np.concatenate([*orders])[first : first + number]]
