"""Reading tables of networks, in which a row is a whole network timed on a device.

The columns may be those of timm's benchmark.py (--results-file) or of timm's published results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path

from lolat.errors import InputError
from lolat.graph.modes import AMP, BFLOAT16, FLOAT16, Mode
from lolat.hardware.card_names import device_key
from lolat.io.documents import read_json
from lolat.io.forms import BY_NAME, TAKEN_APART
from lolat.io.progress import Warn
from lolat.io.tables import (
    ABOVE_ZERO,
    EXPECTED_MS,
    LONGEST_MS,
    SHORTEST_MS,
    Row,
    read_table,
    say_unread,
)
from lolat.optimizers import OPTIMIZERS
from lolat.readers.torch.named import ENCODER_TYPES, ENCODERS
from lolat.tables.copies import row_key
from lolat.tables.left_out import LeftOut
from lolat.tables.modes import MODE_COLUMNS, mode_of_name, mode_of_row
from lolat.tables.trainer_log import logged_rate
from lolat.units import as_number, plural, shortened

NETWORK_COLUMNS = ("network", "model")
TOKENS = ("sequence_length", "seq_len")
PIXELS = (
    "input_size", "pixels", "resolution", "image_size", "img_size", "imgsz", "infer_img_size",
    "train_img_size",
)  # fmt: skip
BATCH_COLUMNS = (
    "batch_size", "batch", "batchsize", "bs", "infer_batch_size", "train_batch_size",
)  # fmt: skip
TIME_COLUMNS = (
    "latency_ms", "step_ms", "iteration_ms", "time_ms", "ms", "infer_step_time", "train_step_time",
)  # fmt: skip
IN_MS = {"latency_s": 1e3, "time_s": 1e3, "latency_us": 1e-3, "time_us": 1e-3}
"""Column of times in another unit -> milliseconds in that unit."""
RATE_COLUMNS = (
    "samples_per_s", "samples_per_sec", "images_per_s", "images_per_sec", "infer_samples_per_sec",
    "train_samples_per_sec",
)  # fmt: skip
"""Columns of samples per second, for tables without times."""
TIMED_COLUMNS = (*TIME_COLUMNS, *IN_MS, *RATE_COLUMNS)
PREFIXES = {False: "infer_", True: "train_"}
"""True for training, False for inference -> prefix of timm's columns of times; a table may have both
passes."""
MACTS = "macts"
"""timm's column of millions of activations; no other tables have it."""
TIMM_OPTIMIZER = "momentum"
"""The optimizer of timm's benchmark.py: "sgd" of create_optimizer_v2 has a momentum of 0.9."""
TRAINER_OPTIMIZER = "adamw"
"""The default optimizer of transformers' Trainer, for rows with a log of the Trainer."""
DEVICES = (
    "parallel", "gpus", "num_gpus", "n_gpus", "gpu_count", "num_devices", "device_count",
    "replicas", "world_size", "num_processes",
)  # fmt: skip
"""Columns with the number of devices of a row, or with the way in which they split the network."""
ACCUMULATED = ("gradient_accumulation", "gradient_accumulation_steps", "accumulate")
"""Columns with the number of batches that each device accumulates before an update."""
SINGLE = ("", "1", "no")
"""Values in the columns DEVICES that mean one device."""
PARAMETERS = ("params_millions", "param_count")
"""Columns of millions of parameters in tables of timm."""
LARGEST_SIZE = 2**20
EXPECTED_NETWORKS = (
    "expected the columns network (or model), batch_size and latency_ms (or latency_s, latency_us, "
    "samples_per_s), and where known sequence_length or input_size (or pixels), precision, channels_last, "
    "launch, pass, optimizer, gpus, accumulate (a table of epochs: network, batch_size, samples, optimizer "
    "and epoch_s, in seconds)"
)
SAME_TIME = 0.1
"""Largest relative difference between two times in a row, or between its time and its rate."""
RowSize = int | tuple[int, ...] | None
"""The side of a square image, (height, width), a whole shape, or tokens; None for the network's own."""
Network = tuple[str, RowSize, Mode]
"""(NETWORK, its input size, its execution mode); the first two are arguments of `lolat.readers.read`."""


