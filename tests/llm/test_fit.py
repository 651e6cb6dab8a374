"""Fits to rows whose terms are known; tables and files of benchmarks as they come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import lolat
from lolat.errors import InputError
from lolat.llm.calibration import SPREADS
from lolat.llm.fit import IN_GENERAL, complete, fit_operation, section_from
from lolat.llm.frameworks import framework_in
from lolat.llm.gpu import FittedKernel, operation_ms
from lolat.llm.kernel_models import KERNEL_MODELS
from lolat.llm.operation_tables import MOST_SIZE, read_operations, read_sheet
from tests.llm import known_gpu
from tests.llm.conftest import Write
from tests.llm.known_gpu import DTYPES, SHEET, SPECS, random_rows, section, terms
from tests.llm.served_rows import SERVED, VLLM

OPERATIONS = {name: dtypes[0] for name, dtypes in DTYPES.items()}


def off_center(name: str, dtype: str) -> dict[str, float]:
    """Terms half a width away from where they are drawn to, up and down in turns."""
    centers = KERNEL_MODELS[name].terms(dtype, KERNEL_MODELS[name].variants(dtype)[0])
    signs = zip(centers.items(), (-1.0) ** np.arange(len(centers)), strict=True)
    return {term: c * float(np.exp(0.5 * w * sign)) for (term, (c, w)), sign in signs}


def timed(name: str, number: int, seed: int, noise: float = 0.0, outliers: float = 0.0) -> Any:
    """(rows, ms) of an operation with known terms."""
    dtype, random = OPERATIONS[name], np.random.default_rng(seed)
    rows = random_rows(name, number, seed)
    ms = known_gpu.kernel_ms(name, dtype, rows, alone=True, **off_center(name, dtype))
    ms = ms * np.exp(noise * random.standard_normal(number))
    far = random.random(number) < outliers
    return rows, np.where(far, ms * random.choice([0.3, 4.0], number), ms)


def errors(name: str, fitted: FittedKernel, rows: Any, ms: Any) -> Any:
    return np.log(operation_ms(name, fitted, rows, SPECS, OPERATIONS[name], alone=True) / ms)


# ---- Operations


@pytest.mark.parametrize(("name", "dtype"), OPERATIONS.items())
def test_rows_of_known_terms_are_foretold_despite_outliers(name: str, dtype: str) -> None:
    rows, ms = timed(name, 240, 1, noise=0.02, outliers=0.05)
    fitted = fit_operation(name, dtype, rows, ms, SPECS)
    left_out, right = timed(name, 400, 2)
    off = np.abs(errors(name, fitted, left_out, right))
    assert fitted.rows == 240
    assert np.median(off) < 0.02
    assert np.quantile(off, 0.9) < 0.1


@pytest.mark.parametrize("name", ["gemm", "decode_attention", "moe"])
def test_the_spread_covers_what_is_left_out(name: str) -> None:
    rows, ms = timed(name, 300, 3, noise=0.12)
    fitted = fit_operation(name, OPERATIONS[name], rows, ms, SPECS)
    off = np.abs(errors(name, fitted, *timed(name, 2000, 4, noise=0.12)))
    assert 0.85 <= (off < 1.645 * fitted.spread).mean() <= 0.96
    assert fitted.spread == pytest.approx(0.12, rel=0.35)


def test_few_rows_stay_near_what_is_usual() -> None:
    rows, ms = timed("gemm", 4, 5)
    fitted = fit_operation("gemm", "bfloat16", rows, ms, SPECS)
    assert (fitted.rows, fitted.spread, fitted.centers) == (4, 0.3, ())
    usual = FittedKernel(terms=terms("gemm", "bfloat16"), variant=fitted.variant)
    others, right = timed("gemm", 300, 6)
    median = [np.median(np.abs(errors("gemm", one, others, right))) for one in (fitted, usual)]
    assert median[0] < 1.1 * median[1]
    rate = KERNEL_MODELS["gemm"].terms("bfloat16", "library")["rate"]
    assert abs(np.log(fitted.terms["rate"] / rate[0])) < rate[1]


def test_the_correction_follows_what_terms_do_not_and_fades_away() -> None:
    """A library that is half as slow again between 256 and 2048 rows."""
    rows, ms = timed("gemm", 500, 7)
    slow = 1.0 + 0.35 * np.exp(-0.5 * (np.log2(rows["m"]) - 9.5) ** 2)
    fitted = fit_operation("gemm", "bfloat16", rows, ms * slow, SPECS)
    plain = msgspec.structs.replace(fitted, centers=(), weights=())
    with_it, without = (np.abs(errors("gemm", o, rows, ms * slow)).mean() for o in (fitted, plain))
    assert with_it < 0.7 * without
    far = dict.fromkeys("mnk", np.array([2.0**40, 1.0]))
    for sizes, least, most in ((far, 0.0, 1e-6), (rows, 0.1, 1.0)):
        both = (operation_ms("gemm", o, sizes, SPECS, "bfloat16", True) for o in (fitted, plain))
        assert least <= np.abs(np.log(np.divide(*both))).max() < most


def test_what_was_not_timed_is_as_on_a_gpu_that_is_alike() -> None:
    of = section().operations
    mine = section(operations={"gemm": {"bfloat16": of["gemm"]["bfloat16"]}})
    twin_moe = msgspec.structs.replace(of["moe"]["bfloat16"], spread=0.07)
    fp4 = msgspec.structs.replace(of["gemm"]["fp8"], spread=0.06)
    alike = section(operations={"moe": {"bfloat16": twin_moe}, "gemm": {"nvfp4": fp4}})
    slow = msgspec.structs.replace(SHEET, bf16_tflops=100, bandwidth_gb_s=300, fp8_tflops=None)
    odd = msgspec.structs.replace(of["all_reduce"]["bfloat16"], terms={"launch": 9.0})
    unlike = section(sheet=slow, operations={"moe": of["moe"], "all_reduce": {"bfloat16": odd}})
    found = complete(mine, {"far": unlike, "twin": alike}).operations
    # Its own, and no FP4, which it lacks.
    assert found["gemm"] == {"bfloat16": of["gemm"]["bfloat16"]}
    assert found["moe"]["bfloat16"] == msgspec.structs.replace(twin_moe, rows=0, like="twin")
    assert found["moe"]["fp8"].like == IN_GENERAL
    # An unlike GPU tells no more than that there is such an operation.
    reduce = found["all_reduce"]["bfloat16"]
    assert (reduce.like, reduce.terms) == (IN_GENERAL, terms("all_reduce", "bfloat16"))


def test_what_a_gpu_like_it_borrowed_is_as_on_the_gpu_that_was_timed() -> None:
    timed = section().operations["moe"]["bfloat16"]
    borrowed = msgspec.structs.replace(timed, rows=0, like="timed")
    of_sheet = section(operations={"moe": {"bfloat16": borrowed}})
    found = complete(section(operations={}), {"of its sheet": of_sheet}).operations
    assert found["moe"]["bfloat16"].like == "timed"


def test_all_reduces_over_pci_express_are_those_that_were_timed_over_it() -> None:
    """A card with twice the bandwidth, so unlike any: its link is that of the timed card, or half of it."""
    of = section().operations["all_reduce"]["bfloat16"]
    timed = msgspec.structs.replace(of, rows=57, terms={**of.terms, "ring": 0.2})
    borrowed = msgspec.structs.replace(of, rows=0, like="far")
    pcie = msgspec.structs.replace(SHEET, link_gb_s=32.0, bandwidth_gb_s=0.3 * SHEET.bandwidth_gb_s)
    known = {
        "linked": section(operations={"all_reduce": {"bfloat16": of}}),
        "borrows": section(sheet=pcie, operations={"all_reduce": {"bfloat16": borrowed}}),
        "pcie": section(sheet=pcie, operations={"all_reduce": {"bfloat16": timed}}),
    }
    for link in (None, 16.0, 64.0):
        mine = section(sheet=msgspec.structs.replace(SHEET, link_gb_s=link), operations={})
        found = complete(mine, known).operations["all_reduce"]["bfloat16"]
        assert found == msgspec.structs.replace(timed, rows=0, like="pcie")
    mine = section(sheet=msgspec.structs.replace(SHEET, link_gb_s=300.0), operations={})
    assert complete(mine, known).operations["all_reduce"]["bfloat16"].like == "linked"


def test_from_a_data_sheet_alone() -> None:
    made = section_from(SHEET, "trtllm", {}, {"known": section()})
    assert {n: {*d} for n, d in made.operations.items()} == {n: {*d} for n, d in DTYPES.items()}
    assert (made.framework, made.served, made.spread) == ("trtllm", 0, SPREADS["sheet"])
    assert framework_in("kernels-h100-TRTLLM.csv") == "trtllm"
    assert framework_in("mine.csv") == "vllm"


# ---- Tables of operations

HEAD = (
    "op,dtype,kv_dtype,latency_ms,m,n,k,batch,length,heads,kv_heads,head_dim,window,gpus,elements\n"
)
GEMM = "gemm,bfloat16,,0.1,1,64,64,,,,,,,,\n"
EXPERTS = (
    "op,dtype,latency_ms,tokens,hidden,intermediate,experts,top_k,tensor_parallel,expert_parallel,"
    "distribution\nmoe,fp8,0.5,8,64,32,4,2,1,1,"
)


def test_a_table_of_operations(write: Write) -> None:
    path = write("k.csv", HEAD + GEMM + "gemm,fp8,,0.2,2,64,128,,,,,,,,\n" + GEMM.replace("0.1", "0.3")
                 + "decode_attention,bfloat16,fp8,0.4,,,,2,100,8,4,64,,,\n"
                 + "all_reduce,bfloat16,,0.5,,,,,,,,,,4,1e6\n")  # fmt: skip
    found = read_operations(path)
    assert {name: [*dtypes] for name, dtypes in found.items()} == {
        "gemm": ["bfloat16", "fp8"], "decode_attention": ["bfloat16/fp8"], "all_reduce": ["bfloat16"]
    }  # fmt: skip
    rows, ms = found["gemm"]["bfloat16"]
    assert ms.tolist() == [0.1, 0.3]
    assert {c: v.tolist() for c, v in rows.items()} == {"m": [1, 1], "n": [64, 64], "k": [64, 64]}
    rows, _ = found["decode_attention"]["bfloat16/fp8"]
    assert rows["window"] == [0.0]
    assert found["all_reduce"]["bfloat16"][0]["elements"] == [1e6]


@pytest.mark.parametrize(
    ("text", "skew"), [("", 0.0), ("balanced", 0.0), ("power_law_1.2", 1.2), ("power_law_1", 1.001)]
)
def test_how_evenly_tokens_fall_on_experts(text: str, skew: float, write: Write) -> None:
    rows, _ = read_operations(write("k.csv", EXPERTS + text + "\n"))["moe"]["fp8"]
    assert rows["skew"] == pytest.approx(skew)
    assert np.isfinite(known_gpu.kernel_ms("moe", "fp8", rows, alone=True)).all()


@pytest.mark.parametrize(
    ("old", "new", "given"),
    [
        (",64,64", ",64,0", "k is '0'"), (",64,64", f",64,{MOST_SIZE * 10}", "k is"),
        ("gemm,bfloat16,", "prefill_attention,bfloat16,int8", "kv_dtype is 'int8'"),
    ],
)  # fmt: skip
def test_a_wrong_row_is_named(old: str, new: str, given: str, write: Write) -> None:
    with pytest.raises(InputError, match=f"line 2: {given}"):
        read_operations(write("k.csv", (HEAD + GEMM).replace(old, new, 1)))


@pytest.mark.parametrize("text", ["power_law_", "power_law_x", "power_law_-1", "uniform"])
def test_a_wrong_distribution_is_named(text: str, write: Write) -> None:
    with pytest.raises(InputError, match="line 2: distribution"):
        read_operations(write("k.csv", EXPERTS + text + "\n"))


# ---- `lolat fit`

SHEETS = (
    "device,multiprocessors,bandwidth_gb_s,memory_gib,bf16_tflops,fp8_tflops,link_gb_s\n"
    "gpu,100,2000,80,1000,2000,400\nbare,100,2000,80,1000,,\n"
)


def test_from_tables_to_a_file(write: Write, tmp_path: Path) -> None:
    table, specs = write("k-sglang.csv", HEAD + GEMM * 3), write("devices.csv", SHEETS)
    out = tmp_path / "gpu.json"
    made = lolat.fit([table], out, name="gpu", facts=specs)
    assert made.language_models.framework == "sglang"
    assert made.language_models.sheet == SHEET
    assert made.language_models.operations["gemm"]["bfloat16"].rows == 3
    assert lolat.load(out).language_models == made.language_models
    many = "".join(f"qwen3-8b,,500,100,{n},1,{10 + n / 10},,\n" for n in range(1, 13))
    again = lolat.fit([out, write("s.csv", SERVED + many)])
    assert (again.language_models.served, again.language_models.kinds) == (12, ("dense",))
    assert again.language_models.overheads != made.language_models.overheads
    assert again.language_models.operations == made.language_models.operations
    told: list[str] = []
    once = {**VLLM, "model_id": "qwen3-8b", "mean_tpot_ms": 12.0, "tensor_parallel": 1}
    third = lolat.fit([out, write("run.json", json.dumps(once))], warn=told.append)
    assert told[0].endswith(
        "by its keys a benchmark of vLLM; its times are taken as those of SGLang"
    )
    assert told[1].startswith("assumed: qwen3-8b in bfloat16 with cache bfloat16; the keys dtype")
    assert told[2].startswith("1 serving measurement: time per output token off by ")
    assert third.file.document["environment"]["source"] == "k-sglang.csv, run.json"
    assert "warnings" not in third.file.document
    of_others = write("o.csv", SERVED + many.replace(",,500", ",other,500"))
    with pytest.raises(InputError) as caught:
        lolat.fit([out, of_others])
    assert caught.value.code == "served"


def test_a_table_of_several_gpus_is_of_the_named_one(write: Write) -> None:
    """Mixed, the terms are those of neither."""
    rows = [GEMM.strip() + f",{device}\n" for device in ("gpu", "bare") for _ in range(2)]
    slow = [row.replace("0.1", "0.3") for row in rows[2:]]
    both = write("k-vllm.csv", HEAD.strip() + ",device\n" + "".join(rows[:2] + slow))
    own = write("one-vllm.csv", HEAD + GEMM * 2)
    specs = write("devices.csv", SHEETS)
    found, alone = (
        lolat.fit([table], name="gpu", facts=specs).language_models for table in (both, own)
    )
    assert found.operations["gemm"]["bfloat16"].rows == 2
    assert found.operations == alone.operations
    with pytest.raises(InputError, match="has rows of gpu, bare"):
        read_operations(both)


@pytest.mark.parametrize("missing", ["bf16_tflops", "memory_gib"])
def test_an_empty_cell_of_a_data_sheet_is_named(missing: str, write: Write) -> None:
    cells = {"bf16_tflops": "1000", "memory_gib": "80"} | {missing: ""}
    row = "gpu,100,2000,{memory_gib},{bf16_tflops},,\n".format(**cells)
    path = write("devices.csv", SHEETS.partition("\n")[0] + "\n" + row)
    with pytest.raises(InputError, match=f"{missing} is empty"):
        read_sheet(path, "gpu")


@pytest.mark.parametrize(
    ("device", "units", "link"), [("h100-sxm", 132, 450.0), ("l4", 58, 31.5), ("other", 100, None)]
)
def test_what_a_sheet_lacks_is_that_of_a_known_gpu(
    device: str, units: int, link: float | None, write: Write
) -> None:
    """NVIDIA's sheets: 900 GB/s both ways; PCI Express 4.0 with 16 lanes; 7,424 cores by 128."""
    row = f"{device},{units if device == 'other' else ''},2000,80,1000,,\n"
    path = write("devices.csv", SHEETS.partition("\n")[0] + "\n" + row)
    found = read_sheet(path, device)
    assert (found.multiprocessors, found.link_gb_s) == (units, link)


