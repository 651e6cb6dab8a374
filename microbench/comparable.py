"""What makes times comparable: the fields of an environment, and how two environments differ in them.

The one list for everything that measures for a model that is there: doctor, evaluate, extending, training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from microbench import environment, processor

FIELDS = (
    "framework", "framework_version", "keras_version", "execution_provider", "libraries",
    "intra_op_threads", "inter_op_threads", "shared_threads", "jit", "compile", "channels_last", "half",
    "float32_products", "tf32", "cuda_version", "cudnn_version", "cudnn_benchmark", "optimisation",
    "keeps_freed_memory", "flags",
)  # fmt: skip
"""Of the framework and its backend; a backend has some of these."""
OF_PROCESSOR = ("processor", "instruction_sets", *processor.CACHES, "threads")
"""Fields of a Difference that make a CPU another device."""
UNSAID = (
    "the model does not say which processor it was learned on, only its name, which others have too; "
    "learn again to know"
)


@dataclass(frozen=True)
class Difference:
    """Something of the device or its framework that is not as it was when the model was learned.

    `field`: one of FIELDS or OF_PROCESSOR, "governor", or "device" where no more is known of it;
    `now` is None for a device that is not there.
    """

    field: str
    learned: Any
    now: Any

    def __str__(self) -> str:
        """In words, as a warning has them."""
        if self.field in ("device", "processor"):
            other = "processor" if self.field == "processor" else "device"
            return f"this is another {other}: learned on {self.learned}, here {self.now}"
        name = self.field.replace("_", " ") if self.field in OF_PROCESSOR else self.field
        here = f"learned with {name} {_shown(self.learned)}, this is {_shown(self.now)}"
        return f"this is another processor: {here}" if self.field in OF_PROCESSOR else here


def differences(
    label: str, learned: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[Difference, ...]:
    """What of `now` is not as `learned`, the device first; what one of them does not say is left out.

    `label`: the model's device; `learned`, `now`: environments, as a model file has them. `now` need not
    have what only the backend says; `here` makes such a one.
    """
    of_device = differences_of_device(label, learned, now)
    clocks = _facts(learned), _facts(now)
    return (*of_device, *_fields(("governor",), *clocks), *_fields(FIELDS, learned, now))


def differences_of_device(
    label: str, learned: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[Difference, ...]:
    """The same of the device alone: a CPU's processor and threads, another device's name.

    A CPU's label is compared only where the environment does not say what is in it: see `unsaid`.
    """
    device = str(now["device"])
    own = environment.label_of(device, now)
    if device != "cpu":
        return () if label == own else (Difference("device", label, own),)
    found = tuple(_of_processor(learned, now))
    if found or "processor" in learned or {"cpu", "threads"} <= learned.keys():
        return found
    plain = environment.with_threads(environment.cpu_model(), now.get("threads"))
    return () if label in (own, plain) else (Difference("device", label, own),)


def unsaid(learned: Mapping[str, Any]) -> str:
    """UNSAID for a CPU of which the file has no more than a name; "" for others."""
    of_cpu = learned.get("device", "cpu") == "cpu"
    return UNSAID if of_cpu and "processor" not in learned else ""


def here(learned: Mapping[str, Any], device: str) -> dict[str, Any]:
    """This machine as `differences` takes it, before a backend is started.

    A CPU has as many threads as the model asked for when it was learned, if there are as many.
    """
    where = environment.describe(device)
    asked = learned.get("threads_asked")
    if device == "cpu" and type(asked) is int and asked > 0:
        used = min(asked, where["threads"])
        where |= {"threads": used, "threads_asked": used}
    return where


def _facts(where: Mapping[str, Any]) -> Mapping[str, Any]:
    """The processor of an environment; nothing where the file does not say."""
    found = where.get("processor")
    return found if isinstance(found, Mapping) else {}


def _of_processor(learned: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    then, is_ = _facts(learned), _facts(now)
    names = [str(where.get("cpu", "unknown")) for where in (learned, now)]
    both = [k for k in processor.IDENTITY if k in then and k in is_]
    named = "cpu" in learned and "cpu" in now and names[0] != names[1]
    if named or any(then[k] != is_[k] for k in both):
        said = [_identified(n, f) for n, f in zip(names, (then, is_), strict=True)]
        yield Difference("processor", *said)
    sets = [set(f["instruction_sets"]) for f in (then, is_) if "instruction_sets" in f]
    if len(sets) == 2 and sets[0] != sets[1]:  # what they share tells nothing
        only = [" ".join(sorted(a - b)) for a, b in ((sets[0], sets[1]), (sets[1], sets[0]))]
        yield Difference("instruction_sets", *only)
    yield from _fields(processor.CACHES, then, is_)
    yield from _fields(("threads",), learned, now)


def _fields(
    names: Iterable[str], learned: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[Difference]:
    """Fields that both have and that are not the same."""
    for name in names:
        if name in learned and name in now and learned[name] != now[name]:
            yield Difference(name, learned[name], now[name])


def _identified(name: str, known: Mapping[str, Any]) -> str:
    """A processor so that two kinds of one name are told apart."""
    said = [f"{k} {known[k]}" for k in ("family", "model", "stepping") if k in known]
    vendor = [str(known["vendor"])] if "vendor" in known else []
    more = " ".join([*vendor, *said])
    return f"{name} ({more})" if more else name


def _shown(value: Any) -> str:
    return "none" if value in ("", None) else str(value)
