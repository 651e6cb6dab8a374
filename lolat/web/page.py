"""One page: from what is typed to HTML, by the template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lolat import __version__
from lolat.errors import InputError
from lolat.graph import Graph
from lolat.model.prediction import domain_words
from lolat.readers.cache import shipped_networks
from lolat.readers.children import ENDINGS
from lolat.report.bottlenecks import page
from lolat.report.cost import fit_words
from lolat.units import byte_size, dollars, duration, milliseconds, percent, plain, plural
from lolat.web.devices import GROUPS, DeviceModel, DeviceModels
from lolat.web.form import FIELDS, Form, Question
from lolat.web.latency import between, budgets, latencies, sure_of
from lolat.web.networks import MOST_BYTES, CachedNetwork, NetworkCache, NetworkKey
from lolat.web.training import trainings

CHOSEN = "Chosen"
EXAMPLE_PRICE = "1.00"
"""US$ an hour, filled in at first for a device that the price list does not know."""
WORDS = [between, byte_size, domain_words, dollars, duration, fit_words, milliseconds, percent, plain,
         plural, sure_of]  # fmt: skip
"""What the templates say numbers with."""


class Pages:
    """Makes pages; holds what they share: the networks, the models and the prices."""

    def __init__(self, networks: NetworkCache, named: Sequence[Path] = ()) -> None:
        """`named`: model files to list besides the local and the shipped ones."""
        from jinja2 import Environment, PackageLoader, StrictUndefined

        self.networks, self.models = networks, DeviceModels(named)
        self._environment = Environment(
            loader=PackageLoader("lolat.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        words = {word.__name__: word for word in WORDS}
        self._environment.filters |= words
        self._environment.globals |= words

    def page(self, query: Iterable[tuple[str, str]], upload_error: str = "") -> str:
        """The page for a query's (name, text); `upload_error`: what is wrong with a file just sent."""
        context: dict[str, Any] = {"answer": None, "problem": "", "lacking": ()}
        query = list(query)
        listed: list[tuple[str, DeviceModel]] = []
        usable = False
        try:
            form = self._form(query)
            usable = any(m.answers(form.view) for m in form.devices.values())
            question = form.question() if usable else None
            if upload_error:
                form.errors["upload"] = upload_error
            elif question is not None:
                self._answer(context, form, question)
            listed = [
                (CHOSEN if m.key in form.ticked else m.group, m) for m in form.devices.values()
            ]
        except InputError as error:  # of a folder
            form = Form(query)
            context["problem"] = plain(str(error))
        page: str = self._environment.get_template("page.html").render(
            **context,
            form=form,
            groups=[
                (g, [model for group, model in listed if group == g]) for g in (CHOSEN, *GROUPS)
            ],
            usable=usable,
            fields=FIELDS,
            networks=[n.removeprefix("keras:") for n in shipped_networks()],
            link=f"/?{form.link()}",
            most_mib=MOST_BYTES // 2**20,
            most_bytes=MOST_BYTES,
            endings=ENDINGS,
            version=__version__,
            folder=str(Path.cwd()),
        )
        return page

    def report(self, query: Iterable[tuple[str, str]]) -> str | None:
        """The report page of the device that `only` of a latency question's link names; None where it
        cannot be answered: the page says why.
        """
        query = list(query)
        try:
            form = self._form(query)
            question = form.question()
            if question is None or form.view != "latency":
                return None
            graph = self.networks.get(question.network).graph
            only = dict(query).get("only", form.ticked[0])
            model = form.devices[only].latency if only in form.ticked else None
            return page(model.predict(graph, question.batch[0])) if model else None
        except InputError:
            return None

    def link(self, query: Iterable[tuple[str, str]]) -> str:
        """The address of the page for a query's (name, text). InputError as of the folders of models."""
        return f"/?{self._form(query).link()}"

    def _form(self, query: Iterable[tuple[str, str]]) -> Form:
        """The form as it was filled in; what was not is as the models have it at first."""
        models = self.models.all()
        first = {
            f"price.{m.key}": "" if m.rental else EXAMPLE_PRICE
            for m in models
            if m.training is not None
        }
        known = next((m.training for m in models if m.training is not None), None)
        usual = FIELDS["optimizer"].default
        optimizers = getattr(known, "optimizers", ())  # of a model fitted to epochs
        if optimizers and usual not in optimizers:
            first["optimizer"] = optimizers[0]
        return Form(query, models, first)

    def _answer(self, context: dict[str, Any], form: Form, question: Question) -> None:
        """Put the answer into the context, or errors into the form."""
        models = [form.devices[key] for key in form.ticked]
        lacking = [(plain(m.key), m.lacking[form.view]) for m in models if not m.answers(form.view)]
        context["lacking"] = lacking
        if len(lacking) == len(models):
            return
        try:
            found = self.networks.get(question.network)
            shown = self._answered(form, question, found)
            several, uploaded = len(shown["cards"]) > 1, question.network.uploaded
            shown |= {"several": several, "uploaded": uploaded, "file_name": found.file_name}
            context["answer"] = {"blocks": None} | shown
        except InputError as error:
            form.errors[form.field_at_fault(error)] = form.words(error)

    def _answered(self, form: Form, question: Question, network: CachedNetwork) -> dict[str, Any]:
        """The answer as the template of the tab needs it."""
        asked = question, network.graph, network.file_name, form.devices

        def at_size(side: int) -> Graph:
            return self.networks.get(NetworkKey(question.network.spec, (side,))).graph

        if form.view == "latency":
            return latencies(*asked, form.link())
        if form.view == "budget":
            return budgets(*asked, at_size, form.words)
        return trainings(*asked)
