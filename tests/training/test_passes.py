"""Both passes of a decoder's training, against PyTorch's own tensors and FLOPs, and known adapters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lolat.errors import InputError
from lolat.graph.modes import COMPILED, EAGER, GRAPH
from lolat.llm.config import read_decoder
from lolat.llm.decoder import LayerGroup
from lolat.llm.gpu import GPU
from lolat.llm.names import find_decoder
from lolat.optimizers import OPTIMIZERS
from lolat.readers.torch.named import import_package
from lolat.training.decoder import DecoderStep, tuned_recipe
from lolat.training.parallel import Parallel
from lolat.training.passes import FLASH_BACKWARD, DecoderPasses
from lolat.training.recipe import recipe_of
from lolat.training.tuning import Tuning
from tests.llm.known_gpu import EIGHT, LLAMA, SMALL, section
from tests.training.known import saved_by_pytorch

HEADS = 8
SIZES = {**LLAMA, "num_key_value_heads": HEADS}


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def built(sizes: Any = SIZES) -> Any:
    """The layers as transformers builds them, without the head."""
    pytest.importorskip("transformers")
    transformers = import_package("transformers")
    more = {"attn_implementation": "sdpa", "use_cache": False, "pad_token_id": 0, "eos_token_id": 0}
    settings = transformers.AutoConfig.for_model(**sizes, **more)
    return transformers.AutoModel.from_config(settings)


@pytest.fixture(scope="module", params=["llama", "phi3", "qwen3", "olmo2", "gemma3_text"])
def sizes(request: Any) -> Any:
    """Phi-3 has fused products; the last three normalize query and key, two of them in float32."""
    return {**SIZES, "model_type": request.param}


@pytest.fixture(scope="module")
def layer(torch: Any, sizes: Any) -> Any:
    return built(sizes).to(torch.bfloat16)


@pytest.mark.parametrize("learns", [True, False])
def test_a_layer_keeps_the_tensors_that_pytorch_keeps(
    torch: Any, sizes: Any, layer: Any, learns: bool
) -> None:
    """A frozen one too, that a gradient runs through."""
    layer.requires_grad_(learns)
    batch, length = 2, 96
    hidden = SIZES["hidden_size"]
    tokens = torch.randn(batch, length, hidden, dtype=torch.bfloat16, requires_grad=True)
    passes = DecoderPasses(read_decoder(sizes), length, batch)
    layers = SIZES["num_hidden_layers"]
    found = saved_by_pytorch(layer, inputs_embeds=tokens)
    norm = 4 * (1 + learns) * passes.tokens * hidden  # the last one, behind all layers
    expected = 2 * passes.tokens * passes.saved_elements(learns)[0] * layers + norm
    assert expected == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize(
    ("name", "frozen"), [("llama", 0), ("llama", 1), ("qwen3", 0), ("olmo2", 0), ("gemma3_text", 0)]
)
def test_autocast_keeps_float32_and_copies_of_what_a_gradient_runs_through(
    torch: Any, name: str, frozen: int
) -> None:
    """Of a model in float32 under autocast: activations, and copies of weights, none of frozen ones."""
    sizes = {**SIZES, "model_type": name, "tie_word_embeddings": False}
    model = built(sizes).requires_grad_(True)
    for part in [model.embed_tokens, *model.layers[:frozen]] if frozen else []:
        part.requires_grad_(False)
    batch, length, hidden = 2, 96, SIZES["hidden_size"]
    tokens = torch.randn(batch, length, hidden, requires_grad=not frozen)
    with torch.autocast("cpu", torch.bfloat16):
        found = saved_by_pytorch(model, inputs_embeds=tokens)
    tuning = Tuning(frozen=frozen)
    passes = DecoderPasses(read_decoder(sizes), length, batch, tuning=tuning)
    recipe = recipe_of("amp", OPTIMIZERS["sgd"])
    parts = DecoderStep(passes, recipe).memory(Parallel(), 2)[1]
    norm = 4 * 2 * passes.tokens * hidden  # the last one, behind all layers
    head = 2 * SIZES["vocab_size"] * hidden  # which a LlamaModel does not have
    expected = parts["activations"] + parts["copies in half precision"] - head + norm
    assert expected == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize(
    ("precision", "tune"), [("bf16", "lora:4:bf16"), ("bf16", "lora:4"), ("amp", "lora:4")]
)
def test_adapters_keep_what_those_of_peft_keep(
    torch: Any, sizes: Any, precision: str, tune: str
) -> None:
    """On a base in bfloat16: adapters in bfloat16, in float32 as PEFT makes them, and under autocast."""
    peft = pytest.importorskip("peft")
    batch, length, hidden, wide = 2, 96, SIZES["hidden_size"], not tune.endswith("bf16")
    how = peft.LoraConfig(r=4, target_modules="all-linear")
    model = peft.get_peft_model(built(sizes).to(torch.bfloat16), how, autocast_adapter_dtype=wide)
    tokens = torch.randn(batch, length, hidden, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "amp"):
        found = saved_by_pytorch(model, inputs_embeds=tokens)
    tuning = Tuning.named(tune)
    passes = DecoderPasses(read_decoder(sizes), length, batch, tuning=tuning)
    adapters = 4 * passes.decoder.layers * sum(n + k for n, k in passes.products)
    assert adapters == model.get_nb_trainable_parameters()[0]
    recipe = tuned_recipe(precision, OPTIMIZERS["sgd"], tuning)
    parts = DecoderStep(passes, recipe).memory(Parallel(), 2)[1]
    norm = 4 * passes.tokens * hidden  # the last one, behind all layers
    expected = parts["activations"] + parts.get("copies in half precision", 0) + norm
    assert expected == pytest.approx(found, rel=0.05)


def test_products_have_the_flops_that_pytorch_counts(torch: Any, sizes: Any, layer: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    batch, length = 2, 96
    tokens = torch.randn(
        batch, length, SIZES["hidden_size"], dtype=torch.bfloat16, requires_grad=True
    )
    layer.requires_grad_(True)
    with FlopCounterMode(display=False) as counter:
        layer(inputs_embeds=tokens).last_hidden_state.sum().backward()
    passes = DecoderPasses(read_decoder(sizes), length, batch)
    once = 2 * passes.tokens * sum(n * k for n, k in passes.products)
    found = counter.get_flop_counts()["Global"]
    products = sum(
        flops for op, flops in found.items() if op in (torch.ops.aten.mm, torch.ops.aten.addmm)
    )
    assert products == 3 * once * SIZES["num_hidden_layers"]


def test_flops_of_a_token_are_those_of_a_published_run() -> None:
    """llm-foundry: MPT 7B with 2,048 tokens at 4,641 tokens/s on an A100 has an MFU of 64.23 %."""
    sizes = {
        "d_model": 4096,
        "n_heads": 32,
        "n_layers": 32,
        "vocab_size": 50368,
        "max_seq_len": 2048,
    }
    passes = DecoderPasses(read_decoder({"model_type": "mpt", **sizes}), 2048, 6)
    assert 100 * 4641 * passes.flops() / 312e12 == pytest.approx(64.23, abs=0.01)


def test_flops_of_attention_end_at_the_window() -> None:
    """Mistral 7B v0.1 has 7,241,732,096 parameters, and a token attends to 4,096 of 16,384 tokens."""
    mistral = DecoderPasses(find_decoder("mistral-7b-v0.1"), 16384, 1)
    assert mistral.flops() == 6 * 7_241_732_096 + 12 * 32 * 4096 * 4096
    both = replace(EIGHT, kinds=(LayerGroup(number=16, window=128), LayerGroup(number=16)))
    ours, full = (DecoderPasses(d, 2048, 1).flops() for d in (both, EIGHT))
    assert full - ours == 12 * 16 * 4096 * (2048 - 128)


def test_checkpointing_runs_a_forward_pass_again_and_keeps_a_layers_input() -> None:
    gpu = GPU(section())
    plain, full = (DecoderPasses(EIGHT, 2048, 4, way) for way in ("none", "full"))
    (forward, backward), (_, again) = plain.parts_ms(gpu), full.parts_ms(gpu)
    assert again[1:-1] - backward[1:-1] == pytest.approx(forward[1:-1])
    assert full.saved_elements()[0] == EIGHT.hidden
    selective = DecoderPasses(EIGHT, 2048, 4, "selective")
    more = selective.parts_ms(gpu)[1][1] - backward[1]
    assert 0 < more < forward[1]
    assert full.saved_elements()[0] < selective.saved_elements()[0] < plain.saved_elements()[0]


def test_attention_of_long_sequences_takes_its_flops_in_both_passes() -> None:
    gpu = GPU(section())
    parts = {n: DecoderPasses(EIGHT, n, 1).parts_ms(gpu) for n in (32768, 65536)}
    forward, backward = (parts[65536][way][1] - 2 * parts[32768][way][1] for way in (0, 1))
    # All but attention doubles, or nearly so; attention has four times the FLOPs.
    assert backward / forward == pytest.approx(FLASH_BACKWARD * 1.27, rel=0.05)


@pytest.mark.parametrize(("tune", "first"), [("frozen:30", 31), ("frozen", -1)])
def test_frozen_layers_have_no_backward_pass(tune: str, first: int) -> None:
    passes = DecoderPasses(EIGHT, 2048, 1, tuning=Tuning.named(tune, 32))
    backward = passes.parts_ms(GPU(section()))[1]
    assert not backward[:first].any()
    assert (backward[first:] > 0).all()


def test_flops_of_frozen_layers_that_a_gradient_runs_through() -> None:
    """By hand, of Llama 3.1 8B with a tied head: 4 a parameter of the layers, 6 of the table; attention."""
    table, parameters = 128256 * 4096, 8_030_261_248 - 128256 * 4096
    tied = DecoderPasses(replace(EIGHT, tied=True), 2048, 1, tuning=Tuning.named("frozen", 32))
    expected = 4 * (parameters - table) + 6 * table + 12 * 32 * 4096 * 2048
    assert tied.flops() == pytest.approx(expected, rel=1e-4)


def test_a_head_that_is_the_embedding_has_a_gradient_through_frozen_layers() -> None:
    """Of the results alone: PyTorch computes no gradient of a frozen layer's weights."""
    gpu, shape = GPU(section()), (4096, 4)
    tied, whole = (
        DecoderPasses(replace(EIGHT, tied=True), *shape, tuning=Tuning.named(tune, 32)).parts_ms(
            gpu
        )
        for tune in ("frozen", "full")
    )
    weights = whole[1] - tied[1]
    assert weights[[0, -1]] == pytest.approx(0.0)
    # As long as the products of the forward pass, which have attention and element-wise work beside them.
    assert (0.5 * whole[0][1:-1] < weights[1:-1]).all()
    assert (weights[1:-1] < whole[0][1:-1]).all()


