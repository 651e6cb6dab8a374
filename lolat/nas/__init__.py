"""Architecture search: spaces, predictors from few measurements, search.

from lolat import nas
nas.fit("fbnet", "samples.csv").predict(archs)  # any network's, from ten measured
nas.search("fbnet", "rtx-5090-amp", objective=my_score, max_ms=15)
space = nas.spaces.fbnet.space()
space.scorer(lolat.load("local")).latency(space.sample(1_000_000))
"""

from lolat.nas import spaces
from lolat.nas.fewshot import fit
from lolat.nas.pareto import search
from lolat.nas.sampled import NasModel
from lolat.nas.scorer import Scorer
from lolat.nas.scoring import score
from lolat.nas.space import Position, Space
from lolat.nas.tables import Part

__all__ = ["NasModel", "Part", "Position", "Scorer", "Space", "fit", "score", "search", "spaces"]
