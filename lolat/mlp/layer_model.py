"""A trained network for layers, from its JSON file: asked with numpy alone.

`layer_schema` says what the file holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError, ModelFileError
from lolat.mlp import layer_schema
from lolat.mlp.devices import DEVICES, Device, key, known, merged
from lolat.mlp.perceptron import Perceptron
from lolat.mlp.recipe import Facts, Recipe, find_recipe
from lolat.mlp.table import COLUMNS, LayerTable
from lolat.model_file import to_json, write_bytes
from lolat.units import plain

LARGEST_BYTES = 256 * 2**20
_EXPECTED = "expected a layer model (`lolat mlp fit` makes one)"


@dataclass(frozen=True)
class LayerModel:
    """What `lolat mlp fit` learned.

    `layer`: "convolution" or "dense"; `devices`: the GPUs of its training rows, with the facts used;
    `features`: their names, with `mean` and `scale` (k,) of the standardisation; `ranges`: what its
    training rows covered, (lowest, highest) of a size and the words of the others; `training`: how it was
    trained; `errors`: on rows left out of training, empty where there were none.
    """

    layer: str
    recipe: str
    devices: Mapping[str, Device]
    features: tuple[str, ...]
    mean: np.ndarray
    scale: np.ndarray
    network: Perceptron
    ranges: Mapping[str, Sequence[Any]]
    training: Mapping[str, Any]
    errors: Mapping[str, Any]

    @property
    def several_devices(self) -> bool:
        """True where devices' facts may be among the features, so that a new one can be asked about."""
        return len(self.devices) > 1

    def predict(self, table: LayerTable, devices: Mapping[str, Device] | None = None) -> np.ndarray:
        """(n,) times of the rows in ms, at least 0, in their order.

        `devices`: facts of GPUs that neither the model nor the built-in table has (they count before
        those). Raises InputError: rows of another kind of layer, of a GPU without facts, or, for a model
        of one GPU, of another one.
        """
        if table.layer != self.layer:
            raise InputError(
                f"the model is of {self.layer} layers and the table of {table.layer} layers; expected "
                "both of one kind"
            )
        if not len(table):
            return np.zeros(0)
        recipe = find_recipe(self.recipe)
        facts = self._facts(table, devices or {})
        features = recipe.features(table, facts)
        self._check_features(recipe, features)
        output = self.network((features - self.mean) / self.scale)
        return recipe.decode(output, table, facts)

    def outside(self, table: LayerTable) -> str | None:
        """One line where rows lie outside what the model was trained on, column by column; else None."""
        rows = np.zeros(len(table), bool)
        reasons = []
        for column, seen in self.ranges.items():
            values = table[column]
            if column == "gpu":
                trained = {key(name) for name in seen}
                new = _unseen(values, trained.__contains__, key)
            elif all(isinstance(v, str) for v in seen):
                new = _unseen(values, seen.__contains__)
            else:
                new = (values < seen[0]) | (values > seen[1])
            if new.any():
                rows |= new
                reasons.append(f"{column} {_shown(seen)}")
        if not reasons:
            return None
        return (
            f"{int(rows.sum())} of {len(table)} rows lie outside what the model was trained on "
            f"({'; '.join(reasons)})"
        )

    def _facts(self, table: LayerTable, devices: Mapping[str, Device]) -> dict[str, Device]:
        names = dict.fromkeys(table["gpu"].tolist())
        if self.several_devices:
            everything = merged(DEVICES, self.devices, devices)
            own = {
                n: d for n, d in everything.items() if any(key(n) == key(m) for m in self.devices)
            }
            return Facts(own | known(names, everything), trained=own)
        own = dict(self.devices)
        (only,) = own
        other = [name for name in names if key(name) != key(only)]
        if other:
            raise InputError(
                f"the model is of {only} alone and the table has rows of {plain(other[0])}; expected rows "
                f"of {only}, or a model of several GPUs (lolat mlp fit --gpus all)"
            )
        return own

    def _check_features(self, recipe: Recipe, features: np.ndarray) -> None:
        if features.shape[1] != len(self.features) or self.features != recipe.feature_names(
            self.layer, self.several_devices
        ):
            raise ModelFileError(
                f"the model was trained with other features than the recipe {self.recipe} has in this "
                "version of LoLat; train it again with `lolat mlp fit`"
            )
        bad = ~np.isfinite(features).all(axis=0)
        if bad.any():
            lacking = ", ".join(n for n, b in zip(self.features, bad, strict=True) if b)
            raise InputError(
                f"the model needs {lacking} of each GPU, and they are not known of all in the table; give "
                "them with --devices FILE"
            )


def ranges(table: LayerTable) -> dict[str, list[Any]]:
    """What a table covers: [lowest, highest] of each size, the words of each other column."""
    found: dict[str, list[Any]] = {}
    for name in COLUMNS[table.layer]:
        values = table[name]
        if values.dtype.kind in "iu":
            found[name] = [int(values.min()), int(values.max())]
        else:
            found[name] = sorted(set(values.tolist()))
    return found


def read_layer_model(path: str | Path) -> LayerModel:
    """The model in a file. ModelFileError, one line that names the path, where it is not a whole one."""
    source = plain(str(path))
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise ModelFileError(f"{source}: no such file; {_EXPECTED}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ModelFileError(f"{source}: cannot be read ({reason}); {_EXPECTED}") from None
    if len(content) > LARGEST_BYTES:
        raise ModelFileError(
            f"{source}: too large; {_EXPECTED} of at most {LARGEST_BYTES // 2**20} MiB"
        )
    return from_document(_parsed(content, source), source)


def write_layer_model(path: str | Path, model: LayerModel) -> None:
    """Put a model at `path` in one step; reading it gives an equal one.

    Raises ModelFileError where a field is not valid, InputError where the path is not writable.
    """
    source = plain(str(path))
    document = layer_schema.document(
        layer=model.layer,
        recipe=model.recipe,
        devices=model.devices,
        features=model.features,
        mean=model.mean,
        scale=model.scale,
        members=model.network.members,
        ranges=model.ranges,
        training=model.training,
        errors=model.errors,
    )
    text = to_json(document, source)
    layer_schema.checked(document, source)
    write_bytes(path, text.encode("ascii"))


def from_document(document: Any, source: str = "document") -> LayerModel:
    """The model of a document; ModelFileError names `source` and the field that is wrong."""
    fields = layer_schema.checked(document, source)
    return LayerModel(**fields)


def _parsed(content: bytes, source: str) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ModelFileError(f"{source}: not UTF-8 text; {_EXPECTED}") from None
    except (ValueError, RecursionError) as error:
        if not content.strip():
            raise ModelFileError(f"{source}: is empty; {_EXPECTED}") from None
        if content.lstrip().startswith(b"{") and not content.rstrip().endswith(b"}"):
            raise ModelFileError(
                f"{source}: looks truncated, after {len(content)} bytes; {_EXPECTED}: copy it again, or "
                "train it again"
            ) from None
        raise ModelFileError(f"{source}: not JSON ({error}); {_EXPECTED}") from None


def _unseen(
    values: np.ndarray, seen: Callable[[str], bool], name: Callable[[str], str] = str
) -> np.ndarray:
    """(n,) bool: whether a text's name is not among those `seen`; asked once for each that is different."""
    texts = values.tolist()
    answers = {text: not seen(name(text)) for text in set(texts)}
    return np.fromiter((answers[t] for t in texts), bool, len(texts))


def _shown(seen: Sequence[Any]) -> str:
    if all(isinstance(v, str) for v in seen):
        return ", ".join(plain(v) for v in seen)
    return f"{seen[0]}..{seen[1]}"