def test_fused_work_moves_less() -> None:
    gpu = GPU(section())
    eager, fused = (DecoderPasses(EIGHT, 4096, 2, launch=way) for way in (EAGER, COMPILED))
    assert fused.parts_ms(gpu)[0].sum() < eager.parts_ms(gpu)[0].sum()
    assert fused.saved_elements()[0] < eager.saved_elements()[0]


def test_a_graph_is_compiled_work_with_faster_launches() -> None:
    """torch.compile's reduce-overhead: the same kernels and tensors, launched at once."""
    gpu = GPU(section())
    fused, graph = (DecoderPasses(EIGHT, 4096, 2, launch=way) for way in (COMPILED, GRAPH))
    for mine, its in zip(graph.parts_ms(gpu), fused.parts_ms(gpu), strict=True):
        assert (mine <= its).all()
        assert mine[-1] == its[-1]  # the head waits for no launch
    assert graph.saved_elements() == fused.saved_elements()


def test_a_small_decoder_waits_for_the_host() -> None:
    gpu = GPU(section())
    one, two = (DecoderPasses(SMALL, 64, n).parts_ms(gpu)[0][1] for n in (1, 2))
    assert one == two
    assert DecoderPasses(SMALL, 64, 1, launch="graph").parts_ms(gpu)[0][1] < one


@pytest.mark.parametrize("tune", ["lora", "lora:0", "lora:x", "half", "frozen:-1", "frozen:"])
def test_a_tuning_of_another_form_is_refused(tune: str) -> None:
    with pytest.raises(InputError, match="expected full, lora:RANK"):
        Tuning.named(tune, 32)
