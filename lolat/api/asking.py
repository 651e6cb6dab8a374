"""Questions to devices by name, as in the commands: `lolat.predict` and `lolat.compare`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack, overload

from lolat.api.model import Model
from lolat.device.question import LatencyOptions, LatencyQuestion, several
from lolat.errors import InputError, ModelFileError, arg, argument_code
from lolat.io.forms import looks_like_network
from lolat.parameters import asks, check_names, with_length
from lolat.units import names_in

if TYPE_CHECKING:
    from lolat.api.predicting import Predictions
    from lolat.device.prediction import Prediction
    from lolat.io.progress import OnProgress
    from lolat.llm.compare import ComparedModels
    from lolat.training.compare import Costs


@overload
def predict(
    network: Any, on: str | Model, batch_size: int | str = 1, predictor: str | None = None,
    coverage: float | None = None, **more: Unpack[LatencyOptions],
) -> Prediction: ...  # fmt: skip


@overload
def predict(network: Any, on: Sequence[str | Model], *args: Any, **more: Any) -> Predictions: ...


@asks(LatencyQuestion)  # type: ignore[misc] # mypy does not know the first arguments by name
def predict(
    network: Any, on: str | Model | Sequence[str | Model], asked: LatencyQuestion
) -> Prediction | Predictions:
    """Predict the latency of a network on one device or several, as `lolat predict NETWORK --on` does.

    `on`: a device's name or file, a `Model`, or a list of them; "all": every device that `lolat models`
    lists and that can answer, the fastest first. Several GPUs answer in their fastest precisions if
    `precision` is not given. Other arguments are as for `Model.predict`; `precision` and `launch` may also
    be lists to compare. One network, device, batch size and mode give a `Prediction`; a list of any of
    them, or "all", gives `Predictions`. A dict names networks: {"narrow": network}. The arguments are the
    options of `lolat predict`:
    """
    from lolat.api.choosing import devices
    from lolat.api.predicting import ask
    from lolat.api.profile_names import ALL

    _check_order(network, several(on))
    models, left_out = devices(several(on), asked)
    is_one = isinstance(on, Model) or (isinstance(on, str) and on != ALL and "," not in on)
    is_single = is_one and len(asked.modes) == 1
    has_all = ALL in names_in(*(one for one in several(on) if isinstance(one, str)))
    return ask(network, asked, models, left_out, is_single, ranked=has_all)


@overload
def compare(
    network: Any, batch_size: int | str | Sequence[int | str], on: str | Sequence[str] = (), **asked: Any
) -> Costs: ...  # fmt: skip


@overload
def compare(network: Any, *, on: str | Sequence[str] = (), **asked: Any) -> ComparedModels: ...


def compare(
    network: Any,
    batch_size: int | str | Sequence[int | str] | None = None,
    on: str | Sequence[str] = (),
    *,
    on_progress: OnProgress | None = None,
    **asked: Any,
) -> Costs | ComparedModels:
    """Compare devices for training a network, or for serving language models.

    Training is as in `lolat cost NETWORK`: time, memory and dollars. `on`: devices as `load` takes them;
    "all" or none: every device with times and a price. `asked`: the other arguments of `Model.cost`;
    `precision`: None or "best" for each device's fastest precision and layout. `on_progress`: called after
    each device with (number done, number of all, name). Returns `Costs`, an answer for each device and
    batch size. Without a batch size every update has 256 samples, and a language model is served instead of
    trained.

    Serving is as in `lolat llm GPU,GPU CONFIG`: `asked` are the other arguments of `Model.llm`, such as
    `concurrency` or `request_rate`; `network`: one language model, a list, or a dict with their names.
    Returns `ComparedModels`: the best row of each device and language model. Raises InputError if no device
    can answer.
    """
    from lolat.api.profile_names import ALL
    from lolat.api.serving import serving_models
    from lolat.llm.compare import compare as compare_served
    from lolat.llm.names import configs_of, is_decoder

    given = several(on) or (ALL,)
    if not all(isinstance(name, str) for name in given):
        raise InputError(
            f"{arg('on')}: expected names of devices, as lolat.models() lists them; a loaded profile "
            "answers by its own methods (cost, llm)",
            code="no-device",
        )
    _check_order(network, given)
    if batch_size is None and all(map(is_decoder, configs_of(network))):
        models, left_out = serving_models(",".join(names_in(*given)))
        each = {name: model.llm for name, model in models.items()}
        return compare_served(each, network, left_out, on_progress=on_progress, **asked)
    return train_on(network, batch_size, given, on_progress=on_progress, **asked)


def train_on(
    network: Any,
    batch_size: int | str | Sequence[int | str] | None,
    on: Sequence[str] = (),
    *,
    on_progress: OnProgress | None = None,
    **asked: Any,
) -> Costs:
    """Compare devices for training a network or a language model; see `compare`."""
    from lolat.api.choosing import devices, with_a_price
    from lolat.api.profile_names import ALL
    from lolat.api.serving import serving_models
    from lolat.hardware.rental import given_list
    from lolat.llm.names import is_decoder
    from lolat.training import compare as training
    from lolat.training.question import TrainingQuestion

    names = names_in(*(on or (ALL,)))
    _check_training(network, batch_size, asked)
    if is_decoder(network):
        by_name, left_out = serving_models(",".join(names), of_any=True)
        models = [*by_name.values()]
    else:
        models, left_out = devices(names, every=True, launch=asked.get("launch"))
    listed = given_list(asked.get("price_per_hour"), asked.get("prices"))
    if ALL in names:
        models, unpriced = with_a_price(models, listed, is_decoder(network))
        left_out = {**left_out, **unpriced}
    asked = with_length(asked) | {"prices": listed, "replicas": asked.get("replicas") or ()}
    check_names(TrainingQuestion, asked)
    question = TrainingQuestion(batch_size, **asked)
    return training.compare(models, network, question, left_out, on_progress, is_alike=ALL in names)


def _check_training(network: Any, batch_size: Any, asked: Mapping[str, Any]) -> None:
    """Raise InputError for several networks to train, and for arguments of serving."""
    from lolat.llm.names import is_decoder

    if isinstance(network, (list, dict)) and not is_decoder(network):
        raise InputError(
            f"{arg('network')}: a {type(network).__name__} of {len(network)}; expected one network: call "
            "compare for each",
            code="network",
        )
    loads = [n for n in ("concurrency", "request_rate", "arrivals") if n in asked]
    if loads:
        of = (
            f"{arg('batch_size')} {batch_size}"
            if batch_size
            else "a network without a language model"
        )
        raise InputError(
            f"{' and '.join(map(arg, loads))} {'is' if len(loads) == 1 else 'are'} for serving, {of} is "
            "for training; expected one of them",
            code=argument_code(loads[0]),
        )


def _check_order(network: Any, on: Sequence[Any]) -> None:
    """Raise ModelFileError if a network is given as a device, or a device as a network."""
    names = names_in(*(one for one in on if isinstance(one, str)))
    if isinstance(network, Model):
        meant = f"; did you mean {arg('network')}={names[0]!r}, {arg('on')}=model?" if names else ""
        raise ModelFileError(
            f"{arg('network')} is a loaded device, and the network comes first{meant}",
            code="unknown-model",
            model=network.label,
        )
    networks = (n for n in names if looks_like_network(n) and not os.path.exists(n))
    given = next(networks, None)
    others = not all(isinstance(one, (str, Model)) for one in on)  # an object, as a module is
    is_swapped = bool(given or others) and isinstance(network, str) and _is_device(network)
    if given is None and not is_swapped:
        return
    meant, told = (repr(given), f"{given!r}: it looks like") if given else ("network", "is")
    expected = "expected a device, as lolat.models() lists them"
    if is_swapped:
        expected = f"did you mean {arg('network')}={meant}, {arg('on')}={network!r}?"
    raise ModelFileError(
        f"{arg('on')} {told} a network, which comes first; {expected}",
        code="unknown-model",
        model=given or "",
    )


def _is_device(name: str) -> bool:
    """True for the name of a device."""
    from lolat.api.profile_names import full_names

    with suppress(ModelFileError):
        return bool(full_names(name))
    return False