@dataclass(frozen=True)
class TimedNetwork:
    """A row of a table: a network, its execution mode and its time.

    `parameters`: None if the table does not say. `before_fused`: timed by a PyTorch below 2.0, which has no
    fused attention. `half_norm`: from a table of timm, whose group norms ran in half precision under
    autocast: on the RTX 4090, ResNet-50 with group norms takes 1.12 times as long as with batch norms; by
    the bytes of float32 it would take twice as long. A training step may be an iteration of `accumulate`
    batches on each of several devices, `gpus`, with `link_gbps` each (0: unknown).
    """

    name: str
    network: Network
    batch_size: int
    latency_ms: float
    parameters: float | None
    row: Row
    gpus: int = 1
    accumulate: int = 1
    link_gbps: float = 0.0
    before_fused: bool = False
    half_norm: bool = False

    @property
    def same(self) -> Hashable:
        """A key that is equal for rows with the same work."""
        return self.network, self.batch_size, self.gpus, self.accumulate, self.link_gbps

    @property
    def key(self) -> str:
        """A key of the measurement; see `lolat.tables.copies.row_key`."""
        return row_key(self.name, self.latency_ms, self.batch_size)

    @property
    def mode(self) -> Mode:
        """The execution mode."""
        return self.network[2]

    @property
    def optimizer(self) -> str:
        """The optimizer whose update is part of the training step; "none" without one, "" if unknown."""
        is_timm = self.mode.training and any(name.startswith(PREFIXES[True]) for name in self.row)
        usual = TRAINER_OPTIMIZER if is_logged(self.row) else TIMM_OPTIMIZER if is_timm else ""
        return self.row.get("optimizer") or usual


@dataclass
class NetworkTable:
    """The rows of one device in a table of networks, and the rows left out.

    `assumed`: the execution mode that the rows are assumed to have; None if the table or its name says it.
    """

    path: str
    columns: tuple[str, ...]
    rows: list[TimedNetwork] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    assumed: Mode | None = None

    def say_assumed(self, warn: Warn) -> None:
        """Warn about columns that are not read, and about an assumed execution mode or batch size."""
        if len(_timed_passes(self.columns)) > 1:
            for prefix in {*PREFIXES.values()} - {PREFIXES[row.mode.training] for row in self.rows}:
                warn(
                    f"{self.path} has times of inference and of training: the columns {prefix}... are left "
                    "out; a column pass says which are read"
                )
                for row in self.rows[:1]:  # the remark is made once
                    row.row.table.mark_read(*(c for c in self.columns if c.startswith(prefix)))
        say_unread((row.row for row in self.rows[:1]), warn)
        stated = {MODE_COLUMNS[name][0] for name in {*MODE_COLUMNS} & {*self.columns}}
        if self.rows and self.assumed is not None and "dtype" not in stated:
            lacks, taken = "no precision", self.assumed.dtype
            if "launch" not in stated:
                lacks, taken = "neither precision nor launch", f"{taken}, {self.assumed.launch}"
            warn(f"{self.path} has {lacks}: its times are taken to be of {taken}")
        for dtype in (FLOAT16, BFLOAT16):
            if rows := sum(r.mode.training and r.mode.dtype == dtype for r in self.rows):
                warn(f"{self.path}: {pure_half_words(rows, dtype)}")
        if lacking := sum(not any(map(row.row.get, BATCH_COLUMNS)) for row in self.rows):
            warn(
                f"{self.path} has no batch_size in {lacking} of {len(self.rows)} rows: these are taken to "
                "be of a batch of 1"
            )

    def say_left_out(self, warn: Warn) -> None:
        """Warn about the rows left out."""
        for line in self.left_out.lines(self.path):
            warn(line)

    def nothing(self) -> InputError:
        """The error for a table without a usable row."""
        why = str(self.left_out) or "it has no rows"
        return InputError(f"{self.path}: no row could be used ({why}); {EXPECTED_NETWORKS}")


