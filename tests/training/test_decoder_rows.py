"""Runs of training decoders: tables and logs, the level of a device, `lolat fit` and `lolat evaluate`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy import stats

import lolat as package
from lolat.api.model import Model
from lolat.api.serving import serving_model
from lolat.errors import InputError
from lolat.llm.gpu import GPU
from lolat.tables.networks import read_networks
from lolat.training.decoder_plan import half_width
from lolat.training.decoder_rows import RUN_COLUMNS, level_of, read_runs
from tests.llm.known_gpu import LLAMA, document, section
from tests.training.several import network as net

COLUMNS = (
    "model,gpus,sequence_length,micro_batch_size,gradient_accumulation,precision,sharding,"
    "activation_checkpointing,tokens_per_s_per_gpu"
)
GPUS = Model(document()).file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 24}))
    (tmp_path / "gpu.json").write_text(json.dumps(document()))
    return tmp_path


def table(folder: Path, *rows: str) -> str:
    path = folder / "runs.csv"
    path.write_text("\n".join([COLUMNS, *(f"{folder}/small.json,{row}" for row in rows)]) + "\n")
    return str(path)


def test_a_row_is_an_iteration_with_all_its_micro_batches(folder: Path) -> None:
    path = table(folder, "8,2048,4,3,amp_bf16,full_shard,true,50000", "1,512,2,,bf16,,,9000")
    (first, second), refused = read_runs(path, GPUS)
    assert not refused
    assert first.ms == pytest.approx(1e3 * 3 * 4 * 2048 / 50000)
    assert (first.parallel.sharding, first.parallel.devices, first.batches) == ("fsdp", 8, 3)
    assert (first.step.recipe.weight, first.step.passes.checkpointing) == (4, "full")
    assert (second.step.recipe.weight, second.parallel.sharding, second.batches) == (2, "none", 1)


def test_a_column_may_have_the_name_of_the_option(folder: Path) -> None:
    path = Path(table(folder, "1,512,2,3,bf16,,full,9000"))
    names = {"activation_checkpointing": "checkpointing", "gradient_accumulation": "accumulate"}
    for name, option in names.items():
        path.write_text(path.read_text().replace(name, option))
    (run,), _ = read_runs(path, GPUS)
    assert (run.step.passes.checkpointing, run.batches) == ("full", 3)


def logged_ms(folder: Path, *history: Any, **more: Any) -> float:
    """The ms of an iteration of two GPUs, each of 4 sequences of 1,024 tokens, by a trainer's log."""
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history, **more}))
    rows, _ = read_runs(table(folder, "2,1024,4,1,bf16,zero2,none,trainer_state.json"), GPUS)
    return rows[0].ms


def test_the_log_of_a_trainer_gives_the_tokens(folder: Path) -> None:
    """8 samples of 1,024 tokens a second on two GPUs: 4,096 tokens/s on each."""
    for tokens in (None, 4096.0, 8192.0):  # not told; of each GPU (transformers 4), of both (5)
        last = {"train_samples_per_second": 8.0, "train_tokens_per_second": tokens, "step": 20}
        ms = logged_ms(folder, {"loss": 2.0, "step": 10}, last)
        assert ms == pytest.approx(1e3 * 4 * 1024 / 4096)
    evaluations = [{"eval_runtime": 300.0}, {"eval_runtime": 500.0}]
    ended = {"train_runtime": 900.0, "train_samples_per_second": 1.0}
    last |= {"train_runtime": 4000.0}  # 32,000 samples, in 3,200 s beside the evaluations
    ms = logged_ms(folder, {"eval_runtime": 9.0}, ended, *evaluations, last, {"eval_runtime": 7.0})
    assert ms == pytest.approx(1e3 * 2 * 4 / 10)
    # 2 GPUs of 4 sequences: 8 a step, and not 128, as with 16 micro-batches.
    last = {"train_samples_per_second": 8.0, "train_runtime": 900.0}
    assert logged_ms(folder, last | {"train_steps_per_second": 1.0}) == pytest.approx(1e3)
    with pytest.raises(InputError, match="a step has 129 samples, by the row 8"):
        logged_ms(folder, last | {"train_steps_per_second": 0.062})
    with pytest.raises(InputError, match="names this file in its column of rates"):
        package.fit([folder / "gpu.json", folder / "trainer_state.json"])
    (folder / "empty.json").write_text("{}")
    (folder / "stopped.json").write_text(json.dumps({"log_history": [{"loss": 2.0}]}))
    whys = {"empty": "no log of", "missing": "no such file", "stopped": "the run did not end"}
    for log_file, why in whys.items():
        with pytest.raises(InputError, match=rf"{log_file}.json: {why}.*relative to the table"):
            read_runs(table(folder, f"2,1024,4,1,bf16,zero2,none,{log_file}.json"), GPUS)


