"""A step of a decoder's training: the time of both passes, of messages between GPUs and of the update; and
its memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lolat.errors import InputError, arg
from lolat.graph.dtypes import HALF_BYTES
from lolat.graph.modes import AMP, BFLOAT16, DTYPES, FLOAT16, PRECISION_OF
from lolat.llm.decoder import Decoder
from lolat.llm.gpu import GPU
from lolat.optimizers import Optimizer
from lolat.training.memory import (
    ACTIVATIONS,
    AGAIN,
    AT_LOSS,
    BUCKETS,
    GATHERED,
    LOSS,
    TEMPORARY,
    Moment,
    at_peak,
)
from lolat.training.parallel import Parallel
from lolat.training.passes import CONSTANTS, Constants, DecoderPasses
from lolat.training.recipe import COPIES, PrecisionRecipe, recipe_of, state_parts
from lolat.training.tuning import Tuning

LOGIT_BYTES = {True: 12.0, False: 4.0}
"""Decoder is gated -> bytes for each logit at the loss. Gated decoders, such as Llama, use PyTorch's loss,
with three numbers in float32: the log-softmax, its gradient, the logit's gradient. MPT's trainer has a loss
in one kernel, with two numbers in half precision: the logit and its gradient."""
FRAGMENTED = 0.05
"""Memory lost to fragmentation in the allocator, as a fraction of the memory of temporary tensors."""
GATHERED_LAYERS = 2  # whole at the same time: one is gathered in advance


class TrainedDecoder(NamedTuple):
    """A decoder, and the length in tokens of the sequences that it is trained on."""

    decoder: Decoder
    length: int


def tuned_recipe(precision: str, optimizer: Optimizer, tuning: Tuning) -> PrecisionRecipe:
    """The bytes of a parameter for a way of tuning; adapters in bfloat16 stay in bfloat16 under autocast.

    InputError for a precision in which training of decoders is not predicted.
    """
    dtype = DTYPES.get(precision.lower(), precision)
    if dtype not in (AMP, BFLOAT16) and (dtype != FLOAT16 or tuning.half):
        words = f"{PRECISION_OF.get(dtype, dtype)}: the training of a decoder is predicted in amp or bf16"
        raise InputError(f"{arg('precision')} {words}", code="decoder-precision")
    has = BFLOAT16 if tuning.half else dtype
    return recipe_of(has, optimizer, half_frozen=tuning.rank > 0 and not tuning.half)


@dataclass(frozen=True)
class DecoderStep:
    """A micro-batch of a decoder's training: its passes, and the bytes of each parameter (`recipe`)."""

    passes: DecoderPasses
    recipe: PrecisionRecipe

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """((2 + layers,) numbers of trained parameters of embedding, layers and head, the same of all
        parameters).
        """
        d, tuning = self.passes.decoder, self.passes.tuning
        parts, norm = d.parameters_by_part, (1 + d.norm_bias) * d.hidden
        head = parts["head"] + norm  # with the normalization before it
        every = np.full(d.layers + 2, (d.parameters - parts["embedding"] - head) / d.layers)
        every[[0, -1]] = parts["embedding"], head
        trained = every.copy()
        if tuning.rank:
            trained[:] = tuning.rank * sum(n + k for n, k in self.passes.products)
            trained[[0, -1]] = 0.0
        elif tuning.frozen:
            trained[0 if not d.tied else 1 : tuning.frozen + 1] = 0.0
        return trained, every

    def passes_on(self, parallel: Parallel) -> DecoderPasses:
        """The passes under autocast. If parameters are sharded, FSDP casts all weights, as if all were in
        half precision.
        """
        tuning, mixed = self.passes.tuning, self.recipe.copy > 0
        sharded = parallel.shards.parameters > 1
        tuning = replace(tuning, half=tuning.half or (mixed and sharded))
        return replace(self.passes, tuning=tuning, autocast=mixed and not sharded)

    def update_ms(
        self, gpu: GPU, parallel: Parallel, batches: int, c: Constants = CONSTANTS
    ) -> float:
        """ms besides the passes of `batches` micro-batches: sums of gradients, casts, the update."""
        r, (trained, every), shards = self.recipe, self.numbers(), parallel.shards
        learned = float(trained.sum())
        # The norm of the gradients is computed and they are scaled (4); all else is read and written.
        each = 4 * r.gradient + 2 * (r.weight + r.states)
        moved = each * learned / shards.states
        moved += 3 * r.gradient * learned * (batches - 1) / shards.gradients
        if r.copy:
            half = r.frozen <= HALF_BYTES and self.passes.tuning.rank > 0
            cast = learned if half else float(every.sum())
            moved += batches * (r.weight + r.copy) * cast / shards.parameters
            moved += batches * (HALF_BYTES + r.gradient) * learned / shards.gradients
        return moved / (gpu.specs.bandwidth * c.bandwidth)

    def gathered_bytes(self, parallel: Parallel) -> np.ndarray:
        """(2 + layers,) bytes of the weights that GPUs gather from their shards; with zero1 the updated
        weights.

        FSDP gathers sharded weights in half precision, because its MixedPrecision casts them first.
        """
        trained, every = self.numbers()
        if parallel.shards.parameters > 1:
            return HALF_BYTES * every
        fixed = every - trained * (not self.passes.tuning.rank)
        fixed *= parallel.shards.gradients > 1
        return self.recipe.weight * trained + self.recipe.frozen * fixed

    def iteration_ms(
        self, gpu: GPU, parallel: Parallel, batches: int = 1, c: Constants = CONSTANTS
    ) -> dict[str, float]:
        """ms of each part of an iteration of `batches` micro-batches; "hidden" does not add to the
        iteration.
        """
        forward, backward = self.passes_on(parallel).parts_ms(gpu, c)
        exchange, hidden = parallel.exchange_ms(
            (self.numbers()[0] * self.recipe.gradient).tolist(), backward.tolist(),
            self.gathered_bytes(parallel).tolist(), forward.tolist(), batches,
        )  # fmt: skip
        parts = {
            "forward": batches * float(forward.sum()), "backward": batches * float(backward.sum()),
            "update": self.update_ms(gpu, parallel, batches, c),
        }  # fmt: skip
        waiting = c.waiting * float(np.log2(parallel.devices)) * sum(parts.values())
        return parts | {"exchange": exchange + waiting, "hidden": hidden}

    def memory(self, parallel: Parallel, batches: int = 1) -> Moment:
        """The moment of an iteration at which a GPU needs most memory, and its bytes by part."""
        passes, r, (trained, every) = self.passes_on(parallel), self.recipe, self.numbers()
        d, tokens, learned = passes.decoder, float(passes.tokens), float(trained.sum())
        frozen = float(every.sum()) - learned * (not passes.tuning.rank)
        sharded = parallel.shards.parameters > 1
        if d.tied:  # its table is the head's kernel
            trained[-1], trained[0] = trained[-1] + trained[0], 0.0
            every[-1], every[0] = every[-1] + every[0], 0.0
        copied = trained + (every - trained) * (r.frozen > HALF_BYTES)
        copied[: passes.untouched + 1] = 0.0
        kept, again, gradients = np.zeros((3, len(trained)))
        for i in range(passes.untouched + 1, d.layers + 1):
            learns = i > passes.tuning.frozen
            kept[i], again[i] = passes.saved_elements(learns)
            gradients[i] = 3.0 * d.intermediate
        gradients[-1] = d.vocab
        kept, again, gradients = (HALF_BYTES * tokens * n for n in (kept, again, gradients))
        copies = r.copy * copied * (not sharded)
        is_again = np.full(len(kept), passes.checkpointing != "none")
        is_again[-1] = False
        of_logit = LOGIT_BYTES[d.gated] + HALF_BYTES * d.logit_cap  # the result of a tanh
        loss = {ACTIVATIONS: float(kept.sum()), LOSS: of_logit * tokens * d.vocab}
        moment, moving = at_peak(
            ["embedding", *(f"layer {i}" for i in range(1, d.layers + 1)), "the head"],
            {ACTIVATIONS: kept, COPIES: copies * ~is_again},
            r.gradient * trained / parallel.shards.gradients,
            {AGAIN: again * is_again, TEMPORARY: gradients, COPIES: copies * is_again},
            {AT_LOSS: {COPIES: float(copies.sum()), **loss}}, batches,
        )  # fmt: skip
        parts = state_parts(r, learned, frozen, parallel.shards) | moving
        if sharded:
            gathered = HALF_BYTES * (GATHERED_LAYERS * every[1] + every[0] + every[-1])
            parts[GATHERED] = float(gathered + r.gradient * trained.max())
        elif parallel.devices > 1:  # divided gradients leave layer by layer
            is_divided = parallel.shards.gradients > 1
            parts[BUCKETS] = r.gradient * float(trained.max() if is_divided else learned)
        loose = parts.get(GATHERED, 0.0) + parts.get(BUCKETS, 0.0) + sum(loss.values())
        parts["fragmentation"] = FRAGMENTED * loose
        return moment, {name: size for name, size in parts.items() if size}
