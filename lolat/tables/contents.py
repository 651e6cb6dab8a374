"""The kind of measurements in a file, recognized by the columns of its table.

`lolat fit` fits a device to such a file, `lolat evaluate` compares predictions with it.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lolat.errors import InputError, ModelFileError
from lolat.io.tables import is_table, read_table
from lolat.tables.networks import NETWORK_COLUMNS, TIMED_COLUMNS
from lolat.tables.operations import OPERATION_COLUMNS
from lolat.units import plain


class Content(NamedTuple):
    """A kind of measurements.

    `name`: its name for people; `key`: the key of its rows in JSON; `takes`: the options of `lolat
    evaluate` that apply to its rows.
    """

    name: str
    key: str
    takes: tuple[str, ...] = ()


BLOCKS = Content("blocks", "blocks", ("only", "predictor", "precision"))
OPERATIONS = Content("operations", "operations", ("only", "predictor", "precision"))
NETWORKS = Content("networks", "networks", ("only", "predictor", "precision", "training"))
EPOCHS = Content("epochs", "epochs")
KERNELS = Content("operations of language models", "operations")
SERVED = Content("served models", "served", ("tensor_parallel", "served_model"))
RUNS = Content("training runs of decoders", "runs", ("only",))
OF_SERVING = {
    "output_tokens",
    "output_len",
    "input_len",
    "concurrency",
    "tpot",
    "itl",
    "ttft",
    "ttft_ms",
}
"""Names of columns by which tables of served models are recognized, even if a name differs slightly."""
MODEL = Content("models", "models")
"""The content of a profile, which is not a table."""


def content_of(path: str | Path) -> Content:
    """The content of a file; for a table the most likely content, which the table's reader then checks."""
    if is_table(path):
        table = read_table(path)
        content = content_of_columns(table.names)
        if content is KERNELS and {*table.cells("op")} <= {*OPERATION_COLUMNS}:
            raise InputError(
                f"{plain(str(path))}: its operations are of networks, whose data type is the column "
                "precision (fp32, fp16, bf16, amp); expected that name in place of dtype",
                code="operations",
            )
        return content
    # A server's benchmark is JSON too; for any other file the reader of profiles says what is wrong.
    with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        start = file.read(100_000)
        if start.strip() and start.lstrip()[0] not in "{[" and not str(path).endswith(".json"):
            raise ModelFileError(
                f"{plain(str(path))} is no profile (JSON) and, by its name, no table; expected a CSV table "
                "whose name ends in .csv, .csv.gz or .tsv"
            )
        if '"total_output_tokens"' in start:
            return SERVED
        if '"log_history"' in start:
            raise InputError(
                f"{plain(str(path))}: a log of transformers' Trainer lacks the model and the GPUs; "
                "expected a table that names this file in its column of rates. Columns of a decoder: "
                "model, gpus, sequence_length, micro_batch_size, tokens_per_s_per_gpu; of other networks: "
                "network, batch_size, gpus, precision, samples_per_s",
                code="runs",
            )
    return MODEL


def content_of_columns(columns: Collection[str]) -> Content:
    """The most likely content of a table with these columns."""
    if "epoch_s" in columns:
        return EPOCHS
    if {"tpot_ms", "itl_mean_ms"} & {*columns} or ("model" in columns and {*columns} & OF_SERVING):
        return SERVED
    if {"tokens_per_s_per_gpu", "micro_batch_size"} & {*columns}:
        return RUNS
    if "op" in columns:
        return KERNELS if "dtype" in columns else OPERATIONS
    if "acts" in columns:
        return BLOCKS
    # The reader of the most likely content says which columns are missing.
    if {*columns} & {*NETWORK_COLUMNS, *TIMED_COLUMNS} - {"latency_ms"}:
        return NETWORKS
    return OPERATIONS if {"m", "n", "k"}.issubset(columns) else BLOCKS