@pytest.mark.parametrize(
    ("counted", "ran", "earlier"),
    [(3000, 2000, None), (2000, 2000, None), (3000, 3000, None), (3000, 3000, 1000), (3000, 2500, 1000),
     (1500, 2500, 1000)],
)  # fmt: skip
def test_the_log_of_a_run_that_stopped_early(
    folder: Path, counted: int, ran: int, earlier: int | None
) -> None:
    """Steps of 330 ms: transformers 4 counts the 3,000 that were planned, 5 those of this run."""
    seconds = 0.33 * (ran - (earlier or 0))
    last = {"train_runtime": seconds, "train_samples_per_second": round(8 * counted / seconds, 3),
            "train_steps_per_second": round(counted / seconds, 3), "step": ran}  # fmt: skip
    before = [{"train_runtime": 9.0, "train_samples_per_second": 1.0, "step": earlier}]
    ms = logged_ms(folder, *before * bool(earlier), last, max_steps=3000)
    assert ms == pytest.approx(330, rel=1e-3)


def test_the_error_of_an_encoder_has_the_columns_of_a_table_of_networks(folder: Path) -> None:
    """8 GPUs of two micro-batches of 16 samples, at 64 samples a second."""
    bert = {"model_type": "bert", "architectures": ["BertForPreTraining"]}
    (folder / "small.json").write_text(json.dumps(bert))
    with pytest.raises(InputError, match="no decoder") as error:
        read_runs(table(folder, "8,512,16,2,amp,,,4096"), GPUS)
    header = str(error.value).rpartition(" with the columns ")[2]
    row = f"transformers:{folder}/small.json,16,512,8,2,amp,adamw,64"
    (folder / "networks.csv").write_text(f"{header}\n{row}\n")
    (read,) = read_networks(folder / "networks.csv", iterations=True).rows
    assert read.latency_ms == pytest.approx(1e3 * 8 * 16 * 2 / 64)
    assert (read.network[0], read.network[1]) == (f"transformers:{folder}/small.json", 512)
    assert (read.optimizer, read.mode.dtype, read.gpus, read.accumulate) == ("adamw", "amp", 8, 2)
    assert not read_networks(folder / "networks.csv").rows  # no step of one batch on one device


def test_a_gpu_is_called_as_cost_calls_it(folder: Path) -> None:
    asked = {"replicas": 1, "input_size": 512}
    tokens = serving_model("a100", of_any=True).cost(folder / "small.json", 2, **asked)
    each = tokens.options[0].tokens_per_s_per_gpu
    fitted = package.fit(["a100", table(folder, f"1,512,2,1,amp,,,{each}")])
    assert fitted.file.document["llm"]["trained"]["level"] == pytest.approx(1.0, rel=1e-3)


def test_fp8_is_left_out_and_a_wrong_cell_named(folder: Path) -> None:
    rows, refused = read_runs(
        table(folder, "1,512,2,1,amp_fp8,,,9000", "1,512,2,1,bf16,,,9000"), GPUS
    )
    assert (len(rows), len(refused)) == (1, 1)
    with pytest.raises(InputError, match=r"sharding.*full_shard"):
        read_runs(table(folder, "8,512,2,1,bf16,half,,9000"), GPUS)
    with pytest.raises(InputError, match="micro_batch_size"):
        read_runs(table(folder, "8,512,x,1,bf16,,,9000"), GPUS)


