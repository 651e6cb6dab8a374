"""The JSON answers of the commands, as types: from these come the schemas in docs/reference/json.

Every answer has `schema`, "lolat-" and its name in ANSWERS, and `version` besides. A later minor version
may add keys anywhere. Times are in ms where the key ends in `_ms`, in s where it ends in `_s`; an interval
is [low, high]; what is not known is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

from lolat.api.answers import inference, searching, training
from lolat.io.results import VERSION
from lolat.io.writing import write_text

ANSWERS: dict[str, Any] = {
    "prediction": inference.Prediction,
    "predictions": inference.Predictions,
    "explanation": inference.Explanation,
    "budget": inference.Budget,
    "evaluation": inference.Evaluation,
    "table-evaluation": inference.TableEvaluation,
    "diagnosis": inference.Diagnosis,
    "network-file": inference.NetworkFile,
    "model-summary": inference.Model,
    "models": inference.Models,
    "training": training.Training,
    "training-fit": training.TrainingFit,
    "cost": training.Cost,
    "prices": training.Prices,
    "nas-fit": searching.NasFit,
    "nas-predict": searching.NasPredict,
    "nas-search": searching.NasSearch,
    "nas-score": searching.NasScore,
    "layer-evaluation": searching.LayerEvaluation,
    "layer-fit": searching.LayerFit,
    "layer-predict": searching.LayerPredict,
    "layer-network": searching.LayerNetwork,
}
"""Each answer by its name."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "learn": ("model-summary",),
    "predict": ("prediction", "predictions"),
    "report": ("prediction", "predictions"),
    "explain": ("explanation",),
    "budget": ("budget",),
    "evaluate": ("evaluation", "table-evaluation"),
    "doctor": ("diagnosis",),
    "fit": ("model-summary",),
    "mlp fit": ("layer-fit",),
    "mlp predict": ("layer-predict",),
    "mlp evaluate": ("layer-evaluation",),
    "mlp network": ("layer-network",),
    "mlp learn": ("layer-fit",),
    "nas fit": ("nas-fit",),
    "nas predict": ("nas-predict",),
    "nas search": ("nas-search",),
    "nas score": ("nas-score",),
    "cost": ("cost",),
    "prices": ("prices",),
    "training fit": ("training-fit",),
    "training predict": ("training",),
    "read": ("network-file",),
    "show": ("model-summary",),
    "models": ("models",),
}
"""Which answers a command gives with --json."""


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of an answer of ANSWERS."""
    (found,), parts = msgspec.json.schema_components([ANSWERS[name]], ref_template="#/$defs/{name}")
    top = parts.pop(found["$ref"].rpartition("/")[2])
    for part in parts.values():
        part["description"] = cleandoc(part["description"])
    fixed = {"schema": {"const": f"lolat-{name}"}, "version": {"const": VERSION}}
    commands = [command for command, names in COMMANDS.items() if name in names]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"lolat-{name}.json",
        "title": f"lolat-{name}",
        "description": cleandoc(top["description"]),
        "x-commands": [f"lolat {command} --json" for command in commands],
        "type": "object",
        "properties": fixed | top["properties"],
        "required": [*fixed, *top.get("required", ())],
        "$defs": parts,
    }


def files() -> Iterator[tuple[str, str]]:
    """(name, content) of each schema's file."""
    for name in ANSWERS:
        yield f"lolat-{name}.json", json.dumps(schema(name), indent=1) + "\n"


def write_schemas(folder: Path) -> None:
    """Write every schema to `folder`: docs/reference/json. A file of no answer goes."""
    known = dict(files())
    for path in folder.glob("lolat-*.json"):
        if path.name not in known:
            path.unlink()
    for name, content in known.items():
        write_text(folder / name, content)