@pytest.mark.parametrize("number", ["0", "0.5", "7.5", "four"])
def test_a_machine_has_whole_gpus(number: str, write: Write) -> None:
    row = f"gpu,100,2000,80,1000,,,{number}\n"
    path = write("devices.csv", SHEETS.partition("\n")[0] + ",gpus_per_node\n" + row)
    with pytest.raises(InputError, match=f"line 2: gpus_per_node is '{number}'; expected a "):
        read_sheet(path, "gpu")


def test_a_sheet_for_neither_question_names_the_columns_of_both(write: Write) -> None:
    path = write(
        "devices.csv", "device,memory_gib,bandwidth_gb_s,multiprocessors\nchip,80,3000,132\n"
    )
    with pytest.raises(InputError, match=r"fp32_matrix_gflops; for language models bf16_tflops$"):
        lolat.fit([], name="chip", facts=path, framework="vllm")


@pytest.mark.parametrize("facts", [True, False])
def test_a_framework_may_be_in_capitals(facts: bool, write: Write) -> None:
    """With the data sheet of a GPU of one's own, and with that of a known one."""
    path = write("devices.csv", SHEETS) if facts else None
    name = "gpu" if facts else "h100-sxm"
    made = lolat.fit([], name=name, facts=path, framework="SGLang")
    assert made.language_models.framework == "sglang"