@pytest.mark.parametrize("column", ["tensor_parallel", "pipeline_parallel_size"])
def test_a_run_that_is_split_otherwise_is_left_out(folder: Path, column: str) -> None:
    path = Path(table(folder, "8,512,2,1,bf16,,,9000", "8,512,2,1,bf16,,,4000"))
    head, one, two = path.read_text().splitlines()
    path.write_text(f"{head},{column}\n{one},1\n{two},2\n")
    (run,), ((_, why),) = read_runs(path, GPUS)
    assert run.ms == pytest.approx(1e3 * 2 * 512 / 9000)
    assert str(why) == f"{column} 2 is not predicted; expected 1"


@pytest.mark.parametrize(("column", "cell"), [("optimizer", "adamx"), ("tune", "frozen:99")])
def test_a_wrong_optimizer_or_tune_is_told_with_its_line(
    folder: Path, column: str, cell: str
) -> None:
    path = Path(table(folder, "1,512,2,1,bf16,,,9000"))
    path.write_text(path.read_text().replace("\n", f",{column}\n", 1).rstrip() + f",{cell}\n")
    with pytest.raises(InputError, match=rf"^{path}, line 2: {column} '?{cell}") as error:
        read_runs(path, GPUS)
    assert str(error.value).count("line 2") == 1


@pytest.mark.parametrize("gpus", [8, 16])
def test_a_link_of_a_row_is_that_of_a_cost(folder: Path, gpus: int) -> None:
    path = Path(table(folder, f"{gpus},1024,1,1,amp,full_shard,,9000"))
    path.write_text(path.read_text().replace("\n", ",link_gbps\n", 1).rstrip() + ",10\n")
    (row,), _ = read_runs(path, GPUS)
    asked = {"replicas": gpus, "sharding": "fsdp", "input_size": 1024, "link_gbps": 10}
    cost = Model(document()).cost(folder / "small.json", 1, **asked)
    assert row.predicted_ms(GPU(section())) == pytest.approx(cost.options[0].iteration_ms)


@pytest.mark.parametrize(
    ("device", "gb_s", "link", "gbps"),
    [("mychip", 450, "the link of its data sheet", 2880), ("mychip", 32, "the link of its data sheet", 128),
     ("mychip", None, "an assumed network, as no link of these devices is known", 10),
     ("H100 SXM", 448, "NVLink 4", 2880), ("H100 SXM", 200, "the link of its data sheet", 1280)],
)  # fmt: skip
def test_the_link_in_an_own_data_sheet_joins_a_machine(
    folder: Path, device: str, gb_s: float | None, link: str, gbps: float
) -> None:
    """0.8 of a link as fast as NVLink, 0.5 of PCI Express: in cost, rented or not, and in fit."""
    sheet = msgspec.structs.replace(section().sheet, link_gb_s=gb_s)
    made = document(section(sheet=sheet)) | {"device": device}
    (folder / "gpu.json").write_text(json.dumps(made))
    asked = {"replicas": 8, "sharding": "fsdp", "input_size": 1024}
    for price in (None, 2.0):
        (found,) = Model(made).cost(LLAMA, 1, price_per_hour=price, **asked).options
        assert (found.link, found.link_gbps) == (link, pytest.approx(gbps))
    (given,) = Model(made).cost(LLAMA, 1, link_gbps=gbps, **asked).options
    assert found.iteration_ms == pytest.approx(given.iteration_ms)
    (other,) = Model(made).cost(LLAMA, 1, link_gbps=77, **asked).options
    assert (other.link, other.link_gbps) == (None, 77)
    (folder / "small.json").write_text(json.dumps(LLAMA))
    each = found.tokens_per_s_per_gpu
    fitted = package.fit([folder / "gpu.json", table(folder, f"8,1024,1,1,amp,fsdp,,{each}")])
    assert fitted.file.document["llm"]["trained"]["level"] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(
    ("word", "weight"), [("bfloat16", 2), ("bf16-mixed", 4), ("mixed", 4), ("BF16", 2)]
)
def test_a_precision_has_the_words_of_the_command(folder: Path, word: str, weight: int) -> None:
    """A weight has 2 bytes in pure bfloat16, 4 in mixed precision."""
    ((run,), _) = read_runs(table(folder, f"1,512,2,1,{word},,,9000"), GPUS)
    assert run.step.recipe.weight == weight


