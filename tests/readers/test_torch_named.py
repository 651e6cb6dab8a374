"""timm's, torchvision's and transformers' networks by name, without weights."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import lolat
from lolat.errors import InputError, MissingPackageError, NetworkError
from lolat.graph.counts import count
from lolat.readers import read
from lolat.readers.torch.named import load_torchvision
from tests.processes import python

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
VIT = {"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
       "intermediate_size": 96, "image_size": 32}  # fmt: skip


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
        ("of", "head", "more"), [(GPT, "", 0), (BERT, "?AutoModelForMaskedLM", 16 * 64 * 64)]
    )
    def test_a_decoder_has_its_language_head_and_others_may(
        self, tmp_path: Path, of: Any, head: str, more: int
    ) -> None:
        found = count(read(config(tmp_path, of) + head, 16)).total(1).flops
        assert found == self.layers_macs(16) + more + 16 * 64 * 100

    @pytest.mark.parametrize(
        "text",
        ["no json", '{"hidden_size": 3}', '{"model_type": "dragon"}',
         json.dumps(BERT | {"num_attention_heads": 5})],
    )  # fmt: skip
    def test_what_is_no_configuration(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(InputError):
            read(config(tmp_path, text))

    @pytest.mark.parametrize(
        ("of", "size", "words"),
        [
            (LLAMA, None, "LlamaForCausalLM on 64 tokens in float32, attention sdpa, keys"),
            (
                LLAMA | {"use_cache": False},
                9,
                "LlamaForCausalLM on 9 tokens in float32, attention sdpa",
            ),
            (
                LLAMA | {"attn_implementation": "eager"},
                9,
                "on 9 tokens in float32, attention eager",
            ),
            (VIT, None, "ViTForImageClassification on 3x32x32 in float32, attention sdpa"),
            (VIT, 64, "ViTForImageClassification on 3x64x64"),
            (VIT | {"dtype": "bfloat16"}, None, "in bfloat16, attention sdpa"),
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
        assert {c.kind for c in changes} <= {"drop", "width"}, "what a transformer has"
        assert words in graph.warnings[-1]
        assert ("keys" in graph.warnings[-1]) == ("keys" in words or "eager" in words)

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
        with pytest.raises(NetworkError) as caught:
            read("timm:resnet05")
        assert caught.value.code == "unknown-network"


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


def test_a_torchvision_of_another_build_than_pytorch(tmp_path: Path) -> None:
    """Its wheel beside PyTorch's for the CPU lacks compiled operators, which networks do not need."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("could not import 'torchvision'")
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


def test_no_weights_of_a_backbone_are_downloaded() -> None:
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("could not import 'torchvision'")
    read_network = read("torchvision:lraspp_mobilenet_v3_large", 64)
    assert count(read_network).total(1).weights > 3e6  # published: 3.22 M parameters


@pytest.mark.parametrize(
    ("name", "gmacs", "weights"), [("resnet18", 1.81, 11.68), ("vgg11", 7.61, 132.86)]
)
def test_torchvisions_own_as_published(name: str, gmacs: float, weights: float) -> None:
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("could not import 'torchvision'")
    total = count(read(f"torchvision:{name}")).total(1)
    assert total.flops / 1e9 == pytest.approx(gmacs, abs=0.01)
    assert total.weights / 1e6 == pytest.approx(weights, abs=0.01)