def test_headers_of_a_data_sheet_may_have_units(write: Write) -> None:
    rows = "gpu,100,2000,80,1000,2000,400\n"
    units = "Device,Multiprocessors,Bandwidth (GB/s),Memory [GiB],BF16 TFLOPS,FP8 (TFLOPS),Link (GB/s)\n"
    assert read_sheet(write("devices.csv", units + rows), "gpu") == SHEET


FAST = {
    # 2 x 4096^3 = 137.4 GFLOP; 1000 TFLOPS take 0.1374 ms, FP8 half of that
    "computes": "gemm,bfloat16,,{},4096,4096,4096,,,,,,,,\n",
    "fp8": "gemm,fp8,,{},4096,4096,4096,,,,,,,,\n",
    # 4 x 8192 x 8193 / 2 x 32 x 128 = 549.8 GFLOP; 0.5498 ms
    "prompt": "prefill_attention,bfloat16,bfloat16,{},,,,1,8192,32,8,128,,,\n",
    # 2 x 64 x 8192 x 8 x 128 x 2 = 2147 MB, of which a cache may hold 256; 2000 GB/s take 0.946 ms
    "moves": "decode_attention,bfloat16,bfloat16,{},,,,64,8192,32,8,128,,,\n",
    # 524 MB from weights of 16384 x 16000, 268 of them from memory; 0.134 ms
    "weights": "gemm,bfloat16,,{},1,16384,16000,,,,,,,,\n",
}  # fmt: skip
LEAST = {"computes": 0.1374, "fp8": 0.0687, "prompt": 0.5498, "moves": 0.9457, "weights": 0.1341}