@pytest.mark.parametrize("price", [None, 2.0])
@pytest.mark.parametrize(("node", "gpus"), [(4, 4), (4, 8), (8, 16), (72, 16), (72, 72), (72, 144)])
def test_the_machines_of_an_own_data_sheet_hold_its_gpus(
    folder: Path, node: int, gpus: int, price: float | None
) -> None:
    """NVL4 and NVL72: GPUs of a machine have its link, others 10 Gbit/s, or what is given times the GPUs of
    a machine; a table's runs are on the same machines, and networks are trained on them.
    """
    sheet = msgspec.structs.replace(section().sheet, link_gb_s=900, gpus_per_node=node)
    chip = document(section(sheet=sheet)) | {"device": "nvl"}
    crosses, asked = gpus > node, {"replicas": gpus, "price_per_hour": price}
    ((found,), (given,)) = (
        Model(chip)
        .cost(LLAMA, 1, input_size=1024, sharding="fsdp", link_gbps=link, **asked)
        .options
        for link in (None, 100.0)
    )
    assert found.link_gbps == pytest.approx(10 if crosses else 0.8 * 8 * 900)
    assert given.link_gbps == pytest.approx(min(100 * node, 0.8 * 8 * 900) if crosses else 100)
    (folder / "small.json").write_text(json.dumps(LLAMA))
    (folder / "gpu.json").write_text(json.dumps(chip))
    rates = ((given, 100), (found, 10 / node if crosses else 900 * 0.8 * 8))
    for of, gbps in rates:
        path = table(folder, f"{gpus},1024,1,1,amp,fsdp,,{of.tokens_per_s_per_gpu}")
        text = Path(path).read_text().replace("_gpu\n", "_gpu,link_gbps\n").rstrip()
        Path(path).write_text(f"{text},{gbps}\n" if crosses or of is given else text + ",\n")
        fitted = package.fit([folder / "gpu.json", path])
        assert fitted.file.document["llm"]["trained"]["level"] == pytest.approx(1.0, rel=1e-3)
    network = package.load("a100-fp32").file.but(device="nvl", llm=chip["llm"])
    (of_network,) = Model(network.document).cost(net(), 1, **asked).options
    assert of_network.link_gbps == found.link_gbps


def test_a_hybrid_divides_a_model_inside_the_machines_of_the_data_sheet() -> None:
    """Of two machines each as much as of one; a rented machine of eight divides it among eight."""
    sheet = msgspec.structs.replace(section().sheet, gpus_per_node=4)
    of = Model(document(section(sheet=sheet)) | {"device": "H100 SXM"})
    asked: dict[str, Any] = {"input_size": 1024, "price_per_hour": 2.0}
    hybrid, one, two = (
        of.cost(LLAMA, 1, replicas=k, sharding=how, **asked)
        for k, how in ((8, "hybrid"), (4, "fsdp"), (8, "fsdp"))
    )
    assert hybrid.memory_bytes == one.memory_bytes > two.memory_bytes
    rented = of.cost(LLAMA, 1, replicas=8, sharding="hybrid", input_size=1024)
    assert rented.best.rented
    assert rented.memory_bytes == two.memory_bytes


def test_runs_that_no_card_can_hold_are_left_out(folder: Path) -> None:
    """1,000 sequences of 4,096 tokens: their logits alone are a hundred times what the card has."""
    path = table(folder, "1,4096,1000,1,amp,,,9000", "1,512,2,1,amp,,,9000")
    said: list[str] = []
    with pytest.raises(InputError, match="times as long"):
        package.fit([folder / "gpu.json", path], warn=said.append)
    (words,) = (w for w in said if "left out" in w)
    assert words.startswith("line 2 is left out: it needs about ")
    assert "which has 80" in words
    assert sum(Model(document()).evaluate_table(path).skipped.values()) == 1


@pytest.mark.parametrize("number", [1, 2, 5, 200])
def test_an_interval_at_a_level_is_that_of_one_more_run(folder: Path, number: int) -> None:
    """Student's prediction interval, by scipy, and the usual width where there is one run."""
    rows, _ = read_runs(table(folder, "8,1024,4,2,amp,full_shard,,1"), GPUS)
    alone = rows[0].predicted_ms(GPU(section()))
    off = 0.3 * np.random.default_rng(7).standard_normal(number)
    made, _ = level_of(section(), [replace(rows[0], ms=alone * math.exp(each)) for each in off])
    passes, gpus = rows[0].step.passes, rows[0].parallel
    found = half_width(made, "H100 SXM", passes, gpus, 0.9)
    if number == 1:
        usual = half_width(section(), "H100 SXM", passes, gpus, 0.9)
        assert found == pytest.approx(math.sqrt(2.0) * usual)
    else:
        s = math.sqrt(((off - np.median(off)) ** 2).sum() / (number - 1))
        t = stats.t.ppf(0.95, number - 1)
        assert found == pytest.approx(t * s * math.sqrt(1.0 + 1.0 / number), rel=0.01)


