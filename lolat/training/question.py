"""A question about training: the data, the recipe, the devices, their prices, the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from lolat.device.question import RunAs, several
from lolat.errors import InputError, arg
from lolat.hardware.rental import check_price
from lolat.parameters import PARAMETERS, check_given, surely

if TYPE_CHECKING:
    from lolat.hardware.prices import Prices
    from lolat.parameters import InputSize


@dataclass(frozen=True)
class TrainingQuestion(RunAs):
    """A question about training, with one or several batch sizes and ways to checkpoint; `lolat.parameters`
    describes its arguments. `batch_size`: None is AUTO, but see `lolat.training.compare.with_update`.

    If several devices are asked, each answers in its fastest precision and layout if `precision` is None or
    BEST. `input_size`: the size at which a network is read, of a decoder the tokens of a sequence.
    `prices`: a price list or its file, a CSV as SkyPilot's; None: the built-in list. `sure`: the upper ends
    of the intervals must be within the limits; a number is the coverage in percent, and becomes True.
    InputError for two sources of prices, impossible limits, and unknown words in `checkpointing`.
    """

    batch_size: int | str | Sequence[int | str] | None = None
    samples: int | None = None
    epochs: int = 1
    optimizer: str | None = None
    coverage: float | None = None
    _: KW_ONLY
    replicas: int | Sequence[int] = ()
    accumulate: int | None = None
    global_batch_size: int | None = None
    checkpointing: str | Sequence[str] | None = None
    tune: str | None = None
    sharding: str = "none"
    tokens: float | None = None
    mean_tokens: float | None = None
    validation_samples: int | None = None
    link_gbps: float | None = None
    memory_gib: float | None = None
    max_hours: float | None = None
    max_dollars: float | None = None
    price_per_hour: float | None = None
    prices: str | Prices | None = None
    input_size: InputSize = None
    sure: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_sure()
        if self.global_batch_size is not None:
            check_given(global_batch_size=self.global_batch_size)
            if self.accumulate is not None:
                why = (
                    "they follow from it, the batch size and the number of devices; leave them out"
                )
                given = f"{arg('accumulate')} beside {arg('global_batch_size')}"
                raise InputError(f"{given}: {why}", code="given-twice")
        if self.samples is self.tokens is None and self.epochs != 1:
            data = f"{arg('samples')} or {arg('tokens')}"
            raise InputError(
                f"{arg('epochs')} without {data}: expected the data of an epoch too", code="epochs"
            )
        has_bound = not (self.max_hours is self.samples is self.tokens is None)
        if self.max_dollars and self.price_per_hour == 0 and not has_bound:
            why = "buys any number of samples; give a price, or the data that is trained on"
            given = f"{arg('max_dollars')} {self.max_dollars:g} at {arg('price_per_hour')} 0"
            raise InputError(f"{given} {why}", code="price-of-zero")
        check_given(tune=self.tune)
        if self.tune:
            from lolat.training.tuning import Tuning

            Tuning.named(self.tune)  # before the network is read
        check_price(self.price_per_hour, self.prices)
        numbers = ("memory_gib", "max_hours", "max_dollars", "link_gbps", "coverage")
        check_given(**{name: getattr(self, name) for name in numbers})
        chosen = filter(None, several(self.checkpointing))
        words = tuple(dict.fromkeys(map(PARAMETERS["checkpointing"].choice, chosen)))
        object.__setattr__(self, "checkpointing", words if words[1:] else "".join(words) or None)

    def _check_sure(self) -> None:
        """Set the coverage from `sure`; InputError if `sure` is given without a limit, or without data."""
        sure, coverage = surely(self.sure, self.coverage)
        object.__setattr__(self, "sure", sure)
        object.__setattr__(self, "coverage", coverage)
        if not sure:
            return
        if self.max_hours is self.max_dollars is None:
            limits = f"{arg('max_hours')} and {arg('max_dollars')}"
            words = f"{arg('sure')} is for {limits}; leave it out, or give one of them"
            raise InputError(words, code="sure")
        if self.samples is self.tokens is None:
            raise InputError(
                f"{arg('sure')} without {arg('samples')} or {arg('tokens')}: expected the data whose time "
                "is limited; leave it out for the data within a limit, with its interval",
                code="sure",
            )

    @property
    def recomputed(self) -> str | None:
        """The way to checkpoint, if the question has only one; else None."""
        return self.checkpointing if isinstance(self.checkpointing, str) else None
