"""The subject of a training: a network or a decoder; and its data."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from lolat import readers
from lolat.device.prediction import titled
from lolat.errors import InputError, arg
from lolat.graph import Graph
from lolat.graph.edits import as_trained
from lolat.llm.names import find_decoder, is_decoder
from lolat.parameters import LENGTH, PARAMETERS, SIZE, InputSize
from lolat.readers.size import as_size
from lolat.training.decoder import TrainedDecoder
from lolat.training.plan import OF_DECODERS
from lolat.training.question import TrainingQuestion

Trained = Graph | TrainedDecoder


def read_question(network: Any, input_size: InputSize) -> Trained:
    """Read the subject of a training: a network, or a decoder with the length of its sequences."""
    if not is_decoder(network):
        return as_trained(titled(readers.read(network, input_size), network))
    size, decoder = as_size(input_size), find_decoder(network)
    if decoder.dtype != "bfloat16":
        raise InputError(
            f"{decoder.name}: its weights are quantized ({decoder.dtype}), and training beside quantized "
            "weights (QLoRA) is not predicted; expected it without the quantization: a frozen weight then "
            f"takes 2 bytes ({arg('tune')} lora:16:bf16, {arg('checkpointing')} full)",
            code="quantized-decoder",
        )
    numbers = (*size.images, *([] if size.length is None else [size.length]))
    if len(numbers) != 1:
        raise InputError(
            f"{arg(SIZE if size.images else LENGTH)}: {decoder.name} is trained on sequences; "
            f"expected the tokens of one sequence, such as {arg(LENGTH)} 4096",
            code="sequence-length",
        )
    return TrainedDecoder(decoder, numbers[0])


class TrainingData(NamedTuple):
    """The number of samples, tokens of a sample (0: not a text), its mean tokens without padding."""

    samples: int | None
    length: int
    useful: float


def data_of(trained: Trained, asked: TrainingQuestion) -> TrainingData:
    """The data of a training, from the arguments of the question.

    The data may be given in tokens if a sample is a sequence: for a decoder, or for a network with an
    integer input of one axis.
    """
    if isinstance(trained, TrainedDecoder):
        length = trained.length
    else:
        shapes = zip(trained.input_sizes, trained.inputs, strict=True)
        whole = (s for s, i in shapes if len(s) == 1 and trained.tensors[i].dtype.startswith("int"))
        length = next(whole, (0,))[0]
    for name in ("tokens", "mean_tokens"):
        if (value := getattr(asked, name)) is None:
            continue
        if not length:
            words = f"{arg(name)}: {OF_DECODERS}, or of a network whose samples are tokens; leave it out"
            raise InputError(words, code="decoder-only")
        PARAMETERS[name].check(value)
    useful = float(length if asked.mean_tokens is None else asked.mean_tokens)
    if useful > length:
        raise InputError(
            f"{arg('mean_tokens')} {useful:g}: more than the {length:,} tokens of a sequence; "
            "expected the mean of the samples, each of which is padded to a sequence",
            code="mean-tokens",
        )
    if asked.tokens is None:
        return TrainingData(asked.samples, length, useful)
    if asked.samples is not None:
        raise InputError(
            f"{arg('tokens')} and {arg('samples')}: both say how much data; expected one",
            code="tokens",
        )
    return TrainingData(max(math.ceil(asked.tokens / useful), 1), length, useful)
