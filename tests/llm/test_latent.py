"""Latent attention, gated delta networks and attention data parallel, against counts by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from lolat.api.loading import load
from lolat.api.model import Model
from lolat.errors import InputError
from lolat.llm import calibration
from lolat.llm.calibration import served_by
from lolat.llm.decoder import WEIGHT_BYTES
from lolat.llm.fit import complete, section_from
from lolat.llm.gpu import GPU, ServedRow
from lolat.llm.load import Load
from lolat.llm.names import find_decoder
from lolat.llm.operation_tables import read_operations
from lolat.llm.refusal import no_room
from lolat.llm.served_rows import read_served
from lolat.llm.server import Server
from lolat.llm.steps import (
    Deployment,
    deployment_of,
    each_ms,
    operations_of,
    requests_that_fit,
    step_parts,
)  # fmt: skip
from tests.llm.conftest import Write
from tests.llm.known_gpu import (
    DEEPSEEK,
    LATENT,
    LINEAR,
    LLAMA,
    OVERHEADS,
    SHEET,
    SMALL,
    SPECS,
    document,
    kernel_ms,
    section,
)  # fmt: skip
from tests.llm.served_rows import SERVED
from tests.llm.test_steps import Recorder, together

B, F = "bfloat16", "fp8"
KNOWN = Model(document())


# ---- Published models


def test_deepseek_v3_is_as_its_report_says() -> None:
    """DeepSeek-AI 2024: 671 B parameters, 37 B active; 512 + 64 elements of cache a token and layer."""
    decoder = find_decoder("deepseek-v3")
    assert decoder.parameters == pytest.approx(671e9, rel=1e-3)
    embedding = decoder.parameters_by_part["embedding"]
    assert decoder.active_parameters - embedding == pytest.approx(37e9, rel=0.015)
    assert decoder.cache_bytes(1000, F) == 1000 * 61 * 576
    assert [(layer.number, layer.experts) for layer in decoder.kinds] == [(3, False), (58, True)]
    assert find_decoder("deepseek-ai/DeepSeek-R1-0528").parameters == decoder.parameters


@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [
        ("kimi-k2", 1.04e12, 32e9),
        ("qwen3.5-397b-a17b", 397e9, 17e9),
        ("qwen3-next-80b-a3b", 80e9, 3e9),
    ],
)
def test_other_models_are_as_large_as_their_names(
    name: str, parameters: float, active: float
) -> None:
    decoder = find_decoder(name)
    assert decoder.parameters == pytest.approx(parameters, rel=0.02)
    tables = decoder.parameters_by_part["embedding"] + decoder.parameters_by_part["head"]
    assert decoder.active_parameters - tables <= active * 1.1
    assert decoder.active_parameters >= active


def test_kimi_keeps_all_but_its_experts_in_bfloat16() -> None:
    """Its quantization ignores attention, shared experts and the first layer's feed-forward."""
    decoder = find_decoder("moonshotai/Kimi-K2.5")
    assert (decoder.expert_dtype, decoder.towers) == ("int4_wo", ("vision_config",))
    # Moonshot's files are 595 GB; a scale of two bytes for each 32 elements.
    assert decoder.weight_bytes() == pytest.approx(594e9, rel=0.01)
    assert all(layer.unquantized == {"attention", "feed_forward"} for layer in decoder.kinds)


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5-FP8"])
def test_sparse_attention_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match="sparse attention") as caught:
        find_decoder(name)
    assert caught.value.code == "unknown-decoder"


# ---- Kernels in their limits


def test_decode_moves_576_elements_and_multiplies_1088_a_head() -> None:
    """Each cached token: 576 elements once for all heads; 576 + 512 multiply-accumulates for each head."""
    rows = {"batch": 1024, "length": 8192, "heads": np.array([16, 128])}
    few = {"io": 1e-9, "item": 1e-9, "merge": 1e-9, "cache": 1e-9, "lane": 1e9}
    moving = kernel_ms("mla_decode", f"{B}/{F}", rows, rate=1e9, bandwidth=1.0, **few)
    assert moving == pytest.approx(1024 * 8192 * 576 / SPECS.bandwidth, rel=1e-3)
    math = kernel_ms("mla_decode", f"{B}/{F}", rows, rate=1.0, bandwidth=1e9, **few)
    wanted = 1024 * 8192 * np.array([16, 128]) * 2 * (576 + 512) / SPECS.rates[F]
    assert math == pytest.approx(wanted, rel=1e-3)


