"""Architecture search: spaces, latency from few measurements, search.

from lolat import nas
nas.fit("fbnet", "samples.csv").predict(archs)  # ms of any networks, from ten measured ones
nas.search("fbnet", "rtx-5090-amp", objective=my_score, max_ms=15)
space = nas.spaces.fbnet.space()
nas.estimator(space, lolat.load("local")).latency(space.sample(1_000_000))
"""

from lolat.nas import spaces
from lolat.nas.count_tables import Part
from lolat.nas.estimators import LatencyEstimator, latency_tables
from lolat.nas.fewshot import FewShotModel, fit
from lolat.nas.latency import estimator
from lolat.nas.ranking import rank
from lolat.nas.search import search
from lolat.nas.space import Position, Space

__all__ = [
    "FewShotModel", "LatencyEstimator", "Part", "Position", "Space", "estimator", "fit",
    "latency_tables", "rank", "search", "spaces",
]  # fmt: skip
