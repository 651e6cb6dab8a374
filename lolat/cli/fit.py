"""`lolat fit`: a model from points that somebody has measured already."""

from __future__ import annotations

from pathlib import Path

import click

import lolat
from lolat.cli import common


@common.command(
    "lolat fit points.csv --output model.json",
    "lolat fit local timed.csv --output mine.json",
    "lolat fit operations.csv --facts devices.csv --name l4 --output l4.json",
    answers={"model-summary": "lolat.model.summary:ModelSummary"},
)
@click.argument("tables", metavar="[POINTS]...", nargs=-1, type=click.Path())
@common.output_option(
    required=True, more="The device's model file: made, or its latencies are added or replaced."
)
@common.name_option(more="Also its row in --facts, and in tables of several devices.")
@common.facts_option(more="Columns: device, multiprocessors, fp32_matrix_gflops, bandwidth_gb_s.")
@common.json_option
def fit(
    tables: tuple[str, ...],
    output: Path,
    name: str | None,
    facts: str | None,
    as_json: bool,
) -> None:
    """Fit POINTS: a model file (again, with what it knows of training), or CSV tables (.csv, .csv.gz).

    A model file and tables of networks that you timed on its device: all together. Rows that cannot be used
    are left out.

    Blocks: acts, inp, flops, latency_ms, and where known traffic, weights, ops, batch_size, name.

    Operations timed one by one: op and latency_ms; linear and bmm have batch, m, n, k, conv has
    batch, in_channels, out_channels, kernel, input_size, stride, padding, all others rows, width.

    Whole networks: network, batch_size, latency_ms, and where known input_size or sequence_length, dtype,
    channels_last, compiled; also as timm's benchmark.py writes them. Several tables make one device.

    Epochs of training: network, batch_size, samples, optimizer, epoch_s; `lolat cost` answers by them.

    Without POINTS: from the data sheet of --name in --facts alone.
    """
    from lolat.io.paths import called, near
    from lolat.report.device import learned

    common.check_file(output, "output", make_folder=True)
    with common.progress() as bar:
        made = lolat.fit(
            tables, output, name=name, facts=facts, said=common.counting(bar), warn=common.say,
        )  # fmt: skip
    common.warn(made.document.get("warnings", ()))
    common.answer(
        "model-summary", made, as_json, learned(made, near(output), called(output), False)
    )
