"""What makes times comparable: every field tells two environments apart, and nothing else does."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from microbench import environment
from microbench import environment as comparable
from microbench.environment import FIELDS, UNSAID, Difference, differences, differences_of_device

PROCESSOR = {
    "name": "AMD EPYC", "vendor": "AuthenticAMD", "family": 25, "model": 17, "stepping": 1,
    "instruction_sets": ["avx", "avx2", "fma"], "l1d_bytes": 2**15, "l2_bytes": 2**20, "l3_bytes": 2**25,
    "l3_shared_by": 2, "memory_bytes": 2**34, "hypervisor": True, "governor": "performance", "threads": 2,
}  # fmt: skip
LEARNED = {
    "device": "cpu", "cpu": "AMD EPYC", "processor": PROCESSOR, "available_bytes": 2**33,
    "load_at_start": 0.1, "operating_system": "Linux-6.1", "python": "3.11.7", "date": "2026-01-01",
    **{field: f"{field} then" for field in FIELDS},
}  # fmt: skip
KIND = "AuthenticAMD family 25 model 17 stepping 1"
LABEL = "AMD EPYC (family 25 model 17), 2 threads"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cpu_model", lambda: "AMD EPYC")
    monkeypatch.setattr(environment, "cpu_count", lambda: 2)
    monkeypatch.setattr(environment, "processor_facts", lambda: copy.deepcopy(PROCESSOR))


def now(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(LEARNED), **changes}


def chip(**changes: Any) -> dict[str, Any]:
    return now(processor=PROCESSOR | changes)


def test_the_same_is_the_same_whatever_its_load_memory_date_or_python() -> None:
    later = now(
        available_bytes=1, load_at_start=2.0, date="2027", python="3.12.1", operating_system="else"
    )
    assert differences(LABEL, LEARNED, later) == ()
    assert differences(LABEL, LEARNED, chip(l3_shared_by=8, memory_bytes=1)) == ()


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_the_framework_counts(field: str) -> None:
    (found,) = differences(LABEL, LEARNED, now(**{field: {"a": 1}}))
    assert found == Difference(field, f"{field} then", {"a": 1})
    assert str(found) == f"learned with {field} {field} then, this is {{'a': 1}}"
    without = now()
    del without[field]
    assert differences(LABEL, LEARNED, without) == (), "a backend that does not say"
    assert differences(LABEL, without, LEARNED) == (), "an older file"
    assert differences_of_device(LABEL, LEARNED, now(**{field: 1})) == ()


THEN = f"AMD EPYC ({KIND})"


@pytest.mark.parametrize(
    ("here", "field", "then", "now_", "said"),
    [
        (chip(vendor="Intel"), "processor", THEN, "AMD EPYC (Intel family 25 model 17 stepping 1)", "on"),
        (chip(family=26), "processor", THEN, THEN.replace("family 25", "family 26"), "on"),
        (chip(model=1), "processor", THEN, THEN.replace("model 17", "model 1"), "on"),
        (chip(stepping=2), "processor", THEN, THEN.replace("stepping 1", "stepping 2"), "on"),
        (now(cpu="AMD EPYC 7B13"), "processor", THEN, f"AMD EPYC 7B13 ({KIND})", "on"),
        *((chip(**{f: 1}), f, PROCESSOR[f], 1, "with") for f in ("l1d_bytes", "l2_bytes", "l3_bytes")),
        (chip(threads=8), "threads_given", 2, 8, "with"),
        (now(threads_asked=1), "threads_given", 2, 1, "with"),
    ],
)  # fmt: skip
def test_what_makes_another_processor(
    here: dict[str, Any], field: str, then: Any, now_: Any, said: str
) -> None:
    (found,) = differences_of_device(LABEL, LEARNED, here)
    assert found == Difference(field, then, now_)
    assert str(found).startswith(f"this is another processor: learned {said} ")
    assert str(found).endswith(str(now_))


@pytest.mark.parametrize(
    ("sets", "then", "here"),
    [
        (["avx", "avx2", "avx512f", "avx512_vnni", "fma"], "", "avx512_vnni avx512f"),
        (["avx", "avx2"], "fma", ""),
        (["avx", "avx2", "avx512f"], "fma", "avx512f"),
    ],
)
def test_other_instruction_sets_make_another_processor(
    sets: list[str], then: str, here: str
) -> None:
    (found,) = differences_of_device(LABEL, LEARNED, chip(instruction_sets=sets))
    assert found == Difference("instruction_sets", then, here)
    assert str(found) == (
        f"this is another processor: learned with instruction sets {then or 'none'}, this is "
        f"{here or 'none'}"
    )
    assert differences(LABEL, LEARNED, chip(instruction_sets=["fma", "avx2", "avx"])) == ()


def test_another_governor_is_the_same_processor_in_another_state() -> None:
    assert differences_of_device(LABEL, LEARNED, chip(governor="powersave")) == ()
    (found,) = differences(LABEL, LEARNED, chip(governor="powersave"))
    assert str(found) == "learned with governor performance, this is powersave"


@pytest.mark.parametrize("field", ["vendor", "instruction_sets", "l3_bytes", "governor"])
def test_what_one_side_does_not_say_is_no_difference(field: str) -> None:
    less = {k: v for k, v in PROCESSOR.items() if k != field}
    assert differences(LABEL, LEARNED, now(processor=less)) == ()
    assert differences(LABEL, now(processor=less), LEARNED) == ()


def test_an_old_label_alone_is_no_other_processor() -> None:
    old = {k: v for k, v in LEARNED.items() if k != "processor"} | {"threads": 2}
    here = LEARNED | {"threads": 2}
    assert differences("AMD EPYC, 2 threads", old, here) == ()
    assert comparable.unsaid(old) == UNSAID
    assert comparable.unsaid(LEARNED) == ""
    assert comparable.unsaid({"device": "gpu"}) == ""
    # What an old file does say still counts.
    (found,) = differences("Xeon, 2 threads", old | {"cpu": "Xeon"}, here)
    assert found == Difference("processor", "Xeon", f"AMD EPYC ({KIND})")
    found = differences("AMD EPYC, 4 threads", old | {"threads": 4}, here)
    assert found == (Difference("threads_given", 4, 2), Difference("threads", 4, 2))


@pytest.mark.parametrize("label", ["AMD EPYC, 2 threads", LABEL])
def test_a_file_with_a_label_alone(label: str) -> None:
    here = LEARNED | {"threads": 2}
    assert differences_of_device(label, {}, here) == ()
    (found,) = differences_of_device("a phone", {}, here)
    assert found == Difference("device", "a phone", LABEL)
    assert str(found) == f"this is another device: learned on a phone, here {LABEL}"


def test_a_gpu_is_its_name_whatever_the_processor() -> None:
    learned = {"device": "gpu", "cpu": "Xeon", "threads": 64, "device_name": "NVIDIA T4"}
    here = now(device="gpu", device_name="NVIDIA T4")
    assert differences_of_device("NVIDIA T4", learned, here) == ()
    here["device_name"] = "NVIDIA L4"
    assert differences_of_device("NVIDIA T4", learned, here) == (
        Difference("device", "NVIDIA T4", "NVIDIA L4"),
    )


@pytest.mark.parametrize(
    ("asked", "threads"), [(None, 2), (1, 1), (2, 2), (8, 2), ("1", 2), (0, 2), (True, 2)]
)
def test_this_machine_with_the_threads_that_the_model_asked_for(asked: Any, threads: int) -> None:
    here = comparable.here({"threads_asked": asked}, "cpu")
    assert here["threads"] == threads
    assert here["processor"] == PROCESSOR
    assert comparable.here({"threads_asked": 1}, "gpu")["threads"] == 2