def test_a_run_tells_the_level_of_runs_of_its_kind_alone(folder: Path) -> None:
    """Eight GPUs that share parameters, 60 % slower: a LoRA on one card may be as fast as before."""
    rows, _ = read_runs(table(folder, "8,1024,4,2,amp,full_shard,,1"), GPUS)
    slow = replace(rows[0], ms=1.6 * rows[0].predicted_ms(GPU(section())))
    made = {**document(), "llm": msgspec.to_builtins(level_of(section(), [slow])[0])}
    asked = {"batch_size": 1, "input_size": 1024, "samples": 1000}
    before, after = (Model(d).cost(LLAMA, tune="lora:8", **asked) for d in (document(), made))
    assert any("of another kind" in w for w in after.warnings)
    low, high = after.options[0].interval_s
    assert low < before.options[0].total_s < after.options[0].total_s < high
    alike = Model(made).cost(LLAMA, replicas=8, sharding="fsdp", **asked)
    assert not any("of another kind" in w for w in alike.warnings)
    assert (alike.estimated, after.estimated) == (False, True)


def slower(folder: Path, factor: float) -> str:
    """Runs that take so many times as long as predicted, but for one that takes ten times."""
    sizes = [f"8,{n},4,2,amp_bf16,full_shard,false," for n in (512, 1024, 2048, 4096)]
    rows, _ = read_runs(table(folder, *(size + "1" for size in sizes)), GPUS)
    tokens = [2 * 4 * r.step.passes.length / r.predicted_ms(GPU(section())) * 1e3 for r in rows]
    times = [factor, factor, factor, 10 * factor]
    return table(folder, *(f"{s}{t / f}" for s, t, f in zip(sizes, tokens, times, strict=True)))


def test_fit_sets_the_level_and_evaluate_judges_by_it(folder: Path) -> None:
    path = slower(folder, 1.3)
    said: list[str] = []
    made = package.fit([folder / "gpu.json", path], folder / "mine.json", warn=said.append)
    level = made.language_models.trained
    assert level is not None
    assert (level.level, level.rows) == (pytest.approx(1.3, rel=1e-3), 4)
    assert any("4 runs" in words for words in said)
    asked = {
        "batch_size": 4,
        "input_size": 1024,
        "replicas": 8,
        "sharding": "fsdp",
        "accumulate": 2,
    }
    config = folder / "small.json"
    before, after = (m.cost(config, **asked).options[0] for m in (Model(document()), made))
    assert after.iteration_ms == pytest.approx(1.3 * before.iteration_ms, rel=1e-3)
    judged = made.evaluate_table(path)
    assert judged.summary["median"] == pytest.approx(0.0, abs=1e-3)
    assert not any("2 bytes" in words for words in said)
    Path(path).write_text(Path(path).read_text().replace("amp_bf16", "bf16"))
    package.fit([folder / "gpu.json", path], warn=said.append)
    assert any(words.startswith("4 rows of training in bfloat16: ") for words in said)


def test_copies_of_a_run_count_once(folder: Path) -> None:
    """Three copies of one run do not outweigh another."""
    (folder / "gpu.json").write_text(json.dumps(document()))
    runs, levels = ("1,512,2,1,amp,,,", "1,1024,2,1,amp,,,"), []
    read, _ = read_runs(table(folder, *(f"{run}9000" for run in runs)), GPUS)
    each = [9000 * row.ms / row.predicted_ms(GPU(section())) for row in read]
    runs = (f"{runs[0]}{each[0] / 1.1}", f"{runs[1]}{each[1] / 1.5}")
    for rows, told in ((runs, False), ((*runs, runs[1], runs[1]), True)):
        said: list[str] = []
        made = package.fit([folder / "gpu.json", table(folder, *rows)], warn=said.append)
        levels.append(made.file.document["llm"]["trained"])
        assert ("2 of 4 rows are copies of others, and count once" in said) is told
    assert levels[0] == levels[1]
    assert levels[0]["level"] == pytest.approx(math.sqrt(1.1 * 1.5), rel=1e-3)


