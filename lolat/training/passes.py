"""Predicts the forward and the backward pass of a decoder in training, from kernels timed for serving.

A layer runs its products three times (forward, gradient of the input, gradient of the weights; the last
only where weights are trained), attention and its backward pass, and element-wise work that moves tensors.
Operations are those of PyTorch on NVIDIA GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from lolat.arrays import np
from lolat.device.predictors.host import GRAPH_MS, OPERATION_MS
from lolat.errors import InputError, arg
from lolat.graph.dtypes import FLOAT_BYTES, HALF_BYTES
from lolat.graph.modes import EAGER, GRAPH, Launch
from lolat.llm.decoder import Decoder
from lolat.llm.gpu import GPU
from lolat.training.parallel import Parallel
from lolat.training.tuning import ALL_TRAINED, Tuning


class Constants(NamedTuple):
    """Constants fitted to published runs; benchmarks/training_decoders.py fits and evaluates them.

    `products`: ratio of the time of a product inside a step to its time alone, because clocks fall under a
    lasting load. `attention`: ratio of the times of PyTorch's attention and of the serving kernel, on a GPU
    whose multiprocessors are as fast as an A100's. `growth`: that ratio grows with this power of a
    multiprocessor's speed, because PyTorch's kernel lacks the instructions of newer GPUs. `backward`: ratio
    of the time of a FLOP of attention in the backward pass to a FLOP in the forward pass. `bandwidth`:
    share of the data sheet's bandwidth that element-wise work reaches. `waiting`: share of a step that each
    doubling of the GPUs adds, because all wait for the slowest.
    """

    products: float = 1.2
    attention: float = 1.47
    growth: float = 0.79
    backward: float = 1.27
    bandwidth: float = 0.85
    waiting: float = 0.0034


CONSTANTS = Constants()
A100_TFLOPS = 312 / 108  # of a multiprocessor, dense bfloat16
FLASH_BACKWARD = 2.5
"""Ratio of the FLOPs of attention's backward pass to its forward pass: five products to two (Dao et al.,
FlashAttention, 2022)."""
Moves = Mapping[str, tuple[float, float]]
UNFUSED: Moves = {
    "rms_norm": (18, 30), "norm_weights": (0, 6), "layer_norm": (2, 5), "gated": (5, 9), "gelu": (2, 3),
    "rotation": (10, 10), "sum": (3, 3), "branch": (0, 3), "adapter": (5, 2),
    "wide adapter": (12, 7), "cast": (3, 3),
}  # fmt: skip
"""Element-wise operation -> (forward, backward) numbers of tensors in half precision that it reads and
writes, if each of PyTorch's operations is a kernel. RMS normalization and rotation compute in float32, in
six and five steps. "norm_weights": the gradient of a normalization's weights; "branch": adding the
gradients of a tensor that several products read; "adapter": scaling and adding LoRA's result, "wide" in
float32; "cast": between float32 and half precision."""
FUSED: Moves = {
    "rms_norm": (2, 2), "norm_weights": (0, 1), "layer_norm": (2, 3), "gated": (3, 5), "gelu": (2, 3),
    "rotation": (2, 2), "sum": (2, 1), "branch": (0, 1), "adapter": (3, 1),
    "wide adapter": (4, 3), "cast": (3, 3),
}  # fmt: skip
"""Numbers as in UNFUSED if torch.compile fuses neighboring operations."""
LOSS_BYTES = {True: 14.0, False: 36.0}
"""Loss is fused -> bytes that it moves for each logit in both passes: logits in half precision and in
float32, their log-softmax, both gradients."""


FLOAT32_SLOWDOWN = 4
"""Ratio of the times of an adapter's product in float32, without tensor cores, and in half precision; from
two timed steps of LoRA of rank 16 with Llama 3.1 8B on an H100."""


@dataclass(frozen=True)
class DecoderPasses:
    """Both passes of a decoder's micro-batch on a GPU; InputError for decoders that are not predicted.

    The micro-batch has `sequences` of `length` tokens, with padding. `checkpointing`: none, full (a layer
    keeps only its input), selective (it also keeps attention and every second product, as torchtitan).
    LoRA's adapters are on all products of the layers. With frozen layers the embedding is frozen too,
    unless it is also the head: then a gradient runs through the frozen layers. `autocast`: everything but
    products is in float32, and each product has its own copy of its input in half precision; with LoRA only
    the adapters.
    """

    decoder: Decoder
    length: int
    sequences: int
    checkpointing: str = "none"
    tuning: Tuning = ALL_TRAINED
    launch: Launch = EAGER
    autocast: bool = False

    def __post_init__(self) -> None:
        d, frozen = self.decoder, self.tuning.frozen
        if d.kind != "dense":
            others = {"latent": "latent attention", "linear": "linear attention"}
            has = others.get(d.kind, "experts")
            raise InputError(
                f"{d.name} has {has}; expected a dense decoder: the training of others is not predicted",
                code="decoder-kind",
            )
        if frozen > d.layers:
            raise InputError(
                f"{arg('tune')} frozen:{frozen}: {d.name} has {d.layers} layers; expected no more",
                code="tune",
            )
        if d.positions:
            object.__setattr__(self, "decoder", replace(d, positions=max(d.positions, self.length)))

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch."""
        return self.sequences * self.length

    def kind(self, parallel: Parallel) -> str:
        """The kind of a run, in words: its trained part, sharding and checkpointing."""
        sharding = parallel.sharding if parallel.devices > 1 else "one GPU"
        return f"{self.tuning.part}, {sharding}, {self.checkpointing}"

    @property
    def untouched(self) -> int:
        """Number of layers that no gradient runs through: all frozen layers; 0 if the embedding is also the
        head.
        """
        return 0 if self.decoder.tied else self.tuning.frozen

    @property
    def is_fused(self) -> bool:
        """True if torch.compile fuses neighboring operations: for any launch but eager."""
        return self.launch != EAGER

    @property
    def widths(self) -> tuple[int, int]:
        """(elements of a token's queries, elements of its keys and values together)."""
        d = self.decoder
        return d.heads * d.head_dim, 2 * d.kv_heads * d.head_dim

    @property
    def products(self) -> list[tuple[int, int]]:
        """(outputs, inputs) of each product of a layer, in order.

        Most decoders have separate products for query, key, value, gate and up; Phi-3 and MPT fuse them.
        """
        d, (query, cached) = self.decoder, self.widths
        into, wide = [query, cached // 2, cached // 2], [d.intermediate] * (2 if d.gated else 1)
        if d.fused:
            into, wide = [sum(into)], [sum(wide)]
        attention = [*((n, d.hidden) for n in into), (d.hidden, query)]
        return [*attention, *((n, d.hidden) for n in wide), (d.hidden, d.intermediate)]

    def flops(self) -> float:
        """FLOPs of a token by the usual definition: 6 for each parameter, and 12 x layers x width x length
        for attention as if it were not causal (Chowdhery et al., "PaLM", 2022, appendix B); a layer's
        window bounds the length. Frozen layers run only forward, a third of this. Frozen layers that a
        gradient runs through, and products with adapters, have no gradient of their weights.
        """
        d, parts = self.decoder, self.decoder.parameters_by_part
        layer = (d.parameters - parts["embedding"] - parts["head"]) / d.layers
        attended = [min(self.length, window or self.length) for window in self.windows]
        attention = 12.0 * self.widths[0] * np.cumsum([0, *attended])  # of the first n layers
        whole = (4.0 if self.tuning.rank else 6.0) * d.parameters + attention[-1]
        untouched, passed = self.untouched, self.tuning.frozen - self.untouched
        frozen = untouched * 4.0 * layer + attention[untouched] * 2 / 3
        return float(whole - frozen - passed * 2.0 * layer)

    @property
    def windows(self) -> list[int]:
        """The window of each layer's attention, in tokens; 0: none."""
        return [layer.window for layer in self.decoder.kinds for _ in range(layer.number)]

    @property
    def casts(self) -> bool:
        """True if adapters in float32 cast the input of each product."""
        return self.tuning.rank > 0 and not self.tuning.half

    # ---- Time.

    def parts_ms(self, gpu: GPU, c: Constants = CONSTANTS) -> tuple[np.ndarray, np.ndarray]:
        """((2 + layers,) ms of the forward pass, the same of the backward pass) of embedding, layers, head
        with loss.
        """
        d, m, rank, frozen = self.decoder, float(self.tokens), self.tuning.rank, self.tuning.frozen
        bandwidth = gpu.specs.bandwidth * c.bandwidth
        windows = self.windows
        attention = {w: self._attention_ms(gpu, w, c) for w in {*windows}}
        into, out_of, learned = (
            c.products * self._products_ms(gpu, product)
            for product in ("forward", "input", "weights")
        )
        (moved, moved_back), (_, moved_still) = (
            (HALF_BYTES * m * n / bandwidth for n in self._moved(learns))
            for learns in (True, False)
        )
        starts = self._starts_ms()
        again_starts = starts * (self.checkpointing != "none")
        forward, backward = np.zeros(d.layers + 2), np.zeros(d.layers + 2)
        for i, window in enumerate(windows, 1):
            ms = into + attention[window] + moved
            again = {"full": ms, "selective": into / 2 + moved}.get(self.checkpointing, 0.0)
            learns = i > frozen
            back = out_of + learned * (learns and not rank) + again
            back += moved_back if learns else moved_still
            back += FLASH_BACKWARD * c.backward * attention[window]
            forward[i] = max(ms, starts)
            backward[i] = max(back, starts + again_starts) * (i > self.untouched)
        sizes = (m, d.vocab, d.hidden), (m, d.hidden, d.vocab), (d.vocab, d.hidden, m)
        head = [c.products * float(gpu.ms("gemm", "bfloat16", *size)) for size in sizes]
        loss = m * d.vocab * LOSS_BYTES[self.is_fused] / 3 / bandwidth
        forward[0] = 2 * HALF_BYTES * m * d.hidden / bandwidth
        backward[0] = 3 * forward[0] * (not rank and not self.untouched)
        forward[-1], backward[-1] = head[0] + loss, head[1] + head[2] * (not rank) + 2 * loss
        return forward, backward

    def _attention_ms(self, gpu: GPU, window: int, c: Constants) -> float:
        d, sheet = self.decoder, gpu.section.sheet
        newer = sheet.bf16_tflops / sheet.multiprocessors / A100_TFLOPS
        sizes = self.sequences, self.length, d.heads, d.kv_heads, d.head_dim, window
        ms = float(gpu.ms("prefill_attention", "bfloat16", *sizes))
        return ms * c.attention * max(newer, 1.0) ** c.growth

    def _products_ms(self, gpu: GPU, product: str) -> float:
        """ms of a layer's products; `product`: "forward", or the gradient of the "input" or of the
        "weights".

        An adapter adds two products in each direction; the gradients of its weights count with "input".
        """

        def ms(*size: object) -> float:
            return float(gpu.ms("gemm", "bfloat16", *size).sum())

        m, r = float(self.tokens), float(self.tuning.rank)
        n, k = np.array(self.products, float).T
        found = ms(*{"forward": (m, n, k), "input": (m, k, n), "weights": (n, k, m)}[product])
        if r:
            thin = ms(m, r, k) + ms(m, n, r)
            thin += ms(r, k, m) + ms(n, r, m) if product == "input" else 0.0
            found += thin * (FLOAT32_SLOWDOWN if self.casts and not self.autocast else 1)
        return found

    def _counts(self, learns: bool = True) -> dict[str, tuple[int, float]]:
        """Element-wise operation in a layer -> (number of such operations, their elements for a token in
        all).

        `learns`: False for a frozen layer.
        """
        d, (query, cached) = self.decoder, self.widths
        norm, act = ("rms_norm", "gated") if d.gated else ("layer_norm", "gelu")
        number, elements = d.norms, d.norms * float(d.hidden)
        if d.head_norm:
            number, elements = number + 2, elements + query + cached / 2
        act_elements = float(d.intermediate)
        counts = {norm: (number, elements), act: (1, act_elements), "sum": (2, 2.0 * d.hidden)}
        if not d.positions:
            counts["rotation"] = 2, query + cached / 2
        if not d.fused:
            counts["branch"] = 3, 3.0 * d.hidden
        if d.gated and learns and not self.tuning.rank:
            counts["norm_weights"] = counts[norm]
        if self.tuning.rank:
            (number, elements), pairs = counts.get("branch", (0, 0.0)), self.products
            made, read = (float(sum(each)) for each in zip(*pairs, strict=True))
            wide = self.casts and not self.autocast
            counts["wide adapter" if wide else "adapter"] = len(pairs), made
            if self.casts:
                times = 1 + self.autocast  # to float32, and back for a product in half precision
                counts["cast"] = times * len(pairs), times * read
            counts["branch"] = number + len(pairs), elements + read
        return counts

    def _moved(self, learns: bool = True) -> tuple[float, float]:
        """(forward, backward) elements that a layer's element-wise work moves for a token."""
        passes, counts = FUSED if self.is_fused else UNFUSED, self._counts(learns)
        forward, backward = (
            sum(passes[name][direction] * n for name, (_, n) in counts.items())
            for direction in (0, 1)
        )
        return forward, backward

    def _starts_ms(self) -> float:
        """ms that the host takes to launch a layer's forward pass."""
        number = 1 + len(self.products) * (3 if self.tuning.rank else 1)
        number += sum(n for name, (n, _) in self._counts().items() if UNFUSED[name][0])
        return number * (GRAPH_MS if self.launch == GRAPH else OPERATION_MS)

    # ---- Memory.

    @property
    def eager_bytes(self) -> float:
        """Bytes of attention weights that all layers keep if attention is not fused.

        Each weight is kept in float32, as the softmax computes it, and in half precision; capped scores
        also keep their tanh. With checkpointing only the layer that is computed again keeps them.
        """
        layers = self.decoder.layers - self.untouched if self.checkpointing == "none" else 1
        each = FLOAT_BYTES + HALF_BYTES * (1 + self.decoder.score_cap)
        return float(layers * each * self.sequences * self.decoder.heads * self.length**2)

    def saved_elements(self, learns: bool = True) -> tuple[float, float]:
        """(elements in half precision that a layer keeps for a token with its checkpointing, elements
        without any).

        `learns`: False for a frozen layer, which keeps no inputs for gradients of its weights. Adapters in
        float32 keep their own copy of the input of each product, under autocast in half precision.
        """
        d, fused, (query, cached) = self.decoder, self.is_fused, self.widths
        autocast, learns = self.autocast and not self.tuning.rank, learns and not self.casts
        # The input of a normalization, in float32 for an RMS one, its normalized form, and what products
        # read of its result.
        wide, stream = d.gated and not fused, 1 + autocast
        normalized = (1 + d.wide_norm) * (wide and learns and not self.tuning.rank)
        norm = max(1 + wide, stream) + max(normalized, stream * (normalized > 0))
        read = len(self.products) - 2 if autocast and not fused else 2
        widths = {(True, False): 4, (True, True): 3}.get((d.gated, fused), 2) - (not learns)
        every = (d.norms * norm + read * learns) * float(d.hidden)
        every += 2.0 * query + cached + widths * float(d.intermediate)
        every += (query + cached / 2) * (1 + wide + normalized) * bool(d.head_norm)
        if d.fused and d.gated and not fused:
            # Values are a view of the fused product, which stays whole; attention's output is copied.
            every += query * (1 + learns) + cached / 2
        every += self.casts * (2 - self.autocast) * sum(k for _, k in self.products)
        selective = stream * d.hidden + query + sum(n for n, _ in self.products[::2])
        kept = {"full": float(stream * d.hidden), "selective": selective}
        return kept.get(self.checkpointing, every), every
