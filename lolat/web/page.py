"""One page: from what is typed to HTML, by the template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lolat import __version__
from lolat.errors import InputError
from lolat.training.cost.prices import Prices
from lolat.units import dollars, plain
from lolat.web.answer import (
    DeviceModel,
    DeviceModels,
    PriceList,
    answers,
    prices_at_first,
    rented,
)
from lolat.web.forms import (
    APPLICATIONS,
    FAMILY_WORDS,
    FIELDS,
    FieldError,
    Form,
    Question,
    family_fields,
    memory_name,
    price_name,
)
from lolat.web.networks import MOST_BYTES, NetworkCache
from lolat.web.view import shown

PATIENCE_S = 1.0
"""How long a page waits for a network that is being read before it says so."""


class Pages:
    """Makes pages; holds what they share: the networks, the models and the prices."""

    def __init__(self, networks: NetworkCache, named: Sequence[Path] = ()) -> None:
        """`named`: model files to list besides the local and the shipped ones."""
        from jinja2 import Environment, PackageLoader, StrictUndefined

        self.networks, self.models, self.prices = networks, DeviceModels(named), PriceList()
        self._environment = Environment(
            loader=PackageLoader("lolat.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def page(
        self,
        query: Iterable[tuple[str, str]],
        patience_s: float = PATIENCE_S,
        upload_error: str = "",
    ) -> str:
        """The page for a query's (name, text); `upload_error`: why a file just sent is none."""
        context: dict[str, Any] = {"answer": None, "waiting": "", "problem": ""}
        models: list[DeviceModel] = []
        try:
            models = self.models.all()
            usable = {m.key: m for m in models if m.model is not None}
            prices = self.prices.current()
            form = self._form(query, models, prices)
            question = form.question() if usable else None
            if upload_error:
                form.errors["upload"] = upload_error
            elif question is not None:
                self._answer(context, form, question, usable, patience_s)
            listed = [self._listed(m, form) for m in models]
        except InputError as error:  # of a folder, or of the price list
            form, listed = Form(query, {}), []
            context["problem"] = plain(str(error))
        return self._environment.get_template("page.html").render(
            **context,
            form=form,
            models=listed,
            usable=any(not m["lacking"] for m in listed),
            fields=FIELDS,
            families=[(f, w, family_fields(f)) for f, w in FAMILY_WORDS.items()],
            applications=APPLICATIONS,
            link=f"/?{form.link()}",
            most_mib=MOST_BYTES // 2**20,
            most_bytes=MOST_BYTES,
            loading=not self.networks.ready,
            version=__version__,
            folder=str(Path.cwd()),
        )

    def link(self, query: Iterable[tuple[str, str]]) -> str:
        """The address of the page for a query's (name, text). InputError as of the folders of models."""
        return f"/?{self._form(query, self.models.all(), self.prices.current()).link()}"

    def _form(
        self, query: Iterable[tuple[str, str]], models: Sequence[DeviceModel], prices: Prices
    ) -> Form:
        """The form as it was filled in; what was not is as the models have it at first."""
        first = next((m.model for m in models if m.model is not None), None)
        usual = FIELDS["optimizer"].default
        known = getattr(first, "optimizers", ())  # of a model fitted to epochs
        optimizer = known[0] if known and usual not in known else usual
        return Form(query, prices_at_first(models, prices), optimizer)

    def _answer(
        self,
        context: dict[str, Any],
        form: Form,
        question: Question,
        models: dict[str, DeviceModel],
        patience_s: float,
    ) -> None:
        """Put the answer, or that it is waited for, into the context; or errors into the form."""
        try:
            network = self.networks.get(question.network, patience_s)
            if network is None:
                context["waiting"] = plain(question.network.spec.removeprefix("keras:"))
                return
            device_answers = answers(question, network.graph, models, self.prices.current())
        except InputError as error:
            field = error.field if isinstance(error, FieldError) else _network_field(form)
            form.errors[field] = plain(str(error))
            return
        context["answer"] = shown(question, network.graph, network.file_name, device_answers)

    def _listed(self, model: DeviceModel, form: Form) -> dict[str, Any]:
        """A model as the form lists it."""
        offer = rented(model.model, self.prices.current()) if model.model is not None else None
        listed_price = offer.machines(1).price_per_hour if offer else None
        gib = model.memory_bytes
        return {
            "key": model.key,
            "shown": plain(model.key),
            "device": model.device,
            "lacking": model.lacking,
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