def test_a_module_is_its_attention_and_its_projections() -> None:
    """In a step the projections are products; alone they are part of the module's time."""
    rows = {"batch": np.array([1, 512]), "length": 4096, "heads": 16}
    alone, inside = (
        kernel_ms("mla_decode_module", f"{B}/{B}", rows, alone=a) for a in (True, False)
    )
    kernel = kernel_ms("mla_decode", f"{B}/{B}", rows, alone=False)
    assert inside == pytest.approx(kernel)
    weights = 7168 * (1536 + 576) + 16 * (1536 * 192 + 128 * 7168) + 16 * 512 * 256
    assert np.all(alone - kernel > 2 * weights / SPECS.bandwidth)


@pytest.mark.parametrize("kept", [0, 1])
def test_what_each_gpu_holds_whole_is_in_its_layers_data_type(kept: int) -> None:
    """Attention of one group of layers stays bfloat16, two bytes more or less an element by hand."""
    layers = [replace(one, unquantized=frozenset()) for one in LATENT.kinds]
    quantized = replace(LATENT, kinds=tuple(layers))
    layers[kept] = replace(layers[kept], unquantized=frozenset({"attention"}))
    partly = replace(LATENT, kinds=tuple(layers))
    whole, split = 512 * (128 + 64 + 16), 8 * (48 * 128 + (32 + 48) * 64 + 48 * 512)
    for parts in (1, 4):
        every, some = (Deployment(one, parts, 1, F, F, B) for one in (quantized, partly))
        more = layers[kept].number * (whole + split / parts) * (2.0 - WEIGHT_BYTES[F])
        assert some.weight_bytes - every.weight_bytes == pytest.approx(more, abs=1)


def test_a_state_is_read_and_written_for_each_token() -> None:
    rows = {"batch": 1024, "length": 1, "k_heads": 16, "k_dim": 128, "v_heads": 64, "v_dim": 128}
    ms = kernel_ms("delta_rule_generation", B, rows, bytes=1.0, chain=1e-9, item=1e-12)
    states = 1024 * 64 * 128 * 128 * 4
    assert ms == pytest.approx(2 * states / SPECS.bandwidth, rel=0.02)


# ---- Steps by hand


@pytest.mark.parametrize("parallel", [1, 4])
def test_products_of_a_small_deepseek(parallel: int) -> None:
    """Into the latent spaces each GPU has all; heads of 32 + 16 and values of 48 are split."""
    p = parallel
    made = Deployment(LATENT, p, 1, B, B, B)
    assert together(made.products) == {
        (B, 128 + 64 + 16, 512): 3, (B, 8 / p * 48, 128): 3, (B, 512, 8 / p * 48): 3,
        (B, 2 * 1024 / p, 512): 1, (B, 512, 1024 / p): 1, (B, 2 * 256 / p, 512): 2, (B, 512, 256 / p): 2,
        (B, 16, 512): 2,
    }  # fmt: skip
    replicated = 3 * 512 * (128 + 64 + 16) * 2
    assert made.weight_bytes == (LATENT.weight_bytes() - replicated) / p + replicated
    assert made.cache_bytes(100) == 100 * 3 * (64 + 16) * 2  # on every GPU


def test_a_step_of_latent_attention_asks_for_its_operations() -> None:
    gpu = Recorder("mla_decode", "mla_prefill", "mla_bmm_pre", "mla_bmm_post")
    parts = step_parts(gpu, Deployment(LATENT, 2, 1, B, B, F), 16, 4, 960.0)
    asked = {row[2:] for row in gpu.asked if row[0] == "mla_decode"}
    assert {row[2] for row in asked} == {4.0}
    assert {row[1] for row in asked} == {max(20.0 * i, 1.0) for i in range(49)}
    assert {row[1:] for row in gpu.asked if row[0] == "mla_bmm_pre"} == {
        (B, n, 4.0) for n in (1, 2, 3, 4)
    }
    # Keys and values of a prompt: 4 heads of 32 + 48, from vectors of 64.
    assert ("gemm", B, 960.0, 4.0 * 80, 64.0) in gpu.asked
    assert np.all(parts.decode == 3 * 3)
    assert np.all(parts.prefill == 3)


