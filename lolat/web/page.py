"""One page: from what is typed to HTML, by the template."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lolat import __version__
from lolat.errors import InputError
from lolat.graph import Graph
from lolat.readers.apart import ENDINGS
from lolat.readers.cache import shipped_networks
from lolat.training.cost.prices import Prices
from lolat.units import dollars, plain
from lolat.web import latency, training
from lolat.web.devices import GROUPS, DeviceModel, DeviceModels, PriceList
from lolat.web.fields import FAMILY_WORDS, FIELDS, family_fields, memory_name, price_name
from lolat.web.forms import BudgetQuestion, FieldError, Form, LatencyQuestion, TrainingQuestion
from lolat.web.networks import MOST_BYTES, Busy, CachedNetwork, NetworkCache, NetworkKey

CHOSEN = "Chosen"
MOST_KEPT = 256
"""Pages of some 60 KiB."""
BUSY = 503
"""The status of a page whose network cannot be read just now."""


Query = tuple[tuple[str, str], ...]


class StillReading(Exception):
    """A network is being read: `key`."""

    def __init__(self, key: NetworkKey) -> None:
        super().__init__(key)
        self.key = key


@dataclass(frozen=True)
class Page:
    """A page and its HTTP status; `reading`: the network that it waits for, if it waits for one."""

    html: str
    status: int = 200
    reading: NetworkKey | None = None


class Pages:
    """Makes pages; holds what they share: the networks, the models and the prices."""

    def __init__(self, networks: NetworkCache, named: Sequence[Path] = ()) -> None:
        """`named`: model files to list besides the local and the shipped ones."""
        from jinja2 import Environment, PackageLoader, StrictUndefined

        self.networks, self.models, self.prices = networks, DeviceModels(named), PriceList()
        self._kept: OrderedDict[Query, tuple[tuple[object, ...], Page]] = OrderedDict()
        self._lock = threading.Lock()
        self._environment = Environment(
            loader=PackageLoader("lolat.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def page(
        self, query: Iterable[tuple[str, str]], upload_error: str = "", status: int = 200
    ) -> Page:
        """The page for a query's (name, text); `upload_error`: why a file just sent is none, `status`: what
        kind of a fault that is.
        """
        context: dict[str, Any] = {"answer": None, "waiting": "", "problem": "", "lacking": ()}
        reading: NetworkKey | None = None
        query = tuple(query)
        of: tuple[object, ...] = ()
        listed: list[dict[str, Any]] = []
        usable = False
        try:
            form, prices = self._form(query)
            of = (self.networks.ready, prices, *form.devices.values())
            if not upload_error and (kept := self._page_before(query, of)):
                return kept
            usable = any(m.answers(form.view) for m in form.devices.values())
            question = form.question() if usable else None
            if upload_error:
                form.errors["upload"] = upload_error
            elif question is not None:
                try:
                    self._answer(context, form, question, prices)
                except StillReading as waits:
                    reading = waits.key
                    context["waiting"] = plain(question.network.spec.removeprefix("keras:"))
                except Busy as busy:
                    form.errors[_network_field(form)], status = plain(str(busy)), BUSY
            listed = [self._listed(m, form, prices) for m in form.devices.values()]
        except InputError as error:  # of a folder, or of the price list
            form = Form(query)
            context["problem"] = plain(str(error))
        html = self._environment.get_template("page.html").render(
            **context,
            form=form,
            groups=[(g, [m for m in listed if m["group"] == g]) for g in (CHOSEN, *GROUPS)],
            usable=usable,
            fields=FIELDS,
            families=[(f, w, family_fields(f)) for f, w in FAMILY_WORDS.items()],
            networks=[n.removeprefix("keras:") for n in shipped_networks()],
            link=f"/?{form.link()}",
            most_mib=MOST_BYTES // 2**20,
            most_bytes=MOST_BYTES,
            endings=ENDINGS,
            loading=not self.networks.ready,
            version=__version__,
            folder=str(Path.cwd()),
        )
        page = Page(html, status, reading)
        if context["answer"] and not context["answer"]["uploaded"] and not upload_error:
            with self._lock:
                self._kept[query] = of, page
                while len(self._kept) > MOST_KEPT:
                    self._kept.popitem(last=False)
        return page

    def _page_before(self, query: Query, of: tuple[object, ...]) -> Page | None:
        """The page that was the answer before, where all that it was made of is still the same."""
        with self._lock:
            kept = self._kept.get(query)
            if kept is None or list(map(id, kept[0])) != list(map(id, of)):
                return None
            self._kept.move_to_end(query)
            return kept[1]

    def report(self, query: Iterable[tuple[str, str]]) -> Page | None:
        """The report page of the devices that `only` of a latency question's link names, two at most; None
        where it cannot be answered: the page says why.
        """
        query = list(query)
        try:
            form, _ = self._form(query)
            question = form.question()
            if not isinstance(question, LatencyQuestion):
                return None
            found = self.networks.get(question.network)
            if found is None:
                return Page("", reading=question.network)
            only = [t for n, t in query if n == "only" and t in question.models] or question.models
            devices = [form.devices[k] for k in only if form.devices[k].latency is not None][:2]
            if not devices:
                return None
            return Page(latency.report(question, found.graph, found.file_name, devices))
        except Busy as busy:
            return Page(plain(str(busy)), BUSY)
        except InputError:
            return None

    def link(self, query: Iterable[tuple[str, str]]) -> str:
        """The address of the page for a query's (name, text). InputError as of the folders of models."""
        return f"/?{self._form(query)[0].link()}"

    def _form(self, query: Iterable[tuple[str, str]]) -> tuple[Form, Prices]:
        """The form as it was filled in; what was not is as the models have it at first."""
        models, prices = self.models.all(), self.prices.current()
        first = self.prices.at_first(models, prices)
        known = next((m.training for m in models if m.training is not None), None)
        usual = FIELDS["optimizer"].default
        optimizers = getattr(known, "optimizers", ())  # of a model fitted to epochs
        if optimizers and usual not in optimizers:
            first["optimizer"] = optimizers[0]
        return Form(query, models, first), prices

    def _answer(
        self,
        context: dict[str, Any],
        form: Form,
        question: LatencyQuestion | BudgetQuestion | TrainingQuestion,
        prices: Prices,
    ) -> None:
        """Put the answer into the context, or errors into the form; StillReading, Busy."""
        models = form.devices
        context["lacking"] = [
            (plain(k), models[k].lacking[form.view])
            for k in form.ticked
            if not models[k].answers(form.view)
        ]
        if len(context["lacking"]) == len(form.ticked):
            return
        try:
            found = self._network(question.network)
            context["answer"] = self._answered(form, question, found, prices)
        except InputError as error:
            field = error.field if isinstance(error, FieldError) else _network_field(form)
            form.errors[field] = plain(str(error))

    def _answered(
        self,
        form: Form,
        question: LatencyQuestion | BudgetQuestion | TrainingQuestion,
        network: CachedNetwork,
        prices: Prices,
    ) -> dict[str, Any]:
        """The answer as the template of the tab needs it; StillReading."""
        graph, name = network.graph, network.file_name

        def at_size(side: int) -> Graph:
            return self._network(NetworkKey(question.network.spec, (side,))).graph

        match question:
            case LatencyQuestion():
                answers = latency.latencies(question, graph, form.devices)
                shown = latency.shown(question, graph, name, answers, form.link())
            case BudgetQuestion():
                shown = latency.budgets(question, graph, name, form.devices, at_size)
            case _:
                trained = training.answers(question, graph, form.devices, prices)
                shown = training.shown(question, graph, name, trained)
        return {"blocks": None} | shown | {"uploaded": question.network.uploaded, "file_name": name}

    def _network(self, key: NetworkKey) -> CachedNetwork:
        """StillReading, or as `NetworkCache.get`."""
        found = self.networks.get(key)
        if found is None:
            raise StillReading(key)
        return found

    def _listed(self, model: DeviceModel, form: Form, prices: Prices) -> dict[str, Any]:
        """A model as the form lists it."""
        offer = self.prices.rented(model, prices)
        listed_price = offer.machines(1).price_per_hour if offer else None
        gib = model.memory_bytes
        return {
            "key": model.key,
            "shown": plain(model.key),
            "device": model.device,
            "group": CHOSEN if model.key in form.ticked else model.group,
            "without": [f"no-{v}" for v in model.lacking],
            "ticked": model.key in form.ticked,
            "price_name": price_name(model.key),
            "price": form.text(price_name(model.key)),
            "price_hint": "" if listed_price is None else f"{listed_price:.2f}",
            "price_from": "" if offer is None else f"{offer.where}: {dollars(listed_price or 0.0)}",
            "memory_name": memory_name(model.key),
            "memory": form.text(memory_name(model.key)),
            "memory_hint": "" if gib is None else f"{gib / 2**30:.3g}",
        }


def _network_field(form: Form) -> str:
    """The field that an error of the network belongs to."""
    source = form.text("source")
    if source == "generate":
        return family_fields(form.text("family"))[0].name
    return "upload" if source == "upload" else "name"
