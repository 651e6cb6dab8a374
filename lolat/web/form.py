"""The page's form: its texts, the question that they ask, and the link that asks it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from lolat.api.profile_names import ALL
from lolat.errors import InputError, LolatError, without_options
from lolat.parameters import LENGTH, SIZE, TRACE
from lolat.readers.size import OWN_SIZE, Size, as_size
from lolat.training.compare import usual_update
from lolat.units import plain, shortened
from lolat.web.devices import ALL_OF_THEM, OTHER, ListedDevice, keys_of, of_each_gpu, unlisted
from lolat.web.fields import COMPARING, EXAMPLES, FIELDS, KEYS, TABS, Field
from lolat.web.networks import UPLOAD, sent_name
from lolat.web.values import EVERY


class Form:
    """The texts of the fields as typed. `errors`: field -> message."""

    other, all_of_them = OTHER, ALL_OF_THEM

    def __init__(
        self, query: Iterable[tuple[str, str]], devices: Mapping[str, ListedDevice]
    ) -> None:
        """`query`: (name, text) pairs, of which the first of each name counts; `devices`: key -> device."""
        query = list(query)
        texts = {name: text.strip() for name, text in reversed(query)}
        self.errors: dict[str, str] = {}
        names = [name for name, _ in dict.fromkeys(query)]
        view = texts.get("view", "")
        first = next((d for d in devices.values() if d.is_own), None)
        usual = "latency" if first is None or first.answers(False) else "llm"
        self.view = view if view in TABS else usual
        self.own_fields, self.subject = TABS[self.view].fields, TABS[self.view].subject
        self.fields, self.keys = TABS[self.view].every, KEYS[self.view]
        seen = TABS[self.view].first
        self.first, self.others = self.own_fields[:seen], self.own_fields[seen:]
        given = texts | {key: texts[name] for name, key in self.keys.items() if name in texts}
        self.typed = {
            k: given[k] for k, f in FIELDS.items() if given.get(k, f.default) != f.default
        }
        is_decoder = self.subject.is_decoder
        offered = {key: d for key, d in devices.items() if d.answers(is_decoder)}
        # Training does not depend on a serving framework: one profile for each GPU is enough.
        alike = of_each_gpu(offered) if self.view == "decoder" else {key: key for key in offered}
        self.devices = {key: d for key, d in offered.items() if alike[key] == key}
        # A submitted form always has an empty `model`; the first request has none.
        given_names = [text for name, text in query if name == "model"]
        self.offers_all = self.view in COMPARING
        self.is_all = self.offers_all and ALL in given_names
        if ALL in given_names:  # on other tabs "all" means every listed device
            given_names = [n for n in given_names if n != ALL] if self.is_all else [*self.devices]
        each = (keys_of(name, self.devices, self.view) for name in given_names)
        asked = dict.fromkeys(alike.get(key, key) for keys in each for key in keys)
        self.every = {**devices, **self.devices}
        own = [d.key for d in self.devices.values() if d.is_own]
        usually = own[:1] or [k for k in EXAMPLES if k in self.devices] or [*self.devices][:1]
        asked = asked if asked or self.is_all else dict.fromkeys(usually)
        self.ticked = [key for key in asked if key in self.devices]
        self.beside_all = [self.devices[key] for key in dict.fromkeys([*own, *self.ticked])]
        self.refused = [key for key in asked if key and key not in self.devices]
        # The form also carries the devices and texts of other tabs.
        self.elsewhere = [key for n, key in query if n == "elsewhere" and key in {ALL, *devices}]
        self.kept = [("elsewhere", key) for key in self.elsewhere]
        self.kept += [(k, text) for k, text in self.typed.items() if k not in self.keys.values()]
        known = {"view", "model", "file", "elsewhere", "only", *self.keys, *FIELDS}
        self.unknown = [shortened(name) for name in dict(query) if name not in known]
        self.twice = [n for n, key in self.keys.items() if names.count(n) + names.count(key) > 1]
        self.unknown += [f"view {shortened(view)}"] if view not in ("", *TABS) else []

    def text(self, name: str) -> str:
        """The text of a field as typed, or its default.

        "" for a concurrency if there is a request rate, and for numbers of tokens if there is a table of
        arrivals.
        """
        if name == "concurrency" and (
            self.text("request_rate") or self.text("arrivals").startswith(UPLOAD)
        ):
            return ""
        has_own = name in TRACE and self.text("arrivals").startswith(UPLOAD)
        return self.typed.get(self.keys[name], "" if has_own else self.fields[name].default)

    def asked(self, name: str) -> str:
        """The text of a field for the question, like `text`.

        Without any batch size the global batch size gets its default, so that all numbers of devices run
        the same training.
        """
        names = "batch_size", "global_batch_size", "accumulate"
        if self.view == "training" and name == names[1] and not any(map(self.text, names)):
            with suppress(InputError):
                numbers = (self.fields[of].value(self.text(of)) for of in ("replicas", "samples"))
                return str(usual_update(*numbers) or "")
        return self.text(name)

    def question(self) -> dict[str, Any] | None:
        """The value of each field; None if one is wrong or no device is ticked.

        `errors` then says which. It also names unlisted devices, but these do not stop listed devices from
        answering.
        """
        values = {}
        for name, field in self.fields.items():
            try:
                values[name] = field.value(self.asked(name))
            except InputError as error:
                self.refuse(error, name)
        question = None if self.errors or not (self.ticked or self.is_all) else values
        if self.refused:
            self.errors["model"] = unlisted(self.refused, self.every, self.devices)
        elif self.devices and not (self.ticked or self.is_all):
            self.errors["model"] = "none is chosen; choose at least one"
        return question

    def size(self) -> Size:
        """The input size of the question; OWN_SIZE for a decoder."""
        if self.subject.is_decoder:
            return OWN_SIZE
        given = {name: self.fields[name].value(self.text(name)) for name in (SIZE, LENGTH)}
        return as_size(given if given[LENGTH] else given[SIZE])

    def folded_words(self, fields: Iterable[Field]) -> str:
        """A colon and the folded fields that differ from their defaults; "" if none does."""
        fields = (f for f in fields if self.text(f.name) != f.default)
        words = ", ".join(f"{f.label} {self.text(f.name) or 'empty'}" for f in fields)
        return f": {words}" if words else ""

    def are_wrong(self, fields: Iterable[Field], more: str = "") -> bool:
        """True if one of these fields, or the field `more`, has an error."""
        return not self.errors.keys().isdisjoint([more, *(field.name for field in fields)])

    def words(self, error: LolatError) -> str:
        """The message of an error, with labels of fields in place of arguments and options."""
        return self.line(error.worded(self._label))

    def line(self, text: str) -> str:
        """A line of an answer with labels of fields in place of options; a line with a command stays.

        A placeholder such as N is left out; the value of a choice or flag goes into the label's quotation
        marks.
        """

        def label(name: str, word: str) -> str:
            if name not in self.fields:
                return f"--{name.replace('_', '-')} {word}".rstrip()
            of = self.fields[name]
            if word and of.choices and word in of.choices:
                return f'"{of.label}: {of.choices[word]}"'
            if of.parse is bool and of.choices:
                return f'"{of.label}: {[*of.choices.values()][-1]}" {word}'.rstrip()
            return f"{self._label(name)} {'' if word.isupper() else word}".rstrip()

        return plain(without_options(text, label))

    def _label(self, name: str) -> str:
        if name in self.fields:
            return f'"{self.fields[name].label}"'
        return f"--{name.replace('_', '-')}" if name in EVERY else name

    def refuse(self, error: LolatError, otherwise: str, before: str = "") -> None:
        """Store an error for the field that it names, else for `otherwise`, without the field's label."""
        field = next((name for name in error.arguments if name in self.fields), otherwise)
        self.errors[field] = before + self.words(error).removeprefix(f"{self._label(field)} ")

    @property
    def has_host(self) -> bool:
        """True if any of the devices has a host, which launches its operations."""
        return any(self.devices[key].model.has_host for key in self.ticked)

    def options(self, but: str = "") -> list[str]:
        """The nonempty fields of the tab, except `but`, as options of its command."""
        words = []
        for field in (*self.subject.fields[1:], *self.own_fields):
            if (text := field.word(self.asked(field.name))) and field.name != but:
                is_flag = field.parse is bool
                option = "--" + field.name.replace("_", "-")
                words += [option] if is_flag else [option, text]
        return words

    def network(self) -> str:
        """The argument NETWORK or CONFIG of a command; for an uploaded file its name."""
        named: str = self.subject.named.value(self.text(self.subject.named.name))
        name = sent_name(named)
        return f"./{name}" if name != named and (name.startswith("-") or ":" in name) else name

    def link(self, **changes: str) -> str:
        """The query string of this view, with some fields changed.

        It includes fields with default values, so that a link keeps its meaning if defaults change.
        """
        given = {name: text for name in self.fields if (text := self.text(name))}
        more = self.refused or ([""] if not self.ticked else [])
        return self._address(self.view, more, {**given, **changes})

    def tabs(self) -> dict[str, tuple[str, str]]:
        """View -> (title, address) of its tab; the address keeps the devices and the texts of all tabs."""
        return {view: (tab.title, self._address(view)) for view, tab in TABS.items()}

    def _address(self, view: str, more: Iterable[str] = (), changes: Mapping[str, str] = {}) -> str:
        names = {key: name for name, key in KEYS[view].items()}
        texts = self.typed | {self.keys[name]: text for name, text in changes.items()}
        is_decoder = TABS[view].subject.is_decoder
        offered = {key for key, device in self.every.items() if device.answers(is_decoder)}
        offered |= {ALL} if view in COMPARING else set()
        asked = (*([ALL] if self.is_all else []), *self.ticked, *self.elsewhere)
        devices = [("model" if key in offered else "elsewhere", key) for key in asked]
        pairs = [("view", view), *devices, *(("model", key) for key in more)]
        pairs += [(names.get(key, key), text) for key, text in texts.items()]
        return "/?" + urlencode(pairs, safe=",:@")
