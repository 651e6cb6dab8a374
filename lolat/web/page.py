"""Turns a query into the HTML of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from lolat import __version__, units
from lolat.device.attribution import AtSize
from lolat.device.prediction import domain_words, interval_words
from lolat.errors import LolatError
from lolat.readers.size import Size
from lolat.report.bottlenecks.page import page
from lolat.report.prediction import counts_words, per_second, precision_lines, range_words
from lolat.web import answers, latencies
from lolat.web.cards import Card, LatencyCard, PageAnswer
from lolat.web.chart import chart
from lolat.web.devices import ListedDevice, devices, every_device
from lolat.web.form import Form
from lolat.web.networks import UPLOAD, Decoders, NetworkCache

WORDS = [
    counts_words, domain_words, interval_words, per_second, precision_lines, range_words,
    units.between, units.byte_size, units.digits, units.dollars, units.milliseconds, units.percent,
    units.plain, units.shapes_text,
]  # fmt: skip
"""Filters with which the templates format numbers and texts."""

Query = Iterable[tuple[str, str]]
"""(name, text) pairs of the query."""


class Pages:
    """Makes pages, which share the cache of networks and the list of profiles."""

    def __init__(self, networks: NetworkCache, named: Sequence[Path] = ()) -> None:
        """`named`: paths of profiles to list besides local and bundled profiles."""
        from jinja2 import Environment, PackageLoader, StrictUndefined

        self.networks, self.named = networks, named
        self._decoders = Decoders()
        self._sources: dict[bool, NetworkCache | Decoders] = {False: networks, True: self._decoders}
        self._environment = Environment(
            loader=PackageLoader("lolat.web"), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._environment.filters |= {word.__name__: word for word in WORDS}

    def form(self, query: Query) -> Form:
        """The form of a query. InputError if a folder of profiles cannot be read."""
        return Form(query, devices(self.named))

    def page(self, query: Query, upload_error: str = "") -> str:
        """The page for a query, as HTML. `upload_error`: the message on a file just uploaded."""
        form = self.form(query)
        question = form.question()
        if upload_error:
            form.errors["upload"] = upload_error
        answer = None if question is None or upload_error else self._answer(form, question)
        listed = [*form.ticked, *(key for key in form.devices if key not in form.ticked)]
        return self._environment.get_template("page.html").render(
            form=form,
            answer=answer,
            devices=[form.devices[key] for key in listed],
            version=__version__,
            folder=str(Path.cwd()),
        )

    def put(self, form: Form, file: BinaryIO, name: str) -> dict[str, str]:
        """Keep an open file that was uploaded as `name`; return the field that refers to it, and its text.

        InputError for a file of another kind.
        """
        if "arrivals" in form.fields and name.lower().endswith(".csv"):
            return {"arrivals": self._decoders.put_trace(file, name)}
        source = self._sources[form.subject.is_decoder]
        return {form.subject.named.name: source.put(file, name, form.size())}

    def report(self, query: Query) -> str | None:
        """The page of `lolat report` for the device that the query's `only` names.

        None if it cannot be made; the page of the same question then says why.
        """
        query = list(query)
        form = self.form(query)
        question, device = form.question(), form.devices.get(dict(query).get("only", ""))
        if question is None or device is None or form.view != "latency":
            return None
        try:
            spec = question["network"]
            graph = self.networks.get(spec, form.size())
            found = answers.latencies(form, question, device, graph)[0]
            as_asked = {"spec": form.network(), "input_size": form.size()}
            query = replace(found.query, reader=self._at_size(spec), **as_asked)
            return page(replace(found, query=query))
        except LolatError:
            return None

    def _at_size(self, spec: str) -> AtSize:
        """A function that reads a network at another resolution."""
        return lambda side: self.networks.get(spec, Size((side,)))

    def _answer(self, form: Form, question: dict[str, Any]) -> PageAnswer | None:
        """The answer to a question; None, with an error in the form, if there is no answer."""
        named = form.subject.named.name
        spec, arrivals = question[named], question.get("arrivals") or ""
        try:
            subject = self._sources[form.subject.is_decoder].get(spec, form.size())
            if arrivals.startswith(UPLOAD):
                named, question = (
                    "arrivals",
                    question | {"arrivals": self._decoders.trace(arrivals)},
                )
        except LolatError as error:
            form.refuse(error, named)
            return None
        cards, failed = list[Card](), list[tuple[ListedDevice, LolatError]]()
        found, left_out = None, dict[str, str]()
        asked = [form.devices[key] for key in form.ticked]
        if form.is_all and form.view == "llm":
            asked, left_out = every_device(form.beside_all)
        elif form.is_all:
            asked = []
            try:
                found = answers.trained_on_all(form, question, subject)
            except LolatError as error:
                form.refuse(error, "model")
        for device in asked:
            try:
                cards.append(answers.card(form, question, device, subject, self._at_size(spec)))
            except LolatError as error:
                failed.append((device, error))
        found = found or answers.beside(form, question, cards, left_out)
        cards = [*found.cards] or cards if found else cards
        if not (cards or found):
            for device, why in failed:
                form.refuse(why, "model", f"{units.plain(device.key)}: ")
            return None
        differ = answers.unlike_remark(form, question, cards)
        shown = [card for card in cards if isinstance(card, LatencyCard)]
        if shown:
            shown = answers.show_largest(form, shown)
            cards = [*shown]
        briefs = [
            (title, f"{c.name} {load}".rstrip())
            for c in _fastest_first(cards)
            for title, load in c.bests or [(c.title, "")]
        ]
        return PageAnswer(
            subject=subject, cards=cards, failed=[(device, form.words(why)) for device, why in failed],
            is_file=any(one.startswith(UPLOAD) for one in (spec, arrivals)), differ=differ,
            compared=latencies.comparison(form, shown, not differ) if shown else None,
            beside=found, briefs=found.bests if found else briefs, chart=chart(form, question, cards),
            blocks=latencies.block_table(shown) if shown else None,
        )  # fmt: skip


def _fastest_first(cards: Sequence[Card]) -> list[Card]:
    """Cards of latencies sorted by time, cards that do not fit into memory last; other cards unchanged."""

    def order(card: Card) -> tuple[bool, float]:
        if isinstance(card, LatencyCard):
            return card.shown.fits is False, card.shown.latency_ms
        return False, 0.0

    return sorted(cards, key=order)
