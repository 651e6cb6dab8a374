"""What runs keep, cut at every byte: it is used up to the cut or refused in one line, never misread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.nas.pareto import Scores
from lolat.nas.spaces import nasbench201
from lolat.readers.cache import Cache
from microbench.journal import Journal
from tests import synthetic

RECORDS = [
    {"key": "net x1", "samples_ms": [1.5], "reference_ms": [], "at_s": [1.6e9], "before": ""},
    {"key": "start of a with sgd", "start_ms": 12.5},
    {"key": "b x8", "failed": "not enough memory"},
    {"key": "a x1", "samples_ms": [0.25], "reference_ms": [7.0], "at_s": [1.7e9], "before": "net x1"},
]  # fmt: skip
SPACE = nasbench201.space()
NETWORK = synthetic.network(1, 4, 8)


def journal(path: Path) -> Sequence[Any]:
    """The measurements of a run, of which RECORDS are added where there is none."""
    found = Journal(path, {"blocks": 1}, 1.7e9)
    kept = list(found.records)
    if not kept:
        for record in RECORDS:
            found.append(record)
    found.close()
    return kept


def scores(path: Path) -> Sequence[Any]:
    """The scores of a search, which adds five to an empty file."""
    scores = Scores(SPACE, lambda candidate: sum(candidate), path)
    rows = np.array([[index, 0, 1, 2, 3, index] for index in range(5)])
    kept = rows[: scores.reused]
    assert all(scores.score(row) == sum(row) for row in kept)
    assert scores.computed == 0
    if not scores.reused:
        for row in rows:
            scores.score(row)
    return [tuple(row) for row in kept]


def graph(path: Path) -> Sequence[Any]:
    """A network in the cache."""
    cache = Cache(path.parent)
    if not path.exists():
        cache.read("keras:Mine", (), lambda: NETWORK)
        (made,) = path.parent.iterdir()
        made.rename(path)
    kept = path.parent / f"{cache.key('keras:Mine', ())}.json.gz"
    content = path.read_bytes()
    path.rename(kept)
    made = []
    found = cache.read("keras:Mine", (), lambda: made.append(1) or synthetic.network(1))
    path.write_bytes(content)
    kept.unlink()
    return [] if made else [found]


@pytest.mark.parametrize("kept_by", [journal, scores, graph])
def test_cut_at_every_byte(kept_by: Callable[[Path], Sequence[Any]], tmp_path: Path) -> None:
    path = tmp_path / "whole" / "kept.npz"
    path.parent.mkdir()
    kept_by(path)
    whole, content = kept_by(path), path.read_bytes()
    assert whole
    seen = set()
    for cut in range(1, len(content), max(1, len(content) // 1500)):
        other = tmp_path / f"cut{cut}" / path.name
        other.parent.mkdir()
        other.write_bytes(content[:cut])
        try:
            found = kept_by(other)
        except InputError as error:
            assert str(error).isprintable()  # noqa: PT017 - most cuts are no error
            continue
        assert list(found) == list(whole[: len(found)]), cut
        seen.add(len(found))
    # Of what is kept line by line only the last one is lost; the others are whole or not there.
    assert seen == (set(range(len(whole) + (kept_by is journal))) if len(whole) > 1 else {0})