@pytest.mark.parametrize("what", FAST)
def test_a_row_that_beats_its_data_sheet_is_refused(what: str, write: Write) -> None:
    """A tenth is left to clocks above the sheet's; half of the time names the row and twice the rate."""
    for share, is_refused in ((0.93, False), (0.88, True), (0.5, True)):
        row = FAST[what].format(share * LEAST[what])
        asked = [write("k-vllm.csv", HEAD + GEMM + row)], None
        sheet = {"name": "gpu", "facts": write("devices.csv", SHEETS)}
        if not is_refused:
            lolat.fit(*asked, **sheet)
            continue
        with pytest.raises(InputError, match=rf"line 3: .*, {100 / share:.0f}[.0-9]* % of"):
            lolat.fit(*asked, **sheet)


def test_what_a_cache_holds_may_beat_the_bandwidth_of_memory(write: Write) -> None:
    """134 MB in a fifth of the time that memory takes; no rate of FP8 is known of the other sheet."""
    row = "decode_attention,bfloat16,bfloat16,0.0134,,,,4,8192,32,8,128,,,\n"
    fp8 = FAST["fp8"].format(0.01)
    for name, own in (("gpu", row), ("bare", fp8)):
        made = lolat.fit(
            [write("k-vllm.csv", HEAD + own)], name=name, facts=write("devices.csv", SHEETS)
        )
        assert made.language_models.operations


