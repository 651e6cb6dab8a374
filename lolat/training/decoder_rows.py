"""Reads runs of training decoders from tables, and fits the level of a device to them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from lolat.errors import InputError, LolatError
from lolat.fitting.refined import OTHER_GPU, check_level
from lolat.graph.modes import EAGER
from lolat.hardware.hardware import Hardware
from lolat.hardware.links import Link, given_link
from lolat.io.tables import ABOVE_ZERO, Row, read_table
from lolat.llm.gpu import GPU, ServingSection, TrainingLevel, short
from lolat.llm.names import find_decoder
from lolat.optimizers import OPTIMIZERS
from lolat.parameters import CHECKPOINTING, DECODER_OPTIMIZER, LAUNCHES, PARAMETERS, SHARDINGS
from lolat.tables.devices import rows_of_devices
from lolat.tables.networks import accumulated
from lolat.tables.trainer_log import logged_rate
from lolat.training.decoder import DecoderStep, tuned_recipe
from lolat.training.parallel import NONE, Parallel
from lolat.training.passes import CONSTANTS, Constants, DecoderPasses
from lolat.training.tuning import Tuning
from lolat.units import GIB, percent, plural

RUNS = (
    "expected a table with the columns model, gpus, sequence_length, micro_batch_size, "
    "tokens_per_s_per_gpu (a number, or the path of transformers' trainer_state.json), and where known "
    "gradient_accumulation, precision, sharding, activation_checkpointing, optimizer, tune, launch, "
    "link_gbps"
)
RUN_COLUMNS = ("model", "gpus", "sequence_length", "micro_batch_size", "tokens_per_s_per_gpu")
OF_STEPS = "network,batch_size,sequence_length,gpus,gradient_accumulation,precision,optimizer,samples_per_s"
"""Columns for a run of a network, not a decoder, in a table of networks (`lolat.tables.networks`)."""
HALVES = ("amp", "bf16")
WORDS: dict[str, dict[str, str]] = {
    "precision": {"": "amp", "amp_bf16": "amp", "amp": "amp", "bf16": "bf16",
                  **{word: one for word, one in PARAMETERS["precision"].others.items() if one in HALVES}},
    "sharding": {**{name: name for name in SHARDINGS}, "": NONE, **PARAMETERS["sharding"].others},
    "activation_checkpointing": {**{name: name for name in CHECKPOINTING}, "": "none", "false": "none",
                                 "true": "full"},
    "launch": {**{name: name for name in LAUNCHES}, "": EAGER},
}  # fmt: skip
"""Column -> (word in the column, also as llm-foundry writes it -> its value here)."""
SPLIT = ("tensor_parallel", "tensor_parallel_size", "tp", "pipeline_parallel", "pipeline_parallel_size",
         "pp", "context_parallel", "expert_parallel")  # fmt: skip
"""Columns of parallelism that is not predicted: all values must be 1."""
CLUSTER_GBPS = {"NVLink 3": 100.0}
"""Link inside a machine -> Gbit/s for each GPU, assumed between machines if a row states none; other links:
USUAL_GBPS (InfiniBand)."""
USUAL_GBPS = 400.0


@dataclass(frozen=True)
class TrainedRow:
    """A timed run: `ms` of an iteration of `batches` micro-batches, each of them a `step`, on the GPUs
    `parallel`.
    """

    step: DecoderStep
    parallel: Parallel
    batches: int
    ms: float
    row: Row

    def check_memory(self, gib: float) -> None:
        """Raise InputError if the run needs much more memory than a card of `gib` GiB has."""
        needed = sum(self.step.memory(self.parallel, self.batches)[1].values()) / GIB
        if needed > OTHER_GPU * gib:
            raise InputError(
                f"it needs about {needed:,.0f} GiB on each GPU, which has {gib:.0f}; expected the "
                "micro_batch_size, sharding and activation_checkpointing of the run",
                code="run-memory",
            )

    def predicted_ms(self, gpu: GPU, constants: Constants = CONSTANTS) -> float:
        """Predict the ms of an iteration from the kernels alone, without a fitted level."""
        parts = self.step.iteration_ms(gpu, self.parallel, self.batches, constants)
        return sum(ms for name, ms in parts.items() if name != "hidden")


def read_runs(
    path: str | Path,
    hardware: Hardware,
    gib: float = math.inf,
    devices: Collection[str] = (),
    argument: str = "name",
) -> tuple[list[TrainedRow], list[tuple[Row, LolatError]]]:
    """Read a table; return (the runs of these devices, [(row that is not predicted, the reason)]).

    `hardware`: of the device; `gib`: memory of a GPU; `devices`, `argument`: see `rows_of_devices`.
    InputError names a wrong cell.
    """
    found, refused = list[TrainedRow](), list[tuple[Row, LolatError]]()
    for row in rows_of_devices(read_table(path, RUN_COLUMNS, RUNS), devices, argument):
        try:
            run = _run_of(row, Path(path).parent, hardware)
            run.check_memory(gib)
            found.append(run)
        except InputError as error:
            if error.code not in ("decoder-kind", "not-predicted", "run-memory"):
                placed = error.data.get("where") == row.where
                raise error if placed else error.reworded(f"{row.where}: {error}") from None
            refused.append((row, error))
    return found, refused


def _run_of(row: Row, folder: Path, hardware: Hardware) -> TrainedRow:
    gpus, length, batch = (int(row.number(c, 1, 1e9, "a whole number")) for c in RUN_COLUMNS[1:4])
    batches = accumulated(row)
    for column in SPLIT:
        if row.number(column, 1, 1e9, "a whole number", default=1) > 1:
            why = f"{column} {row[column]} is not predicted; expected 1"
            raise InputError(why, code="not-predicted")
    precision, sharding, checkpointing, launch = (_word(row, column) for column in WORDS)
    optimizer = PARAMETERS["optimizer"].choice(row.get("optimizer") or DECODER_OPTIMIZER)
    try:
        decoder = find_decoder(row["model"])
    except InputError as error:
        if error.code not in ("decoder", "unknown-decoder"):
            raise
        raise error.reworded(
            f"{error.message}; a network that is no decoder: fit to a device of networks, such as "
            f"a100-sxm-80gb, a table with the columns {OF_STEPS}"
        ) from None
    tuning = Tuning.named(row.get("tune") or "full", decoder.layers)
    passes = DecoderPasses(decoder, length, batch, checkpointing, tuning, launch)  # type: ignore[arg-type]
    step = DecoderStep(passes, tuned_recipe(precision, OPTIMIZERS[optimizer], tuning))
    link = row_link(hardware, gpus, row.number("link_gbps", ABOVE_ZERO, default=0.0))
    parallel = Parallel(gpus, link, sharding, hardware.link, hardware.machine)
    column, sequences = RUN_COLUMNS[-1], batch * batches
    if row[column].endswith(".json"):
        tokens = length * logged_rate(row, column, folder, sequences * gpus) / gpus
    else:
        tokens = row.number(column, ABOVE_ZERO, expected="tokens a second of a GPU, or a log")
    ms = 1e3 * sequences * length / tokens
    return TrainedRow(step, parallel, batches, ms, row)


def row_link(hardware: Hardware, gpus: int, gbps: float) -> Link | None:
    """The link between the GPUs of a run; `gbps`: Gbit/s for each GPU, 0 if the row does not state it."""
    within, machine = hardware.link, hardware.machine
    if gpus > machine and not gbps:
        gbps = min(CLUSTER_GBPS.get(within.name or "", USUAL_GBPS), within.gbps)
    return None if gpus == 1 else given_link(within, gpus, gbps, machine) if gbps else within


def _word(row: Row, column: str) -> str:
    words = WORDS[column]
    text = (row.get(column, "") or row.get(column.removeprefix("activation_"), "")).casefold()
    if text not in words:
        if column == "precision":
            why = f"training of decoders in {text} is not predicted; expected amp or bf16"
            raise InputError(why, code="not-predicted")
        raise row.wrong(column, f"one of {', '.join(filter(None, words))}")
    return words[text]


def level_of(section: ServingSection, rows: Sequence[TrainedRow]) -> tuple[ServingSection, str]:
    """Fit the level of a section to the user's runs; return (the section, a sentence on the errors).

    InputError if the rows cannot come from this GPU.
    """
    gpu = GPU(section)
    off = np.log([row.ms / row.predicted_ms(gpu) for row in rows])
    middle = float(np.median(off))
    check_level(middle, "tokens a second of one GPU, of this one")
    rest = float(np.median(np.abs(off - middle)))
    spread = math.sqrt(float(((off - middle) ** 2).sum()) / max(len(rows) - 1, 1))
    kinds = {row.step.passes.kind(row.parallel) for row in rows}
    level = TrainingLevel(short(math.exp(middle)), len(rows), short(spread), tuple(sorted(kinds)))
    words = (
        f"{plural(len(rows), 'run')}: off by {percent(float(np.median(np.abs(np.expm1(-off)))))} at the "
        f"median before, {percent(rest)} at their level"
    )
    return msgspec.structs.replace(section, trained=level), words
