"""A device profile: its file, its predictors, and latencies from counts.

Modules that only networks need are imported when the first network comes, so that a new process answers
quickly from counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from itertools import compress
from typing import Any, Self

from lolat.device.file import OF_INFERENCE, DeviceFile, read
from lolat.device.predictors.formula import LARGEST_COUNT, Formula
from lolat.device.question import RunAs
from lolat.device.state import State, state_of
from lolat.errors import InputError, ModelFileError, arg
from lolat.graph.counts import FEATURES
from lolat.io.results import Result, dict_of
from lolat.parameters import PARAMETERS, PRECISIONS
from lolat.units import value_words

Numbers = Any  # a number or an array of them
_NUMBERS = frozenset([int, float])


class Device(Result):
    """A device profile, which predicts the latency of networks that were read.

    `label`: the path or name that the user loaded it by; `profile`: path or name of the profile that
    answers, which may be another one; `source`: the path of its file.
    """

    def __init__(
        self, file: DeviceFile | Mapping[str, Any], source: str = "model", label: str = ""
    ) -> None:
        """`file`: the device's file, or the contents of a valid file; `label`: defaults to `source`."""
        if isinstance(file, (str, os.PathLike)):
            words = (
                f"{type(self).__name__}({os.fspath(file)!r}): expected the contents of a profile"
            )
            raise InputError(f"{words}; by its name: lolat.load({os.fspath(file)!r})")
        self.file = file if isinstance(file, DeviceFile) else DeviceFile(file)
        self.source, self.label = source, label or source
        self.profile, self.row = self.label, ""
        self.name, self.device, self.default = self.file.name, self.file.device, self.file.default
        self.predictors = self.file.formulas
        self._plans: dict[Any, tuple[Formula, list[int]]] = {}  # a cache of `predict_counts`
        self._loaded: Self | None = None  # the device before all `run_as`; None: this one
        self._in_mode: dict[RunAs, Self] = {}  # a cache of `run_as`
        self.asked = RunAs()  # the mode that `run_as` was asked for
        if self.file.has_latencies and self.default not in self.predictors:
            raise ModelFileError(
                f"{source}: its default predictor {self.default!r} is unknown to this LoLat (known: "
                f"{', '.join(sorted(self.predictors)) or 'none of them'}); get a newer LoLat"
            )

    # ---- Its file

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a device from a JSON file, or by the name of a bundled profile or "local".

        "local" is the device learned last on this machine; `lolat.load` also knows the names of GPUs.
        ModelFileError if there is no such profile, or its file is damaged or something else.
        """
        from lolat.device.lookup import find_model

        label = os.fspath(path)
        file = find_model(label)
        return cls(read(file), str(file), label)

    @property
    def row_name(self) -> str:
        """The device's name in a table: its `label`, with its precision if several are compared."""
        return self.row or self.label

    def words(self) -> str:
        """The device, the date and framework of its measurements, and the error of its default formula."""
        from lolat.device.summary import words_of

        return words_of(self)

    def to_dict(self) -> dict[str, Any]:
        """The contents of the file without its points, as a `lolat.device.summary.ModelSummary`."""
        from lolat.device.summary import summary_of

        return dict_of(summary_of(self))

    @property
    def latencies_file(self) -> DeviceFile:
        """The file, if it has latencies of inference; else a ModelFileError that says how to get them."""
        if not self.file.has_latencies:
            from lolat.device.remedies import lacking_error

            raise lacking_error(self.file, self.source, OF_INFERENCE)
        return self.file

    @cached_property
    def state(self) -> State | None:
        """Age and last check of the device; None if it was learned on another machine."""
        return state_of(self.file, self.source)

    def predictor(self, name: str | None = None) -> Formula:
        """The predictor of that name; None for the default one.

        InputError for an unknown name, ModelFileError if the file has no latencies of inference.
        """
        _ = self.latencies_file
        given = self.default if name is None else name
        chosen = self.predictors.get(given) if isinstance(given, str) else None
        if chosen is None:
            is_precision = PARAMETERS["precision"].word(name) in PRECISIONS
            hint = f"; did you mean {arg('precision')} {name!r}?" if is_precision else ""
            # An input size in third place; in `lolat.read` it is the second argument.
            if isinstance(name, (int, tuple, list)):
                hint = f"; did you mean {arg('input_size')}={name}?"
            known = " or ".join(self.predictors)
            raise InputError(
                f"{arg('predictor')} {value_words(name)}: expected {known}, which {self.source} has{hint}",
                code="predictor",
            )
        return chosen

    @property
    def has_host(self) -> bool:
        """True if a host launches the device's operations."""
        return any(getattr(formula, "host", None) for formula in self.predictors.values())

    def run_as(
        self, precision: str | None = None, launch: str | None = None, host_us: float | None = None,
        channels_last: bool = False,
    ) -> Self:  # fmt: skip
        """The device in another execution mode.

        `precision`: fp32, tf32, amp, fp16 or bf16; a precision that was not measured is predicted from the
        GPU's data sheet, with a wider interval. `launch`: eager, compiled or graph. `host_us`: time that
        the host takes to launch an operation, µs. `channels_last`: the layout of images in half precision.
        None keeps the value of an earlier call, else the measured value or the usual host. InputError for a
        mode that the device lacks or that cannot be predicted.
        """
        asked = RunAs(
            precision=precision, launch=launch, host_us=host_us, channels_last=channels_last
        )
        if asked == RunAs():
            return self
        from lolat.device.execution_modes import run_as

        loaded = self if self._loaded is None else self._loaded
        whole = asked.after(self.asked)
        if whole not in loaded._in_mode:
            loaded._in_mode[whole] = made = run_as(loaded, whole)
            made._loaded = loaded
        return loaded._in_mode[whole]

    # ---- The latency of a network

    def predict_counts(
        self,
        acts: Numbers,
        inp: Numbers,
        flops: Numbers,
        traffic: Numbers = None,
        weights: Numbers = None,
        ops: Numbers = None,
        predictor: str | None = None,
    ) -> Any:
        """Latency in ms from counts: numbers give a float, arrays (broadcast) an array.

        Three counts are answered by the two-regime formula, all six by the default formula's fit to six
        counts; any other selection is an InputError. A number must be finite and not negative; a NaN in an
        array gives a NaN.
        """
        key = (traffic is None, weights is None, ops is None, predictor)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._formula_and_places(key[:3], predictor)
        formula, positions = plan
        every = (acts, inp, flops, traffic, weights, ops, 0.0)
        values = [every[i] for i in positions]
        # This common case needs no loop in Python.
        if _NUMBERS.issuperset(map(type, values)) and (
            not values or (min(values) >= 0.0 and max(values) < LARGEST_COUNT)
        ):
            answer = formula.one(values)
            if answer == answer:  # no NaN among them
                return float(answer)
        return formula.latencies(values)

    def _formula_and_places(
        self, left_out: tuple[bool, ...], predictor: str | None
    ) -> tuple[Formula, list[int]]:
        """(the formula for the given counts, the position of each of its features in the six counts or -1).

        `left_out`: for each of the last three counts, True if it was not given.
        """
        absent = [*compress(FEATURES[3:], left_out)]
        if 0 < len(absent) < 3:
            raise InputError(
                f"predict_counts() lacks {', '.join(absent)}; give only acts, inp, flops (the two-regime "
                "formula answers) or traffic, weights and ops too"
            )
        formula = self.predictor(predictor or "two-regime" if absent else predictor).of_six_counts
        if lacking := [name for name in formula.features if name in absent]:
            raise InputError(
                f"predictor {formula.name!r} needs {', '.join(lacking)} too; give all six counts"
            )
        places = {name: place for place, name in enumerate(FEATURES)}
        return formula, [places.get(name, -1) for name in formula.features]
