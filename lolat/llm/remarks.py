"""Remarks on an answer: what a user must know besides the numbers in its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lolat.arrays import np
from lolat.errors import InputError
from lolat.llm.decoder import DTYPES, WEIGHT_BYTES
from lolat.llm.domain import BETWEEN_GB_S, MOST_SERVED, OPERATIONS, beyond, is_unseen
from lolat.llm.gpu import IN_GENERAL
from lolat.llm.load import REQUESTS, Load, Trace
from lolat.llm.serving import GIB, Deployment, deployment_of, operations_of, requests_that_fit
from lolat.units import milliseconds, percent, plural

if TYPE_CHECKING:
    from lolat.llm.answer import ServingConfig
    from lolat.llm.sizing import Sizing

FASTER = 0.9
"""Another data type, or load, is remarked on if a token takes less than FASTER times as long with it."""
KINDS = {"dense": "dense model", "experts": "mixture of experts", "latent": "model with latent attention",
         "linear": "model with linear attention"}  # fmt: skip
CALLED = {"gemm": "products", "moe": "experts"}


@dataclass(frozen=True)
class Chosen:
    """The chosen row of an answer, `of` its deployment."""

    of: Sizing
    row: ServingConfig

    def remarks(self, rows: Sequence[ServingConfig]) -> Iterator[str]:
        """Yield remarks on all `rows` and on the chosen one, first on weights that do not fit."""
        asked, row, decoder = self.of.asked, self.row, self.of.deployment.decoder
        if none := [one.gpus // one.replicas for one in rows if not one.largest_concurrency]:
            yield self._room(min(none))
        if waits := [one for one in rows if one.largest_concurrency and not one.fits]:
            yield (
                f"{plural(len(waits), 'row')}: not all requests fit in memory at once; the others wait for "
                "their first token"
            )
        if asked.dtype and decoder.expert_dtype.endswith("mxfp4"):
            yield (
                f"{decoder.name} is served as it was published, experts in MXFP4 and all else in bfloat16: "
                f"dtype {asked.dtype} changes nothing"
            )
        elif asked.dtype and row.tpot_ms is not None:
            yield from self._faster()
        stays = sorted({part for kind in decoder.kinds for part in kind.unquantized})
        if asked.dtype and stays:
            parts = " and ".join(stays).replace("_", "-")
            yield (
                f"{parts}, wherever {decoder.name} was published with them in bfloat16, stay so: dtype "
                f"{asked.dtype} is of the rest"
            )
        if decoder.tower_remark:
            yield decoder.tower_remark
        if decoder.cache_remark and not (asked.kv_dtype or asked.dtype):
            yield decoder.cache_remark
        yield from self._not_timed()
        if not self.of.gpu.section.served:
            yield (
                "no served model of this GPU and framework is known: its scheduling and kernel launches "
                "are assumed to be those of other GPUs"
            )
        elif is_unseen(self.of.gpu, self.of.deployment):
            kind = KINDS[decoder.kind]
            yield (
                f"no served {kind} of this GPU and framework is known: its times follow from its "
                "operations, and the interval is wider"
            )
        if isinstance(asked.arrivals, Trace):
            if asked.arrivals.unread:
                yield f"columns of the arrivals that are not read: {', '.join(asked.arrivals.unread)}"
            if whole := sum(n <= asked.cached_tokens for n in asked.arrivals.input_tokens):
                yield (
                    f"{plural(whole, 'prompt')} of the arrivals with no more than the "
                    f"{asked.cached_tokens:,} cached tokens: all but the last token of each is cached"
                )
        yield from self._saturated(rows)
        yield from self._scheduled(rows)
        yield from self._outside(rows)

    def _saturated(self, rows: Sequence[ServingConfig]) -> Iterator[str]:
        """Remark on loads that arrive faster than they are served."""
        if many := [row for row in rows if row.saturated]:
            most = max(row.largest_rate or 0.0 for row in many)
            yield (
                f"{plural(len(many), 'row')} saturated: requests arrive faster than they are served, "
                f"at most {most:.3g} a second, so that more and more wait; the times are those of the "
                f"first {REQUESTS:,} requests"
            )

    def _scheduled(self, rows: Sequence[ServingConfig]) -> Iterator[str]:
        """Remark on more requests than the framework runs."""
        section = self.of.gpu.section
        server, limits = section.server, self.of.asked.limits(section)
        timed = [r for r in rows if r.tpot_ms and r.request_rate is None]
        at_once = (min(_each(r), r.largest_concurrency / r.groups) for r in timed)
        if many := [number for number in at_once if number > limits.sequences]:
            yield (
                f"{plural(len(many), 'row')}: {server.title} runs at most {limits.sequences:,} requests at "
                f"once on this card, and the others wait, unless {server.option} allows these numbers"
            )

    def _outside(self, rows: Sequence[ServingConfig]) -> Iterator[str]:
        """Remark on loads beyond all that were served, and on GPUs in several machines."""
        if rows[0].attention_data_parallel > 1:
            yield (
                "extrapolating: groups with attention of their own wait for each other in ways that no fit "
                "knows; the interval is wider"
            )
        columns = [
            (min(_each(r), r.largest_concurrency / r.groups), r.input_tokens, r.output_tokens)
            for r in rows
            if r.tpot_ms is not None
        ]
        if columns:
            found = beyond(np.array(columns))
            if what := [f"{MOST_SERVED[n]:,} {n}" for n, more in found.items() if more.any()]:
                number = int(np.any([*found.values()], axis=0).sum())
                yield (
                    f"{plural(number, 'row')} extrapolating: outside what was served on any GPU, with more "
                    f"than {' and '.join(what)}; the interval is wider"
                )
        node = int(self.of.gpu.section.sheet.gpus_per_node)
        if any(row.gpus > node * row.replicas for row in rows):
            yield (
                f"extrapolating: more GPUs than the {node} of a node; links are assumed to be those within "
                f"a node, and the interval reaches to links of {BETWEEN_GB_S:.0f} GB/s"
            )

    def _others(self) -> Iterator[Deployment]:
        """Yield the deployment in each other data type that the GPU computes, the published one first."""
        here = self.of.deployment
        for dtype in dict.fromkeys(["", *DTYPES]):
            try:
                other = deployment_of(
                    self.of.gpu.section, here.decoder, here.tensor_parallel, here.expert_parallel, dtype,
                    self.of.asked.kv_dtype, here.attention_data_parallel,
                )  # fmt: skip
                operations_of(self.of.gpu, other)
            except InputError:
                continue
            if (other.dtype, other.expert_dtype) != (here.dtype, here.expert_dtype):
                yield other

    def _faster(self) -> Iterator[str]:
        """Remark on a data type of as many bytes, or the published one, if it is FASTER."""
        found: dict[str, float] = {}
        here, row = self.of.deployment, self.row
        tokens = np.array([row.input_tokens + row.output_tokens])
        for other in self._others():
            alike = math.isclose(WEIGHT_BYTES[other.dtype], WEIGHT_BYTES[here.dtype], rel_tol=0.01)
            sources = {
                operation.like
                for one in (here, other)
                for (name, _), operation in operations_of(self.of.gpu, one).items()
                if name in CALLED
            }
            fits = _each(row) <= requests_that_fit(self.of.gpu.section, other, tokens)[0]
            if fits and len(sources) == 1 and (alike or other.dtype == here.decoder.dtype):
                sizing, most = replace(self.of, deployment=other), max(_each(row), 1)
                mine, its = (one.token_ms(most) for one in (self.of, sizing))
                if its < FASTER * mine:  # only then the load is simulated
                    (load,) = (one for one in self.of.asked.loads() if self._is_of_row(one))
                    found[other.dtype] = sizing.times(load, row.groups)[1].mean_tpot_ms
        best, ms = min(found, key=found.__getitem__, default=""), row.tpot_ms or 0.0
        if best and found[best] < FASTER * ms:
            yield (
                f"{here.dtype} is slower than {best} here, as its kernels were timed: dtype {best} takes "
                f"{milliseconds(found[best])} a token, {here.dtype} {milliseconds(ms)} ({row.load_words})"
            )

    def _is_of_row(self, load: Load) -> bool:
        asked = self.row.concurrency if self.row.request_rate is None else self.row.request_rate
        return (load.request_rate or load.concurrency) == asked

    def _room(self, gpus: int) -> str:
        """Return a remark on how many GPUs hold the weights, in this data type and in smaller ones.

        `gpus`: those of a row that holds no request.
        """
        sheet, here = self.of.gpu.section.sheet, self.of.deployment
        room = self.of.gpu.section.server.room_gib(sheet)

        def gib(one: Deployment) -> float:
            return one.weight_bytes * one.gpus / GIB

        def least(one: Deployment) -> int:
            return 1 << (math.ceil(gib(one) / room) - 1).bit_length()  # tensors are split in halves

        others = dict.fromkeys(DTYPES, 0)  # their order; of equal numbers the first type is named
        others |= {one.dtype: least(one) for one in self._others()}
        first = {n: dtype for dtype, n in [*others.items()][::-1] if 0 < n < least(here)}
        fewer = [f"{n} in {first[n]}" for n in sorted(first, reverse=True)]
        wanted = f": at least {plural(least(here), 'GPU')}"
        if here.attention_data_parallel == 1:
            wanted += f" (tensor_parallel {least(here)})"
        wanted += f"{'; ' * bool(fewer)}{', '.join(fewer)}"
        if least(here) <= gpus:
            tokens = int(self.of.asked.loads()[0].longest)
            wanted = f", which leaves too little for the cache of {tokens:,} tokens"
        return (
            f"its weights take {gib(here):.0f} GiB, and {room:.0f} of a GPU's {sheet.memory_gib:g} are "
            f"free for them{wanted}"
        )

    def _not_timed(self) -> Iterator[str]:
        """Remark on operations that were not timed on this GPU: their source, and their part of a token.

        The part is left out if some data types of the operation were timed.
        """
        used, ms = operations_of(self.of.gpu, self.of.deployment), self.row.breakdown or {}
        dtypes: dict[tuple[str, str], list[str]] = {}
        for (name, dtype), operation in used.items():
            dtypes.setdefault((operation.like, name), []).append(dtype)
        told: dict[str, list[str]] = {}
        for (like, name), of in dtypes.items():
            words = f"{CALLED.get(name, name.replace('_', '-'))} in {' and '.join(of)}"
            if len(of) == sum(other == name for other, _ in used):
                of_part = OPERATIONS.get(name, "")
                parts = ("weights", "products") if of_part == "products" else (of_part,)
                share = sum(ms.get(part, 0.0) for part in parts) / (self.row.tpot_ms or 1.0)
                words += f" ({percent(share)} of a token)" if share else ""
            told.setdefault(like, []).append(words)
        told.pop("", None)  # timed
        for like, names in sorted(told.items()):
            source = f"as {like}" if like.startswith("its ") else f"as on {like}"
            source = "by the usual rates of GPUs" if like == IN_GENERAL else source
            yield f"not timed on this GPU, but assumed {source}: {', '.join(names)}"


def _each(row: ServingConfig) -> int:
    """Requests that one group of GPUs of a row serves."""
    return math.ceil(row.concurrency / row.groups)
