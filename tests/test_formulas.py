"""The answers of each formula are recorded with its version: where they change, the version rises.

`python -m tests.test_formulas` records them anew, in benchmarks/results/formulas.json.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lolat
from benchmarks import tables
from lolat.api.model import Model
from lolat.mlp.recipes import RECIPES, data_sheets
from tests import synthetic
from tests.llm import known_gpu
from tests.mlp.tables import rows_of, table
from tests.nas.few_devices import some_cells
from tests.training import epoch_tables

NETWORK = synthetic.network()


def extended() -> dict[str, float]:
    low, high = (found := Model(synthetic.document()).predict(NETWORK, 4)).interval_ms
    return {"latency_ms": found.latency_ms, "low_ms": low, "high_ms": high}


def six_counts() -> dict[str, float]:
    six = [synthetic.totals(NETWORK)[name] for name in synthetic.FEATURES]
    return {"latency_ms": Model(synthetic.document()).predict_counts(*six)}


def kernels() -> dict[str, float]:
    """A data sheet's answers."""
    with tempfile.TemporaryDirectory() as folder:
        facts = Path(folder, "facts.csv")
        head = "device,multiprocessors,fp32_matrix_gflops,bandwidth_gb_s"
        facts.write_text(f"{head}\nprobe,80,14000,900\n", encoding="utf-8")
        model = lolat.fit(facts=facts, name="probe")
    names = ("timm:resnet50", "timm:vit_base_patch16_224")
    return {name: model.predict(name).latency_ms for name in names}


def few_shot() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder, "samples.csv")
        archs = some_cells(12)
        rows = (f"{arch},{5 + n % 7}\n" for n, arch in enumerate(archs[:10]))
        samples.write_text("arch,latency_ms\n" + "".join(rows), encoding="utf-8")
        fitted = lolat.nas.fit("nasbench201", samples)
    return dict(zip(("first", "second"), map(float, fitted.predict(archs[10:])), strict=True))


def trained(replicas: int = 1) -> Any:
    """An epoch by a device's epochs."""
    model = Model(epoch_tables.document())
    return model.cost(NETWORK, 16, 320, replicas=replicas, link_gbps=10).options[0]


def served() -> dict[str, float]:
    model = Model(known_gpu.document())
    rows = model.llm(known_gpu.LARGE, concurrency=(1, 16), tensor_parallel=(1, 2)).rows()
    named = {f"{r['concurrency']} on {r['tensor_parallel']}": r for r in rows}
    return {f"{n}: {key}": r[key] for n, r in named.items() for key in ("ttft_ms", "tpot_ms")}


def layers() -> dict[str, float]:
    """The features of a row, and the numbers of the training, in each recipe."""
    found = {}
    for recipe in RECIPES.values():
        numbers = [v for v in vars(recipe).values() if not isinstance(v, str) and not callable(v)]
        for layer in ("convolution", "dense"):
            rows = table(rows_of(layer, {"gpu": "P100"}, {"optimizer": "adam"}))
            features = recipe.features(rows, data_sheets(rows["gpu"].tolist()))
            every = np.hstack([features.ravel(), *map(np.ravel, numbers)]).astype(float)
            found[f"{recipe.name}, {layer}"] = float(every @ np.arange(1, len(every) + 1))
    return found


PROBES: dict[str, Callable[[], dict[str, float]]] = {
    "extended": extended, "six-counts": six_counts, "kernels": kernels, "few-shot": few_shot,
    "layers": layers, "language-models": served,
    "training": lambda: {"iteration_ms": trained().iteration_ms},
    "replicas": lambda: {"exchange_ms": trained(4).parts_ms["exchange"]},
}  # fmt: skip


@pytest.mark.parametrize("formula", tables.versions())
def test_the_answers_of_a_formula_are_those_of_its_version(formula: str) -> None:
    """Else: raise its version, say in `what` what changed, and `python -m tests.test_formulas`."""
    recorded = json.loads(tables.FORMULAS.read_text("utf-8"))[formula]["probe"]
    assert PROBES[formula]() == pytest.approx(recorded, rel=1e-4)


def main() -> None:
    """Record the answers."""
    formulas = json.loads(tables.FORMULAS.read_text("utf-8"))
    for name, probe in PROBES.items():
        formulas[name]["probe"] = {key: float(f"{value:.6g}") for key, value in probe().items()}
    tables.FORMULAS.write_text(json.dumps(formulas, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