SHEET_RATES = {
    "l40s": (733, None), "h100-sxm": (1978, None), "h200": (1978, None), "b200": (4500, 9000),
    "rtx-4090": (330.3, None), "l4": (242, None), "a100-sxm-80gb": (None, None), "a10g": (None, None),
    "rtx-a6000": (None, None),
}  # fmt: skip
"""TFLOPS of FP8 and FP4 without sparsity, as the makers' sheets say."""


@pytest.mark.parametrize("name", SHEET_RATES)
def test_a_known_gpu_is_made_of_its_name_alone(name: str) -> None:
    made = lolat.fit(name=name)
    assert made.predictors
    sheet = made.language_models.sheet
    for rate, wanted in zip((sheet.fp8_tflops, sheet.fp4_tflops), SHEET_RATES[name], strict=True):
        assert rate == (None if wanted is None else pytest.approx(wanted, rel=0.02))
    (row,) = made.llm("llama-3.1-8b", concurrency=1, tensor_parallel=1).served
    reads = (8.03e9 - 128256 * 4096) * 2 / (1e6 * sheet.bandwidth_gb_s)  # ms, all but the embedding
    assert reads < row.tpot_ms < 2 * reads


def test_a_gpu_without_bfloat16_knows_no_language_models() -> None:
    assert "llm" not in lolat.fit(name="t4").file.document


def test_a_file_that_is_given_twice_counts_once(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, but for the date; and all rows at once are as one file after the other."""

    def table(name: str, loads: range, model: str) -> Path:
        rows = "".join(f"{model},,500,100,{n},1,{14 + n / 5},,\n" for n in loads)
        return write(name, SERVED + rows)

    def fitted(*files: tuple[Path, ...]) -> str:
        out = tmp_path / "gpu.json"
        out.write_text(json.dumps(known_gpu.document()))
        for some in files:
            lolat.fit([out, *some], out)
        document = json.loads(out.read_text())
        assert document["llm"]["served"] == 20 + 8
        return json.dumps(document | {"created": None})

    write("large.json", json.dumps(known_gpu.LARGE))
    monkeypatch.chdir(tmp_path)
    first = table("first.csv", range(1, 5), "large.json")
    second = table("second.csv", range(5, 9), "qwen3-8b")
    once = fitted((first, second))
    assert fitted((first, second), (first, second)) == once
    with_path = table("first.csv", range(1, 5), str(tmp_path / "large.json"))
    assert fitted((with_path,), (second,), (second,)) == once