def test_a_device_of_an_unknown_name_keeps_the_card_and_its_link(tmp_path: Path) -> None:
    """Eight H100 SXM reduce a gradient in float32 over NVLink 4, 450 GB/s by NVIDIA, in some 24
    ms, as an iteration has 128 ms: a user's own name in a table tells nothing else."""
    path = tmp_path / "runs.csv"
    run = "llama-3.2-1b,8,2048,2,32000"
    path.write_text(f"{','.join(RUN_COLUMNS)},device\n{run},node7\n{run},h100-sxm\n{run},node8\n")
    asked = {"batch_size": 2, "input_size": 2048, "replicas": 8}
    expected = serving_model("h100-vllm").cost("llama-3.2-1b", **asked).options[0]
    assert (expected.link, expected.devices) == ("NVLink 4", 8)
    for only in (["h100-sxm"], ["node7", "node8"]):
        compared = serving_model("h100-vllm").evaluate_table(path, only=only)
        found = [float(row["predicted_ms"]) for row in compared.rows()]
        assert found == [pytest.approx(expected.iteration_ms, rel=1e-6)] * len(only)
    with pytest.raises(InputError, match="none of a desk; expected only"):
        serving_model("h100-vllm").evaluate_table(path, only=["a desk"])


@pytest.mark.parametrize(
    ("name", "rate", "link"),
    [("node7", 32000, "NVLink 4"), ("H100 80GB", 32000, "NVLink 4"), ("h100-pcie", 16000, "PCIe 5.0 x16")],
)  # fmt: skip
def test_a_fit_under_a_name_keeps_the_card_unless_it_tells_the_form(
    tmp_path: Path, name: str, rate: float, link: str
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{','.join(RUN_COLUMNS)},device\nllama-3.2-1b,2,2048,2,{rate},{name}\n")
    made = package.fit(["h100-vllm", path], name=name)
    (option,) = made.cost(
        "llama-3.2-1b", 2, input_size=2048, replicas=2, price_per_hour=3.0
    ).options
    assert option.link == link
    assert option.iteration_ms == pytest.approx(1e3 * 2 * 2048 / rate, rel=1e-3)
    with pytest.raises(InputError, match="another device, H100"):
        package.fit(["h100-vllm", path], name="RTX 4090")


def test_runs_of_another_gpu_are_refused(folder: Path) -> None:
    rows, _ = read_runs(slower(folder, 5.0), GPUS)
    with pytest.raises(InputError, match=r"5\.00 times as long"):
        level_of(section(), rows)


@pytest.mark.parametrize("is_timed", [True, False])
def test_a_level_of_another_kind_is_told_where_runs_like_it_were_published(
    folder: Path, is_timed: bool
) -> None:
    """Eight GPUs at 0.6 of the speed: full training on one has that level, and no own run."""
    known = section()
    if not is_timed:
        rowless = {name: {dtype: msgspec.structs.replace(one, rows=0) for dtype, one in dtypes.items()}
                   for name, dtypes in known.operations.items()}  # fmt: skip
        known = section(operations=rowless)
    plain = document(known)
    plain["device"] = "h100-sxm"
    rows, _ = read_runs(table(folder, "8,1024,4,2,amp,full_shard,,1"), GPUS)
    slow = replace(rows[0], ms=rows[0].predicted_ms(GPU(known)) / 0.6)
    made = {**plain, "llm": msgspec.to_builtins(level_of(known, [slow])[0])}
    before, after = (Model(d).cost(LLAMA, 1, input_size=1024) for d in (plain, made))
    assert (before.in_domain, after.in_domain) == (is_timed, False)
    assert not any("of another kind" in w for w in before.warnings)
    (told,) = (w for w in after.warnings if "of another kind" in w)
    assert told.startswith("no own run is" if is_timed else "no own or published run is")
    assert any("no operation was timed" in w for w in after.warnings) == (not is_timed)
