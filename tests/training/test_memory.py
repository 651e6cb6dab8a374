"""Bytes of a parameter by recipe, against those counted by hand."""

from __future__ import annotations

import pytest

from lolat.parameters import optimizer_named
from lolat.training.memory import Shards, recipe_of, state_parts


@pytest.mark.parametrize(
    ("precision", "optimizer", "masters", "weight", "copy", "gradient", "master", "states"),
    [
        ("fp32", "sgd", False, 4, 0, 4, 0, 0),
        ("tf32", "adam", False, 4, 0, 4, 0, 8),
        ("amp", "adamw", False, 4, 2, 4, 0, 8),
        ("bf16", "adamw", False, 2, 0, 2, 0, 4),
        ("bf16", "adamw", True, 2, 0, 2, 4, 8),  # 16 bytes, as in the ZeRO paper
        ("fp32", "adamw", True, 4, 0, 4, 0, 8),  # the weights are the masters
        ("fp16", "lion", False, 2, 0, 2, 0, 2),
        ("amp", "lion", False, 4, 2, 4, 0, 4),
        ("bf16", "adamw8bit", False, 2, 0, 2, 0, 2),
        ("fp32", "adamw8bit", False, 4, 0, 4, 0, 2),
        ("float64", "momentum", False, 8, 0, 8, 0, 8),
    ],
)
def test_a_recipe_has_the_bytes_counted_by_hand(
    precision: str, optimizer: str, masters: bool, weight: int, copy: int, gradient: int, master: int,
    states: int,
) -> None:  # fmt: skip
    found = recipe_of(precision, optimizer_named(optimizer), masters)
    each = (found.weight, found.copy, found.gradient, found.master, found.states)
    assert each == (weight, copy, gradient, master, states)
    assert found.trained == sum(each)
    assert f"{sum(each):g} bytes a parameter" in found.words()


def test_a_frozen_base_of_an_adapter_is_in_bfloat16() -> None:
    """100 parameters of an adapter train, in float32 with a copy; 1000 of the base rest in two bytes."""
    recipe = recipe_of("amp", optimizer_named("adamw"), half_frozen=True)
    parts = state_parts(recipe, trained=100, frozen=1000)
    assert parts == {
        "weights": 4 * 100 + 2 * 1000, "copies in half precision": 2 * 100, "gradients": 4 * 100,
        "optimizer states": 8 * 100,
    }  # fmt: skip


def test_shards_divide_each_part_by_its_own_devices() -> None:
    """ZeRO 2 of four devices: whole parameters, a quarter of gradients, states and master weights."""
    recipe = recipe_of("bf16", optimizer_named("adamw"), masters=True)
    assert state_parts(recipe, 1000, shards=Shards(1, 4, 4)) == {
        "weights": 2000, "gradients": 500, "master weights": 1000, "optimizer states": 2000
    }  # fmt: skip
