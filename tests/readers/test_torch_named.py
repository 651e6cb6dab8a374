"""timm's, torchvision's and transformers' networks by name, without weights."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import lolat
from lolat.errors import InputError, MissingPackageError, NetworkError
from lolat.graph.analysis import analyze
from lolat.graph.counts import count
from lolat.graph.edits import as_trained
from lolat.graph.weights import parameters
from lolat.readers import open_network, read
from lolat.readers.size import Size
from lolat.readers.torch import named
from lolat.readers.torch.named import import_package, load_torchvision
from tests.processes import python

needs_torchvision = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="could not import 'torchvision'"
)
BERT = {
    "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 256, "vocab_size": 100, "max_position_embeddings": 128,
}  # fmt: skip
GPT = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4,
       "n_positions": 128, "vocab_size": 100}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 64,
}  # fmt: skip
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
                   "architectures": ["MixtralForCausalLM"]}  # fmt: skip
T5 = {
    "model_type": "t5", "d_model": 64, "num_layers": 2, "num_heads": 4, "d_ff": 96, "d_kv": 16,
    "vocab_size": 100, "architectures": ["T5ForConditionalGeneration"],
}  # fmt: skip
WHISPER = {
    "model_type": "whisper", "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96, "vocab_size": 100, "max_source_positions": 50, "max_target_positions": 20,
    "pad_token_id": 1, "architectures": ["WhisperForConditionalGeneration"],
}  # fmt: skip
VIT = {"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
       "intermediate_size": 96, "image_size": 32}  # fmt: skip
TOWER = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
CLIP = {
    "model_type": "clip", "text_config": TOWER | {"vocab_size": 100, "max_position_embeddings": 16},
    "vision_config": TOWER | {"image_size": 32, "patch_size": 16}, "projection_dim": 32,
}  # fmt: skip
VIDEO = TOWER | {"model_type": "videomae", "image_size": 32, "num_frames": 4}
PAIR = {"input_ids": (1, 16), "pixel_values": (1, 3, 32, 32)}
INPUTS_OF = {
    "CLIPModel": PAIR, "BlipForConditionalGeneration": PAIR,
    "VideoMAEForVideoClassification": {"pixel_values": (1, 4, 3, 32, 32)},
}  # fmt: skip


def config(folder: Path, of: dict[str, Any] | str) -> str:
    path = folder / "config.json"
    path.write_text(of if isinstance(of, str) else json.dumps(of))
    return f"transformers:{path}"


class TestTransformers:
    @pytest.fixture(autouse=True)
    def _package(self) -> None:
        pytest.importorskip("transformers")

    def test_an_encoder_by_hand(self, tmp_path: Path) -> None:
        """Two layers of 4 projections, 2 products of attention, 2 dense; a pooler and two classes.

        Its length is the one that it is made for.
        """
        graph = read(config(tmp_path, BERT) + "?eager")
        assert graph.tensors[graph.inputs[0]].shape == (1, 128)
        assert count(graph).total(1).flops == self.layers_macs(128) + 64 * 64 + 2 * 64
        assert count(graph).total(3).flops == 3 * count(graph).total(1).flops
        kinds = [o.kind for o in graph.operations]
        assert (kinds.count("softmax"), kinds.count("gelu"), kinds.count("layer_norm")) == (2, 2, 5)

    def layers_macs(self, s: int, d: int = 64) -> int:
        return 2 * (4 * s * d * d + 2 * s * s * d + 2 * s * d * 256)

    @pytest.mark.parametrize(
        ("of", "head", "more"),
        [
            (GPT, "", 0),
            (BERT, "?AutoModelForMaskedLM", 16 * 64 * 64),
            (BERT | {"architectures": ["BertForMaskedLM"]}, "?eager", 16 * 64 * 64),
        ],
    )
    def test_a_decoder_has_its_language_head_and_others_may(
        self, tmp_path: Path, of: Any, head: str, more: int
    ) -> None:
        found = count(read(config(tmp_path, of) + head, 16)).total(1).flops
        assert found == self.layers_macs(16) + more + 16 * 64 * 100

    @pytest.mark.parametrize(
        ("of", "name"),
        [
            (CLIP, "CLIPModel"),
            (CLIP | {"model_type": "blip"}, "BlipForConditionalGeneration"),
            (VIDEO, "VideoMAEForVideoClassification"),
        ],
    )
    def test_images_and_texts_together_and_frames(
        self, tmp_path: Path, of: dict[str, Any], name: str
    ) -> None:
        """PyTorch counts a call of its own."""
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        load_torchvision()
        import transformers

        graph = read(config(tmp_path, of | {"architectures": [name]}) + "?eager")
        inputs = dict(INPUTS_OF[name])
        assert [graph.tensors[t].shape for t in graph.inputs] == [*inputs.values()]
        settings = transformers.AutoConfig.for_model(**of)
        settings._attn_implementation = "eager"
        made = getattr(transformers, name)(settings).eval()
        types = {"input_ids": torch.int64}
        given = {n: torch.ones(s, dtype=types.get(n)) for n, s in inputs.items()}
        with FlopCounterMode(display=False) as flops, torch.no_grad():
            made(**given)
        assert count(graph).total(1).flops == flops.get_total_flops() / 2
        assert "alone" not in " ".join(graph.warnings)

    @pytest.mark.parametrize(
        ("name", "of", "shape"),
        [
            ("ASTForAudioClassification", {"max_length": 64, "num_mel_bins": 32}, (1, 64, 32)),
            ("PatchTSTForPrediction", {"context_length": 64, "num_input_channels": 3}, (1, 64, 3)),
            (
                "XLNetLMHeadModel",
                {"n_layer": 1, "d_model": 64, "n_head": 4, "vocab_size": 100},
                (1, 512),
            ),
        ],
    )
    def test_sounds_series_and_texts_without_a_limit(
        self, tmp_path: Path, name: str, of: dict[str, Any], shape: tuple[int, ...]
    ) -> None:
        """PyTorch counts a call of its own."""
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        load_torchvision()
        import transformers

        kind = getattr(transformers, name)
        settings = kind.config_class(num_hidden_layers=1, **of)
        text = json.dumps(settings.to_dict() | {"architectures": [name]}, default=str)
        graph = read(config(tmp_path, text) + "?eager")
        assert [graph.tensors[t].shape for t in graph.inputs] == [shape]
        settings._attn_implementation = "eager"
        given = torch.ones(shape, dtype=torch.int64 if len(shape) == 2 else torch.float32)
        with FlopCounterMode(display=False) as flops, torch.no_grad():
            kind(settings).eval()(given)
        assert count(graph).total(1).flops == flops.get_total_flops() / 2

    def test_a_missing_package_of_kernels_is_told(self, tmp_path: Path) -> None:
        """Nothing of the kind stands in a BERT. A file of transformers may hold Infinity."""
        of = {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 100,
              "state_size": 4, "time_step_limit": [0.0, float("inf")]}  # fmt: skip
        words = "without causal_conv1d and mamba_ssm"
        assert "Infinity" in json.dumps(of)
        assert importlib.util.find_spec("mamba_ssm") is None
        found = [" ".join(read(config(tmp_path, one), 8).warnings) for one in (of, BERT)]
        assert [words in one for one in found] == [True, False]

    def test_another_image_size_makes_other_position_embeddings(self, tmp_path: Path) -> None:
        """YOLOS' file has a list of sides; a patch more is a row of 64 more in each of its tables."""
        of = TOWER | {"model_type": "yolos", "image_size": [32, 48], "patch_size": 16,
                      "num_detection_tokens": 5, "architectures": ["YolosForObjectDetection"]}  # fmt: skip
        spec = config(tmp_path, of)
        own, other = read(spec), read(spec, 64)
        assert "position embeddings" not in " ".join(own.warnings)
        assert "not for 32x48" in " ".join(other.warnings)
        tables = 1 + (TOWER["num_hidden_layers"] - 1)
        assert parameters(other) - parameters(own) == tables * (16 - 6) * 64

    def test_more_tokens_than_positions_are_told(self, tmp_path: Path) -> None:
        """The tables of BERT and GPT-2 have 128 rows; Llama's rotary positions have none."""
        import torch

        for network in (BERT, GPT):
            with pytest.raises(NetworkError, match="expected sequence_length at most 128"):
                read(config(tmp_path, network), 129)
        module = open_network(config(tmp_path, LLAMA)).model
        for steps in (64, 65):
            remarks = lolat.read((module, torch.zeros(1, steps, dtype=torch.int64))).warnings
            told = sum("longer than the 64 positions" in text for text in remarks)
            assert told == (steps > 64)

    @pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "mpnet", "esm"])
    def test_positions_behind_the_one_of_padding_are_fewer(self, tmp_path: Path, kind: str) -> None:
        """transformers numbers the tokens from 2 on, and its own run fails at one more than 32."""
        import torch
        import transformers

        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        sizes |= {"intermediate_size": 32, "vocab_size": 40, "max_position_embeddings": 34}
        settings = transformers.AutoConfig.for_model(kind, pad_token_id=1, **sizes)
        made = transformers.AutoModel.from_config(settings).eval()
        made(torch.zeros(1, 32, dtype=torch.int64))
        with pytest.raises((IndexError, RuntimeError)):
            made(torch.zeros(1, 33, dtype=torch.int64))
        file = config(tmp_path, settings.to_dict() | {"architectures": [type(made).__name__]})
        assert read(file).input_sizes[0] == (32,)
        assert read(file, 32).warnings == read(file).warnings
        for length in (33, 34, 35):
            with pytest.raises(NetworkError, match="expected sequence_length at most 32"):
                read(file, length)

    def test_an_adapter_beside_it_is_not_left_out_in_silence(self, tmp_path: Path) -> None:
        file = config(tmp_path, BERT)
        (tmp_path / "adapter_config.json").write_text("{}")
        with pytest.raises(
            NetworkError, match=r"adapter_config.*expected transformers:.*config\.json"
        ):
            read(f"transformers:{tmp_path}", 16)
        assert read(file, 16).operations

    @pytest.mark.parametrize(
        "text",
        ["no json", "[1]", '{"hidden_size": 3}', '{"model_type": "dragon"}',
         json.dumps(BERT | {"num_attention_heads": 5})],
    )  # fmt: skip
    def test_what_is_no_configuration(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(InputError):
            read(config(tmp_path, text))

    @pytest.mark.parametrize(
        ("of", "size", "words"),
        [
            (
                LLAMA,
                None,
                "LlamaForCausalLM on 64 tokens, weights in float32, attention sdpa, keys",
            ),
            (
                LLAMA | {"use_cache": False},
                9,
                "LlamaForCausalLM on 9 tokens, weights in float32, attention sdpa",
            ),
            (
                LLAMA | {"attn_implementation": "eager"},
                9,
                "on 9 tokens, weights in float32, attention eager",
            ),
            (VIT, None, "ViTForImageClassification on 3x32x32, weights in float32, attention sdpa"),
            (VIT, 64, "ViTForImageClassification on 3x64x64"),
            (VIT | {"dtype": "bfloat16"}, None, "weights in bfloat16, attention sdpa"),
        ],
    )
    def test_it_is_the_network_that_transformers_makes(
        self, tmp_path: Path, of: dict[str, Any], size: int | None, words: str
    ) -> None:
        """Operation by operation; and a remark says what was taken."""
        import torch

        load_torchvision()
        import transformers

        graph = read(config(tmp_path, of), size)
        assert graph.name == tmp_path.name, "a config.json has the name of its folder"
        settings = transformers.AutoConfig.for_model(**of)
        made: Any
        if of["model_type"] == "vit":
            settings.image_size = size or 32
            made = transformers.ViTForImageClassification(settings)
            made = (
                made.to(settings.dtype),
                torch.zeros(1, 3, *2 * [size or 32], dtype=settings.dtype),
            )
        else:
            ids = torch.zeros(1, size or 64, dtype=torch.int64)
            made = transformers.LlamaForCausalLM(settings), {"input_ids": ids}
        same = read(made)
        assert (graph.operations, graph.tensors) == (same.operations, same.tensors)
        changes = lolat.load("epyc-2t-torch").explain(graph).counterfactuals
        assert {c.kind for c in changes} <= {"drop", "runtime", "width"}, "what a transformer has"
        assert words in graph.warnings[-1]
        assert ("keys" in graph.warnings[-1]) == ("keys" in words or "eager" in words)

    @pytest.mark.parametrize(
        ("of", "words"),
        [
            # Tables of positions, and norms that transformers computes step by step, are no operations.
            (BERT | {"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM on 128 tokens"),
            (MIXTRAL, "MixtralForCausalLM on 64 tokens"),
            (T5, "T5ForConditionalGeneration on 512 tokens and 512 tokens"),
            (WHISPER, "WhisperForConditionalGeneration on 80x100 and 20 tokens"),
        ],
    )  # fmt: skip
    def test_the_class_that_the_file_names_with_its_parameters(
        self, tmp_path: Path, of: dict[str, Any], words: str
    ) -> None:
        load_torchvision()
        import transformers

        graph = read(config(tmp_path, of))
        assert any(words in text for text in graph.warnings)
        assert not any("pretraining is missing" in text for text in graph.warnings)
        made = getattr(transformers, of["architectures"][0])
        number = sum(p.numel() for p in made(transformers.AutoConfig.for_model(**of)).parameters())
        assert parameters(graph) == number
        assert not any("no formula" in text for text in graph.warnings)
        assert read(f"transformers:{tmp_path}").operations == graph.operations  # the folder

    def test_a_file_without_architectures_says_that_a_pretraining_head_is_missing(
        self, tmp_path: Path
    ) -> None:
        """Only where the head was assumed: with `?HEAD` it was asked for."""
        for head, is_told in (("", True), ("?AutoModelForPreTraining", False)):
            warnings = read(config(tmp_path, BERT) + head).warnings
            assert any("pretraining is missing" in text for text in warnings) is is_told

    def test_experts_by_hand(self, tmp_path: Path) -> None:
        """Two of four experts for each token, with three products, in two layers; the rest as in Llama."""
        small, llama = (read(config(tmp_path, of), 16) for of in (MIXTRAL, LLAMA))
        experts, dense = 16 * (2 * 3 * 64 * 96 + 64 * 4), 16 * 3 * 64 * 96
        counts = [count(graph).total(1) for graph in (small, llama)]
        assert counts[0].flops - counts[1].flops == 2 * (experts - dense)
        assert counts[0].weights - counts[1].weights == 2 * (4 * 3 * 64 * 96 + 64 * 4 - 3 * 64 * 96)

    @pytest.mark.parametrize("device", ["epyc-2t-torch", "a100"])
    def test_experts_that_few_tokens_do_not_reach_are_told(
        self, tmp_path: Path, device: str
    ) -> None:
        """Of 4 experts a token has 2; 16 rows, 8 tokens at once, are four for each."""
        graph, model = read(config(tmp_path, MIXTRAL), 1), lolat.load(device)
        few, seven, eight = (model.predict(graph, batch_size=n) for n in (1, 7, 8))
        [told] = [text for text in few.warnings if "mixture of experts" in text]
        assert told.endswith("about 2 of 4")
        assert few.in_domain is False
        assert any("mixture of experts" in text for text in seven.warnings)
        assert not any("mixture of experts" in text for text in eight.warnings)
        assert not any(
            "mixture" in text for text in model.predict(read(config(tmp_path, LLAMA), 1)).warnings
        )

    def test_keys_and_values_that_are_kept_are_in_the_memory(self, tmp_path: Path) -> None:
        """Two layers, keys and values, two heads of 16, float32: kept until the end."""
        kept, lost = (
            analyze(read(config(tmp_path, LLAMA | {"use_cache": use}), 50)) for use in (True, False)
        )
        sizes = [analysis.memory(3).activations_bytes for analysis in (kept, lost)]
        assert sizes[0] - sizes[1] == 3 * 2 * 2 * 2 * 16 * 50 * 4
        assert len(lost.graph.outputs) == len(kept.graph.outputs) == 1

    def test_what_is_not_as_the_file_says_is_told(self, tmp_path: Path) -> None:
        said = read(
            config(tmp_path, LLAMA | {"quantization_config": {"quant_method": "awq"}})
        ).warnings
        assert any("awq" in text and "not quantized" in text for text in said)
        said = read(config(tmp_path, LLAMA), 65).warnings
        assert any("longer than the 64 positions" in text for text in said)
        assert not any("longer" in text for text in read(config(tmp_path, LLAMA), 64).warnings)

    def test_a_tower_that_text_does_not_run_is_told(self, tmp_path: Path) -> None:
        """Of LLaVA the vision tower and its projector, which only a picture goes through."""
        tower = BERT | {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 8}
        of = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}
        graph = read(config(tmp_path, of | {"text_config": LLAMA, "vision_config": tower}))
        assert any("vision_config describes is not run" in text for text in graph.warnings)
        assert any("parameters are the weights of no operation" in text for text in graph.warnings)
        assert graph.training_obstacles == ()
        assert not any("not run" in text for text in read(config(tmp_path, LLAMA)).warnings)

    def test_a_tower_of_images_has_the_size_that_is_given(self, tmp_path: Path) -> None:
        """By hand: patches of 16 x 16 of an image of 64 x 64, of 3 channels, in 64 each."""
        for size in (64, {"input_size": 64, "sequence_length": 16}):
            graph = read(config(tmp_path, CLIP), size)
            patches = [o.outputs[0] for o in graph.operations if o.kind == "conv"]
            assert graph.shapes(patches) == [(1, 64, 4, 4)]

    @pytest.mark.parametrize("name", ["CLIPTextModel", "CLIPVisionModelWithProjection"])
    def test_a_class_that_reads_a_part_of_the_configuration(
        self, tmp_path: Path, name: str
    ) -> None:
        """It has no from_config; the file or the user names it."""
        load_torchvision()
        import transformers

        graph = read(config(tmp_path, CLIP) + f"?{name}")
        kind = getattr(transformers, name)
        part = CLIP["text_config" if "Text" in name else "vision_config"]
        number = sum(p.numel() for p in kind(kind.config_class(**part)).parameters())
        assert parameters(graph) == number
        named = read(config(tmp_path, CLIP | {"architectures": [name]}))
        assert named.operations == graph.operations
        with pytest.raises(NetworkError, match="BertModel of transformers reads a BertConfig"):
            read(config(tmp_path, CLIP) + "?BertModel")

    def test_a_class_that_transformers_lacks_is_refused(self, tmp_path: Path) -> None:
        file = config(tmp_path, BERT | {"architectures": ["JinaBertForMaskedLM"]})
        with pytest.raises(NetworkError, match="JinaBertForMaskedLM"):
            read(file)

    def test_a_head_a_size_or_a_file_that_there_is_not(self, tmp_path: Path) -> None:
        with pytest.raises(NetworkError):
            read(config(tmp_path, BERT), (3, 64))
        for spec in (config(tmp_path, BERT) + "?AutoHat", "transformers:none.json"):
            with pytest.raises(InputError):
                read(spec)


class TestTimm:
    @pytest.fixture(autouse=True)
    def _package(self) -> None:
        if importlib.util.find_spec("timm") is None:  # its import asks for torchvision's operators
            pytest.skip("could not import 'timm'")

    def test_counts_that_are_published_and_another_size_and_tag(self) -> None:
        """timm's results have 1.82 GMACs and 11.69 M parameters, with those of the norms."""
        total = count(read("timm:resnet18")).total(1)
        assert total.flops / 1e9 == pytest.approx(1.82, abs=0.01)
        assert total.weights / 1e6 == pytest.approx(11.69, abs=0.02)
        large = count(read("timm:resnet18.a1_in1k", 448)).total(1)
        assert large.weights == total.weights
        head = 512 * 1000  # the classifier does not see the size
        assert large.flops - head == 4 * (total.flops - head)
        with pytest.raises(NetworkError, match="reparameterized"):
            read("timm:resnet18?faster")

    def test_attention_as_single_operations(self) -> None:
        """12 blocks, each with two products and a softmax; the multiply-accumulates stay."""
        fused, single = (read(f"timm:vit_tiny_patch16_224{form}") for form in ("", "?eager"))
        of_kind = Counter(o.kind for o in single.operations)
        assert (of_kind["matmul"], of_kind["softmax"], of_kind["attention"]) == (24, 12, 0)
        assert Counter(o.kind for o in fused.operations)["attention"] == 12
        assert count(single).total().flops == count(fused).total().flops
        with pytest.raises(NetworkError, match="no attention"):
            read("timm:resnet18?eager")

    @pytest.mark.parametrize(
        ("tag", "gmacs"), [("fb_in22k_ft_in1k_384", 45.21), ("fb_in22k", 15.38), ("fb_in1k", 15.38)]
    )
    def test_a_tag_is_its_size_and_its_classes(self, tag: str, gmacs: float) -> None:
        """timm's own configuration, and the multiply-accumulates of its results."""
        timm, name = importlib.import_module("timm"), f"convnext_base.{tag}"
        graph, known = read(f"timm:{name}"), timm.get_pretrained_cfg(name)
        assert graph.shapes([*graph.inputs, *graph.outputs]) == [
            (1, *known.input_size), (1, known.num_classes)
        ]  # fmt: skip
        assert count(graph).total(1).flops / 1e9 == pytest.approx(gmacs, rel=0.003)

    @pytest.mark.parametrize(
        ("name", "nearest"),
        [
            ("resnet05", "timm:resnet50"), ("convnext_base.banana", "timm:convnext_base.fb_in1k"),
            ("convnext_base.fb_in22k_ft_in1k_385", "timm:convnext_base.fb_in22k_ft_in1k_384"),
            ("hf-hub:timm/resnet50.a1_in1k", "timm:resnet50.a1_in1k"), ("local-dir:/tmp", "list_models"),
        ],
    )  # fmt: skip
    def test_a_name_or_a_tag_that_timm_has_not(self, name: str, nearest: str) -> None:
        with pytest.raises(NetworkError, match=nearest) as caught:
            read(f"timm:{name}")
        assert caught.value.code == "unknown-network"


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_name_of_no_source_file_is_refused_without_pytorch(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hint is among the names that the package itself lists; each of these is let through."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("could not import 'timm'")
    import_package("torchvision")
    module = "timm" if package == "timm" else "torchvision.models"
    listed = importlib.import_module(module).list_models()
    monkeypatch.delitem(sys.modules, package)
    asked = list[str]()

    def told(spec: str, names: list[str], listing: str) -> ValueError:
        asked.extend(names)
        return ValueError(spec)

    monkeypatch.setattr(named, "import_package", lambda name: pytest.fail(f"imports {name}"))
    monkeypatch.setattr(named, "unknown_network", told)
    with pytest.raises(ValueError, match="resnet51"):
        named.named(f"{package}:resnet51", Size(), weights=False)
    assert {*asked} == {*listed}
    for name in listed[::50]:
        named.check_known(f"{package}:{name}")


@pytest.mark.parametrize("package", ["timm", "torchvision", "transformers"])
def test_a_package_that_is_missing_is_named(
    package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [m for m in sys.modules if m.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    spec = config(tmp_path, BERT) if package == "transformers" else f"{package}:x"
    with pytest.raises(MissingPackageError, match=f"pip install {package}"):
        read(spec)


@needs_torchvision
def test_a_torchvision_of_another_build_than_pytorch(tmp_path: Path) -> None:
    """Its wheel beside PyTorch's for the CPU lacks compiled operators, which networks do not need."""
    (tmp_path / "mine.py").write_text(
        "def bert():\n from transformers import BertConfig, BertModel\n return BertModel(BertConfig())"
    )
    names = ["mine:bert", "torchvision:resnet50", "timm:resnet18", config(tmp_path, BERT)]
    code = (
        "import lolat\nfrom lolat.graph.counts import count\n"
        f"print([count(lolat.read(n, 5 * (n[:2] == 'mi') or None)).total(1).flops for n in {names!r}])\n"
        "import torchvision, torchvision.ops"
    )
    done = python(code, env={"LOLAT_CACHE": "off"}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    mine, resnet50, resnet18, bert = json.loads(done.stdout)
    assert resnet50 / 1e9 == pytest.approx(4.09, abs=0.005)  # as torchvision's documents say
    assert resnet18 / 1e9 == pytest.approx(1.82, abs=0.01)
    assert min(bert, mine) > 0


def test_transformers_without_torchvision(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    specs = []
    for i, of in enumerate((BERT, GPT, LLAMA, VIT)):
        (tmp_path / str(i)).mkdir()
        specs.append(config(tmp_path / str(i), of))
    code = (
        f"import sys, lolat; sys.modules['torchvision'] = None; [lolat.read(s) for s in {specs!r}]"
    )
    done = python(code, env={"LOLAT_CACHE": "off"})
    assert done.returncode == 0, done.stderr


@needs_torchvision
@pytest.mark.parametrize(
    "name",
    ["maskrcnn_resnet50_fpn_v2", "retinanet_resnet50_fpn", "fcos_resnet50_fpn",
     "ssdlite320_mobilenet_v3_large"],
)  # fmt: skip
def test_a_detector_has_the_macs_and_parameters_that_torchvision_publishes(name: str) -> None:
    load_torchvision()
    published = importlib.import_module("torchvision.models").get_model_weights(name).DEFAULT.meta
    graph = read(f"torchvision:{name}")
    assert count(graph).total().flops / 1e9 == pytest.approx(published["_ops"], abs=5e-4)
    assert parameters(graph) == pytest.approx(
        published["num_params"], rel=2e-3
    )  # biases of batch norms
    assert ("1,000 boxes" in graph.warnings[-1]) == ("rcnn" in name)
    with pytest.raises(NetworkError, match="a detector trains on boxes"):
        as_trained(graph)


@needs_torchvision
def test_a_detector_of_the_users_resizes_images_and_sends_its_own_boxes_through_its_heads() -> None:
    """480x640 becomes 240x320, then 256x320 (multiples of 32), and 64x80 behind the backbone."""
    load_torchvision()
    import torch
    from torch import nn
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.rpn import AnchorGenerator

    backbone = nn.Conv2d(3, 8, 4, 4, bias=False)
    backbone.out_channels = 8
    anchors = AnchorGenerator(((32, 64),), ((0.5, 1.0, 2.0),))
    made = MaskRCNN(backbone, 3, 240, 400, rpn_anchor_generator=anchors, rpn_post_nms_top_n_test=50,
                    box_detections_per_img=7)  # fmt: skip
    graph = read(made, (3, 480, 640))
    first = 64 * 80 * 8 * 48 + 64 * 80 * 8 * (8 * 9 + 6 + 24)  # the backbone; 6 anchors a position
    box = 50 * (8 * 49 * 1024 + 1024 * 1024 + 1024 * 5 * 3)
    convolutions = 8 * 256 + 3 * 256 * 256
    mask = 7 * (196 * 9 * convolutions + 784 * 256 * (256 + 3))
    assert [count(graph).total(n).flops for n in (1, 2)] == [
        first + box + mask,
        2 * (first + box + mask),
    ]
    listed = read((made, [torch.zeros(3, 480, 640), torch.zeros(3, 300, 300)]))  # the first one
    assert listed.operations == graph.operations
    assert "50 boxes of each image in its box head and 7 in its mask head" in graph.warnings[-1]


def test_code_of_a_package_that_needs_values_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(
        NetworkError, match=r" at transformers/\S+\.py:\d+;.*transformer, "
    ) as caught:
        read(config(tmp_path, {**T5, "architectures": None}))
    assert (caught.value.code, caught.value.exit_code) == ("data-dependent", 2)


@needs_torchvision
@pytest.mark.parametrize(
    "name",
    ["efficientnet_b4", "swin_v2_t", "inception_v3", "vit_b_16", "s3d", "r3d_18", "deeplabv3_resnet50"],
)  # fmt: skip
def test_a_network_has_the_macs_that_torchvision_publishes_at_its_own_size(name: str) -> None:
    weights = import_package("torchvision.models").get_model_weights(name)
    published = min(w.meta["_ops"] for w in weights)
    assert count(read(f"torchvision:{name}")).total().flops / 1e9 == pytest.approx(
        published, abs=6e-4
    )


@needs_torchvision
def test_a_video_at_another_size_keeps_its_frames() -> None:
    smaller = read("torchvision:r3d_18", 56)
    assert smaller.shapes(smaller.inputs) == [(1, 3, 16, 56, 56)]