def read_networks(
    path: str | Path,
    devices: Collection[str] = (),
    mode: Mode | None = None,
    left_out: LeftOut | None = None,
    training: bool = False,
    iterations: bool = False,
) -> NetworkTable:
    """Read a table of networks; if it has a column `device`, only the rows of `devices`.

    A network is a NETWORK (column `network`), a name in timm (column `model`), or `networks/NAME.json`
    beside the table, a configuration of transformers. Its execution mode comes from MODE_COLUMNS, else from
    the file's name, else it is `mode`. Wrong rows are left out, and added to `left_out`. `training`: read
    the times of training if the table has both passes and does not say which one a row is. `iterations`:
    also read training on several devices, and with several batches.
    """
    rows = read_table(path, expected=EXPECTED_NETWORKS)
    rows.mark_read("device")
    table = NetworkTable(str(path), rows.names, left_out=left_out or LeftOut())
    for columns, what in ((NETWORK_COLUMNS, "networks"), (TIMED_COLUMNS, "times")):
        if not {*columns} & {*rows.names}:
            has = shortened(", ".join(rows.names))
            raise InputError(f"{path} has no column of {what} (it has {has}); {EXPECTED_NETWORKS}")
    given = mode or Mode()
    usual = mode_of_name(Path(path).name, given)
    table.assumed = given if usual is given else None  # else the file's name says a mode
    passes = _timed_passes(rows.names)
    if passes:
        usual = replace(usual, training=training if len(passes) > 1 else passes[0])
    wanted = {*map(device_key, devices)}
    for row in rows:
        if wanted and "device" in row and device_key(row["device"]) not in wanted:
            table.left_out.add(
                f"of another device, {row['device']}" if row["device"] else "of no device"
            )
        elif _is_split(row) or (on_several(row) and not iterations):
            table.left_out.add("on several devices")
        else:
            try:
                timed = _timed_network(row, Path(path), usual)
                if (timed.gpus, timed.accumulate) != (1, 1) and not (
                    iterations and timed.mode.training
                ):
                    raise row.refused("no training step of one batch on one device")
                table.rows.append(timed)
            except InputError as error:
                why = error.data.get("why", str(error))
                table.left_out.add(why, error.data.get("column", ""), place=f"line {row.line}")
    return table


def on_several(row: Row) -> bool:
    """True for a row timed on more than one device."""
    return any(row.get(column, "") not in SINGLE for column in DEVICES)


def _is_split(row: Row) -> bool:
    """True if a word in the row, such as tp2, says that devices split the network."""
    return (text := row.get("parallel", "")) not in SINGLE and not text.isdigit()


def _timed_passes(columns: Collection[str]) -> list[bool]:
    """The passes whose times a table of timm has: False for inference, True for training."""
    timed = [name for name in columns if name in (*TIME_COLUMNS, *RATE_COLUMNS)]
    return [
        is_training
        for is_training, begin in PREFIXES.items()
        if any(n.startswith(begin) for n in timed)
    ]


def _timed_network(row: Row, path: Path, usual: Mode) -> TimedNetwork:
    mode = mode_of_row(row, usual)
    if is_logged(row):
        mode = replace(mode, training=True)
    gpus = next((row.whole(c, 1, LARGEST_SIZE) for c in DEVICES if row.get(c, "") not in SINGLE), 1)
    accumulate = accumulated(row)
    other = PREFIXES[not mode.training]
    columns = [
        next((name for name in names if row.get(name) and not name.startswith(other)), "")
        for names in (NETWORK_COLUMNS, BATCH_COLUMNS, TIMED_COLUMNS, PARAMETERS)
    ]
    name, batch, time, millions = columns
    if not (name and time):
        raise row.refused("no time" if name else "no network")
    samples = row.whole(batch, 1, LARGEST_SIZE, default=1)
    updates = ("none", *OPTIMIZERS)
    if row.get("optimizer") and row["optimizer"] not in updates:
        raise row.wrong("optimizer", f"one of {', '.join(updates)}")
    of_step = samples * gpus * accumulate
    ms = _ms(row, time, of_step, path.parent)
    stem = time.rpartition("_")[0]
    for same in (c for c in (f"{stem}_{unit}" for unit in ("s", "us")) if c in IN_MS and c != time):
        same_ms = IN_MS[same] * as_number(row.get(same, ""))
        if abs(same_ms / ms - 1.0) > SAME_TIME:
            raise row.refused(
                f"{time} is {row[time]}, but {same} {row[same]}; expected one time", time
            )
    for rate in (c for c in RATE_COLUMNS if time not in RATE_COLUMNS and not c.startswith(other)):
        per_s = as_number(row.get(rate, ""))
        if per_s and abs(1e3 * of_step / per_s / ms - 1.0) > SAME_TIME:
            raise row.refused(
                f"{time} is {row[time]}, but {rate} {row[rate]} at batch {of_step:,} is "
                f"{1e3 * of_step / per_s:.3g} ms; expected the time of a whole batch",
                time,
            )
    spec = _spec(row[name], path, name == "model", mode.training)
    return TimedNetwork(
        row[name],
        (spec, size_of(row, spec, mode.training), mode),
        samples,
        ms,
        1e6 * row.number(millions, ABOVE_ZERO) if millions else None,
        row,
        gpus,
        accumulate,
        row.number("link_gbps", ABOVE_ZERO, default=0.0) if gpus > 1 else 0.0,
        (version_of(str(path)) or "2").startswith("1."),
        mode.dtype == AMP and any(row.get(f"{begin}{MACTS}") for begin in ("", *PREFIXES.values())),
    )


