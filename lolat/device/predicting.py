"""Predicting a network: a formula applied to the counts of its blocks, an interval, and remarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lolat.device.domain import MOSTLY_SHARE
from lolat.device.execution_modes import as_written
from lolat.device.largest_batch import largest_batch
from lolat.device.prediction import Prediction, Query
from lolat.device.profile_remarks import (
    amp_remarks,
    layout_remarks,
    of_its_source,
    other_framework,
)
from lolat.device.question import AUTO, Question, as_whole
from lolat.device.uncertainty import uncertainty_of
from lolat.graph import Graph
from lolat.graph.analysis import Analysis, analyze
from lolat.graph.modes import PRECISION_OF, float32_remarks
from lolat.parameters import COVERAGE

if TYPE_CHECKING:
    from lolat.device.device import Device
NEARLY = 0.95
"""A batch is nearly as fast as a larger one if it computes this share of its samples a second."""


def computes(prediction: Prediction) -> float:
    """Samples a second; 0 if the time is 0."""
    return prediction.samples_per_s or 0.0


def nearly_as_fast(prediction: Prediction) -> Prediction | None:
    """The prediction for the smallest power of two that is a batch nearly as fast; None without one."""
    query, analysis = prediction.query, analyze(prediction.query.graph)
    for power in range((prediction.batch_size - 1).bit_length()):
        question = Question(2**power, prediction.predictor, query.coverage)
        smaller = predict(query.device, analysis, question)
        if computes(smaller) >= NEARLY * computes(prediction):
            return smaller
    return None


def predict(device: Device, network: Graph | Analysis, question: Question) -> Prediction:
    """Predict one forward pass of a network; a network in half precision is predicted in that precision.

    InputError for an impossible batch size, predictor or coverage.
    """
    question.check(device)
    graph = (analysis := analyze(network)).graph
    device = as_written(device, graph)
    formula, coverage = device.predictor(question.predictor), question.coverage
    batch = question.batch_size
    size = largest_batch(device, analysis, question, predict) if batch == AUTO else as_whole(batch)
    file, where, mode = device.file, device.file.environment, device.file.mode
    terms, call_ms, steps = times = formula.of_blocks(analysis, size)
    latency = float(terms.sum()) + call_ms
    uncertainty = uncertainty_of(device, analysis, size, formula, times, coverage)
    remarks = (
        *(graph.batch_independent if size > 1 else ()), *uncertainty.unmeasured, *amp_remarks(file),
        *uncertainty.doubts, *other_framework(file, graph.framework), *of_its_source(file),
        *layout_remarks(device, graph), *float32_remarks(graph, mode), *uncertainty.of_counts,
    )  # fmt: skip
    interval, inside = uncertainty.interval_ms, uncertainty.inside_share
    return Prediction(
        network=graph.name,
        batch_size=size,
        predictor=formula.name,
        latency_ms=latency,
        interval_ms=interval,
        coverage=None if interval is None else COVERAGE if coverage is None else coverage,
        in_domain=None if inside is None else inside >= MOSTLY_SHARE,
        inside_share=inside,
        memory=analysis.memory(size, mode),
        model=device.name,
        learned=where.date,
        state=device.state,
        warnings=tuple(dict.fromkeys(remarks)),
        names=tuple(block.name for block in analysis.blocks),
        features=formula.features,
        block_counts=analysis.block_counts(size),
        block_terms=terms,
        call_ms=call_ms,
        precision=PRECISION_OF[mode.dtype],
        framework=where.framework,
        launch=None if steps is None else steps.launch,
        available_bytes=file.available_bytes,
        host_ms=None if steps is None else steps.host_ms,
        host_bound=None if steps is None else steps.host_bound,
        query=Query(device, graph, coverage),
    )