def test_a_gated_delta_network_keeps_a_state_whatever_the_context() -> None:
    """Three layers of four: 8 states of 32 x 64 in single precision, and 3 inputs of the convolution."""
    state = 8 * 32 * 64 * 4 + 3 * (2 * 4 * 32 + 8 * 64) * 2
    for tokens, parts in ((1, 1), (1000, 1), (1000, 2)):
        each = 2 * (2 // parts) * 32 * 2 * tokens
        assert LINEAR.cache_bytes(tokens, B, parts) == each + 3 * state / parts
    gpu = Recorder("delta_rule_generation", "delta_rule_context", "decode_attention")
    parts = step_parts(gpu, Deployment(LINEAR, 2, 1, B, B, B), 16, 4, 960.0)
    asked = {row[2:] for row in gpu.asked if row[0] == "delta_rule_generation"}
    assert asked == {(float(n), 1.0, 2.0, 32.0, 4.0, 64.0) for n in (1, 2, 3, 4)}
    assert np.all(parts.decode == 3 + 1)
    assert np.all(parts.prefill == 3)
    # Queries, keys and values, their gate; the gates of heads; back. Attention with its own gate.
    made = together(Deployment(LINEAR, 2, 1, B, B, B).products)
    assert made[B, (2 * 4 * 32 + 2 * 8 * 64) / 2, 512] == 3
    assert made[B, 8, 512] == 3
    assert made[B, (2 * 8 + 2 * 2) * 32 / 2, 512] == 1


# ---- Attention data parallel


def test_groups_share_the_experts_and_nothing_else() -> None:
    """Two groups of two GPUs: experts see the tokens of both; an all-reduce for attention alone."""
    gpu = Recorder("moe", "all_reduce")
    made = deployment_of(section(), LATENT, 2, 4, attention_data_parallel=2)
    assert made.gpus == 4
    parts = step_parts(gpu, made, 8, 4, 960.0)
    assert {row[2:] for row in gpu.asked if row[0] == "moe"} == {
        (2.0 * m, 512.0, 256.0, 16.0, 4.0, 1.0, 4.0, 1.2) for m in range(1, 9)
    }
    reduced = {row[2:] for row in gpu.asked if row[0] == "all_reduce"}
    share = 1 - (3 / 4) ** 4  # of the GPUs that four experts of a token are on
    within = {(2.0, 512.0 * m) for m in range(1, 9)}
    assert reduced == within | {(4.0, 2 * m * 512.0 * share) for m in range(1, 9)}
    assert np.all(parts.tokens[:, 4] == 3 + 1 + 2)  # attention; the first layer's; experts
    whole, experts = LATENT.weight_bytes(), 2 * 16 * 3 * 512 * 256 * 2
    replicated = 3 * 512 * (128 + 64 + 16) * 2
    assert made.weight_bytes == (whole - experts) / 2 + replicated / 2 + experts / 4


def test_an_answer_counts_the_requests_of_all_groups() -> None:
    """8 requests on two groups of one GPU: each has 4, and the GPUs are two."""
    two = KNOWN.llm(DEEPSEEK, concurrency=8, tensor_parallel=1, attention_data_parallel=2).served[0]
    assert (two.gpus, two.concurrency, two.attention_data_parallel) == (2, 8, 2)
    known = section()
    made = deployment_of(known, LATENT, 1, 1, attention_data_parallel=2)
    each = Server(GPU(known), made, 1536.0).times(Load(1024, 512, 4.0), OVERHEADS)
    assert two.tpot_ms == pytest.approx(each.mean_tpot_ms)
    assert two.requests_per_s == pytest.approx(2 * each.requests_per_s)
    fit = requests_that_fit(known, made, 1536)
    assert two.largest_concurrency == 2 * fit


@pytest.mark.parametrize(
    ("config", "asked", "given"),
    [
        (DEEPSEEK, {"attention_data_parallel": 2, "expert_parallel": 8, "tensor_parallel": 2}, "4 GPUs"),
        (DEEPSEEK, {"attention_data_parallel": 8, "tensor_parallel": 8, "dtype": "fp8"},
         "8 x 8 = 64 GPUs: tensor_parallel is of each group; for 8, as .* give tensor_parallel 1$"),
    ],
)  # fmt: skip
def test_a_layout_that_no_framework_starts(config: Any, asked: dict[str, int], given: str) -> None:
    with pytest.raises(InputError, match=given):
        KNOWN.llm(config, concurrency=4, **asked)


# ---- Tables and fits


OPS = "op,dtype,kv_dtype,latency_ms,batch,length,heads,tokens\n"
GDN = "op,dtype,latency_ms,kernel,phase,batch,length,k_heads,k_dim,v_heads,v_dim\n"


def test_tables_of_latent_and_linear_attention(write: Write) -> None:
    mla = OPS + "mla_decode,bfloat16,fp8,0.01,4,256,8,\nmla_bmm_pre,fp8,,0.004,,,8,16\n"
    found = read_operations(write("mla.csv", mla))
    assert found["mla_decode"]["bfloat16/fp8"][0]["length"].tolist() == [256]
    assert found["mla_bmm_pre"]["fp8"][0]["tokens"].tolist() == [16]
    row = "gated_delta,bfloat16,0.02,causal_conv1d_fn,context,1,64,2,128,8,128\n"
    more = row.replace("causal_conv1d_fn,context,1,64", "fused_recurrent,generation,4,1")
    assert {*read_operations(write("gdn.csv", GDN + row + more))} == {
        "delta_conv_context", "delta_rule_generation"
    }  # fmt: skip
    with pytest.raises(InputError, match="phase"):
        read_operations(write("wrong.csv", GDN + row.replace("context", "prompt")))
    with pytest.raises(InputError, match="gated_delta"):
        read_operations(write("wrong.csv", mla.replace("mla_decode", "mla_encode")))


def test_a_module_serves_where_attention_was_not_timed_alone(write: Write) -> None:
    kernel = "mla_decode,bfloat16,fp8,0.01,4,256,8,\n"
    modules = "".join(
        f"mla_decode_module,{dtype},fp8,0.05,4,256,8,\n" for dtype in (B, "fp8_block", F)
    )
    alone = section_from(SHEET, "vllm", read_operations(write("one.csv", OPS + modules)), {})
    assert {*alone.operations["mla_decode_module"]} == {"fp8_block/fp8"}
    gpu = GPU(alone)
    assert gpu.operation("mla_decode", F) is alone.operations["mla_decode_module"]["fp8_block/fp8"]
    assert float(gpu.ms("mla_decode", F, 4, 256, 8)) > 0
    both = section_from(
        SHEET, "vllm", read_operations(write("two.csv", OPS + modules + kernel)), {}
    )
    assert "mla_decode_module" not in both.operations
    assert GPU(both).operation("mla_decode", F).rows == 1


def rows_of(name: str, config: Any, times: float) -> list[ServedRow]:
    """Rows under some loads, whose tokens take `times` as long as predicted."""
    found = KNOWN.llm(config, concurrency=(1, 4, 16, 64), tensor_parallel=1).served
    every = [(row.concurrency, row.tpot_ms or 0.0, row.ttft_ms or 0.0) for row in found]
    return [ServedRow(name, 1024, 512, n, times * tpot, ttft) for n, tpot, ttft in every]


def test_latent_attention_has_overheads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fit to dense rows is the same with rows of DeepSeek beside them, whatever these say."""
    decoders = {"dense": SMALL, "latent": LATENT}
    monkeypatch.setattr(calibration, "find_decoder", decoders.__getitem__)
    dense, latent = rows_of("dense", LLAMA, 1.2), rows_of("latent", DEEPSEEK, 1.6)
    alone, _ = served_by(section(), dense)
    groups = [replace(row, attention_data_parallel=2, tpot_ms=9.9) for row in dense]
    both, words = served_by(section(), dense + latent + groups)
    assert both.overheads == alone.overheads
    assert both.of("dense") == both
    assert "latent attention: 4 serving measurements" in words
    own = both.of("latent")
    assert own.kinds == ("latent",)
    tpot = []
    for known in (both, own):
        server = Server(GPU(known), deployment_of(known, LATENT), 1536.0)
        tpot.append(server.times(Load(1024, 512, 4.0), known.overheads).mean_tpot_ms)
    assert tpot[1] > 1.2 * tpot[0]
    # A GPU that served none has these, as ones that were never seen.
    other = complete(section(), {"other": both})
    assert other.of("latent").overheads == own.overheads
    assert other.of("latent").served == 0


def test_a_server_that_looks_for_requests_now_and_then() -> None:
    """Ten steps more to the first token, and nothing else; requests keep Little's law."""
    known = section()
    server = Server(GPU(known), deployment_of(known, LATENT), 1536.0)
    later = msgspec.structs.replace(OVERHEADS, poll_steps=10.0)
    soon, late = (server.times(Load(1024, 512, 8.0), one) for one in (OVERHEADS, later))
    step = float(soon.step @ each_ms(OVERHEADS))
    assert late.ttft_ms.mean() - soon.ttft_ms.mean() == pytest.approx(10 * step)
    assert late.mean_tpot_ms == soon.mean_tpot_ms
    assert late.requests_per_s * late.e2e_ms.mean() == pytest.approx(8e3)


def test_served_rows_of_groups(write: Write) -> None:
    text = SERVED.replace("\n", ",batch_size,attention_data_parallel,expert_parallel\n")
    row = "deepseek-v3,,1024,1024,256,1,20,900,nvfp4,64,4,4\n"
    [one] = read_served(write("s.csv", text + row))
    assert one.deployment == (1, 4, 4, "nvfp4", "")
    assert (Load.of(one).concurrency, one.concurrency) == (64, 256)
    assert read_served(write("s.csv", text + row.replace("64,4,4", "32,4,4"))) == []


def test_data_types_as_published() -> None:
    """FP8 is in blocks for DeepSeek and Qwen; latent attention stays bfloat16 in NVFP4."""
    sheet = msgspec.structs.replace(SHEET, fp4_tflops=4000)
    known = section(sheet=sheet)
    for decoder in (LATENT, LINEAR):
        assert deployment_of(known, decoder, dtype="fp8").dtype == "fp8_block"
    made = deployment_of(known, LATENT, dtype="nvfp4")
    assert {p.dtype for p in made.products if p.k in (128, 384)} == {B}
    assert made.expert_dtype == "nvfp4"
    asked = {*operations_of(GPU(known), deployment_of(known, LATENT, kv_dtype=F))}
    assert {name for name, _ in asked} >= {
        "mla_decode",
        "mla_prefill",
        "mla_bmm_pre",
        "mla_bmm_post",
    }


def test_what_does_not_fit_is_told_by_its_smallest_layout() -> None:
    """671 G parameters of a byte each, a few of two; groups of attention would copy those of attention."""
    no = str(no_room(load("h100-vllm").llm("deepseek-r1", request_rate=2)))
    (gib,) = re.findall(r"does not fit; its weights take (\d+) GiB on 8 GPUs", no)
    assert 1.0 < float(gib) * 2**30 / 671e9 < 1.03
    assert "data parallel" not in no


@pytest.mark.slow
def test_nvfp4_is_named_where_it_is_faster_than_fp8() -> None:
    """By two answers; not if FP8 was asked for."""
    b200, asked = load("b200-vllm"), {"request_rate": 2, "tensor_parallel": 8}
    block, four = (b200.llm("deepseek-r1", **asked, dtype=t) for t in ("", "nvfp4"))
    assert four.chosen.tpot_ms < 0.9 * block.chosen.tpot_ms
    (said,) = (one for one in block.warnings if one.startswith("another checkpoint is faster"))
    ms = [float(one) for one in re.findall(r"([\d.]+) ms", said)]
    assert ms == pytest.approx([four.chosen.tpot_ms, block.chosen.tpot_ms], rel=0.01)
    given = b200.llm("deepseek-r1", **asked, dtype="fp8_block")
    assert not any("is faster" in one for one in given.warnings)
