"""The recipes by name: how a layer's time is learned and predicted."""

from __future__ import annotations

from collections.abc import Mapping

from lolat.errors import InputError
from lolat.mlp.recipes import best, paper
from lolat.mlp.recipes.base import Devices, Facts, Plan, Recipe
from lolat.units import plain

__all__ = ["RECIPES", "Devices", "Facts", "Plan", "Recipe", "find_recipe"]

RECIPES: Mapping[str, Recipe] = {r.name: r for r in (best.RECIPE, paper.RECIPE)}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; InputError where there is none."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {plain(name)!r}; expected {' or '.join(RECIPES)}")
    return RECIPES[name]
