"""What the terms of a formula are called in front of people, and what a device is bound by."""

from __future__ import annotations

from collections.abc import Sequence

from lolat.prediction import CALL, BlockPrediction, Prediction

TERMS = {
    "acts": "convolution output",
    "inp": "convolution input",
    "flops": "compute",
    "traffic": "memory traffic",
    "weights": "reading weights",
    "ops": "starting operations",
    "patches": "grouped convolution",
    "heavy": "gelu, softmax, norms",
    CALL: "fixed cost",
}
MOVING = {"acts", "inp", "traffic"}
MOST_BOTTLENECKS = 3


def bottlenecks(prediction: Prediction) -> list[BlockPrediction]:
    """The blocks that stand out: at most three, each at least half as long again as the average."""
    blocks = [b for b in prediction.blocks if b.name != CALL]
    if not blocks:
        return []
    average = sum(b.share for b in blocks) / len(blocks)
    top = sorted(blocks, key=lambda b: -b.latency_ms)[:MOST_BOTTLENECKS]
    return [b for b in top if b.share >= 1.5 * average] or top[:1]


def bottleneck_sentence(prediction: Prediction) -> str:
    """Which blocks take most of the time, and why."""
    top = bottlenecks(prediction)
    if not top:
        return "There is nothing to compute."
    time = sum(b.share for b in top)
    all_flops = prediction.counts["flops"]
    flops = sum(b.counts["flops"] for b in top) / all_flops if all_flops else 0.0
    terms: dict[str, float] = {}
    for block in top:
        for term, value in block.terms_ms.items():
            terms[term] = terms.get(term, 0.0) + value
    moving = sum(v for t, v in terms.items() if t in MOVING)
    most = max(terms, key=lambda t: terms[t]) if terms else CALL
    why = (
        "they compute" if most == "flops" and terms["flops"] >= moving
        else "they move data rather than compute" if moving >= max(terms.values(), default=0.0)
        else f"most of it is {TERMS.get(most, most)}"
    )  # fmt: skip
    if len(top) == 1:
        why = why.replace("they compute", "it computes").replace("they move", "it moves")
    names = enumeration([b.name.split(" · ")[0] for b in top])
    verb = "takes" if len(top) == 1 else "take"
    title = "Bottleneck" if len(top) == 1 else "Bottlenecks"
    return (
        f"{title}: {names} {verb} {100 * time:.0f} % of the time for {100 * flops:.0f} % of the "
        f"MACs: {why}."
    )


def enumeration(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
