"""`lolat fit`: a profile from points that somebody has measured already."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

import lolat
from lolat.cli import common
from lolat.errors import LolatError

BADLY = 0.5  # relative error above which times may be in other units or of several devices


@common.command(
    "lolat fit points.csv --output model.json",
    "lolat fit local timed.csv --output mine.json",
    "lolat fit operations.csv --facts devices.csv --name l4 --output l4.json",
    "lolat fit h100-vllm result.json --tensor-parallel 2 --output mine.json",
    "lolat fit kernels-vllm.csv --facts devices.csv --device h100-sxm --output h100.json",
    answers={"model-summary": "lolat.device.summary:ModelSummary"},
    renews=True,
)
@click.argument("tables", metavar="[POINTS]...", nargs=-1, type=click.Path())
@common.output_option(
    required=True, more="The device's profile: made, or its latencies are added or replaced."
)
@click.option("--name", "--device", "name", metavar="NAME",
               help="What the device is called; also its row in --facts, and in tables of several "
               "devices.")  # fmt: skip
@click.option("--facts", type=click.Path(), metavar="FILE",
               help="Data sheets of devices. Columns: device, multiprocessors, bandwidth_gb_s, "
               "fp32_matrix_gflops; for language models memory_gib, bf16_tflops, fp8_tflops, fp4_tflops, "
               "link_gb_s.")  # fmt: skip
@common.parameter("framework")
@click.option("--tensor-parallel", type=common.List(common.WHOLE, "N[,N]", "1,2,4"), default=(),
               help="GPUs that share the model. Where a serving measurement does not say it: one "
               "number, or one for each file.")  # fmt: skip
@common.parameter("served_model")
def fit(tables: tuple[str, ...], output: Path, **asked: Any) -> None:
    """Fit a profile to POINTS: CSV tables (.csv, .csv.gz), a profile, or a profile and tables.

    A profile that `lolat learn` made is fitted again, together with the networks in the tables. A profile
    made from tables is scaled: all times of the device by one factor, the host's by another. Rows that
    cannot be used are skipped.

    Whole networks: network, batch_size, latency_ms; also as timm's benchmark.py writes them.

    Blocks: acts, inp, flops, latency_ms. Operations timed one by one: op, latency_ms and their sizes.

    Epochs of training: network, batch_size, samples, optimizer, epoch_s.

    Language models: operations, with --facts. Served models (the JSON of `vllm bench serve --save-result`
    or of SGLang's bench_serving) and training runs need these operations or the profile of their GPU too.

    docs/reference/files.md has all columns.

    Without POINTS: from the data sheet of --name alone, in --facts, or of a GPU that LoLat knows.
    """
    # Small matrices: beside other programs OpenBLAS' threads wait for each other, many times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded
    from lolat.device.lookup import shortest_name
    from lolat.io.paths import relative_path
    from lolat.report.device import learned
    from lolat.tables.contents import MODEL, content_of
    from lolat.units import plain

    common.check_file(output, "output", make_folder=True)
    before = dict[str, str]()  # remarks on a profile's own measurements, made long ago
    for path in tables:
        with suppress(LolatError):  # a table, or what `fit` refuses
            if content_of(path) == MODEL:
                known = lolat.load(path).file.notes
                before |= {note: f"when {plain(path)} was made: {note}" for note in known}
    said = set[str]()

    def tell(remark: str) -> None:
        said.add(remark)
        common.say(remark)

    with common.Show() as bar:
        made = lolat.fit(tables, output, **asked, on_progress=common.counting(bar), warn=tell)
    common.warn(before.get(note, note) for note in made.file.notes if note not in said)
    if made.predictors and (made.file.errors(made.default).get("median") or 0.0) > BADLY:
        common.say(
            "warning: the formula does not fit these times: half of what was left out is off by more than "
            f"{100 * BADLY:.0f} %; are all of one device, in milliseconds?"
        )
    common.answer(made, learned(made, relative_path(output), shortest_name(output)))