def size_of(row: Row, network: str, training: bool) -> RowSize:
    """The size of a row's network; several numbers are divided by commas or x.

    InputError for tokens if the network comes from a package of image networks.
    """
    package, other = network.partition(":")[0], PREFIXES[not training]
    of_images = package in BY_NAME
    columns = (*PIXELS, *TOKENS) if of_images else (*TOKENS, *PIXELS)
    column = next((c for c in columns if row.get(c) and not c.startswith(other)), None)
    if of_images and column in TOKENS:
        raise row.refused(
            f"{column} is {row[column]!r}, and {network} takes images; expected input_size, or no size",
            column,
        )
    if not column:
        return None
    parts = re.split("[,x]", row[column].replace(" ", "").lower())
    if (
        column in PIXELS
        and len(parts) > 1
        and all(re.fullmatch("[1-9][0-9]{0,6}", p) for p in parts)
    ):
        return tuple(map(int, parts))
    expected = "a whole number from 1" + (", or height,width" if column in PIXELS else "")
    return row.whole(column, 1, LARGEST_SIZE, expected)


def size_text(size: RowSize) -> str:
    """A size as `--input-size` takes it; "" for the network's own."""
    return ",".join(map(str, size)) if isinstance(size, tuple) else str(size or "")


def accumulated(row: Row) -> int:
    """Batches that each device accumulates before an update; 1 if the row does not say."""
    column = next(filter(row.get, ACCUMULATED), ACCUMULATED[0])
    return row.whole(column, 1, LARGEST_SIZE, default=1)


def pure_half_words(rows: int, precision: str) -> str:
    """A remark on training rows whose weights, too, are in half precision."""
    return (
        f"{plural(rows, 'row')} of training in {precision}: weights, gradients and optimizer states are "
        "taken to have 2 bytes; of autocast, such as bf16=True or fp16=True of transformers' Trainer, "
        "expected the precision amp"
    )


def is_logged(row: Row) -> bool:
    """True for a row whose samples per second come from a trainer's log."""
    return any(row.get(column, "").endswith(".json") for column in RATE_COLUMNS)


def _ms(row: Row, column: str, samples: int, folder: Path) -> float:
    """The time of a row in ms, from its time, its samples per second, or the log that it names."""
    if column not in RATE_COLUMNS:
        return milliseconds(row, column)
    if row[column].endswith(".json"):
        value = logged_rate(row, column, folder, samples)
    else:
        value = row.number(column, ABOVE_ZERO, expected="a number above 0")
    return _in_range(row, column, 1e3 * samples / value)


def milliseconds(row: Row, column: str) -> float:
    """The time in a cell, converted to ms; InputError outside SHORTEST_MS to LONGEST_MS."""
    if column not in IN_MS:
        return row.milliseconds(column)
    value = row.number(column, ABOVE_ZERO, expected="a number above 0")
    return _in_range(row, column, IN_MS[column] * value)


def _in_range(row: Row, column: str, ms: float) -> float:
    """The `ms` that a cell stands for; InputError outside SHORTEST_MS to LONGEST_MS."""
    if not SHORTEST_MS <= ms <= LONGEST_MS:
        raise row.refused(f"{column} is {row[column]!r}, {ms:g} ms; expected {EXPECTED_MS}", column)
    return ms


def version_of(path: str) -> str | None:
    """The version of PyTorch in the name of a timm table: pt291 means 2.9.1; None without one."""
    found = re.search(r"-pt(1)(\d\d)[-.]|-pt(\d)(\d)(\d)[-.]", Path(path).name)
    return None if found is None else ".".join(filter(None, found.groups()))


def _spec(name: str, path: Path, of_timm: bool, training: bool) -> str:
    config = path.parent / "networks" / f"{name}.json"
    if not config.is_file():
        return f"timm:{name}" if of_timm and ":" not in name else name
    # An encoder is trained with the heads of its pretraining; in inference it classifies.
    document = read_json(config, "expected a configuration of transformers", decode=json.loads)
    is_encoder = document.get("model_type") in ENCODER_TYPES
    head = f"{'AutoModelForPreTraining' if training else ENCODERS}," if is_encoder else ""
    return f"transformers:{config}?{head}{TAKEN_APART}"
