"""What a run has found so far: raw times, what failed, what is to be tried again; as the journal has it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from microbench.journal import Journal
from microbench.plan import Job, Settings
from microbench.timer import ENOUGH_CALM, Visit


@dataclass
class Outcome:
    """Raw times: per job its visits; what failed and why.

    `stopped`: jobs that killed the worker after they had been timed often enough; their visits count,
    but they get no more. `deaths`: how often a job did so, in this run and its earlier parts.
    `forgivable`: jobs whose last failure was their first death, to be tried again by a resumed run.
    """

    visits: dict[str, list[Visit]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    deaths: Counter[str] = field(default_factory=Counter)
    forgivable: set[str] = field(default_factory=set)

    def over(self, key: str) -> bool:
        """Whether a job gets no more visits."""
        return key in self.failures or key in self.stopped

    def forgive(self) -> list[str]:
        """Let the jobs of a first death be tried again, which may have been the system's; their keys."""
        again = sorted(self.forgivable)
        for key in again:
            self.failures.pop(key, None)
            self.stopped.discard(key)
        self.forgivable.clear()
        return again

    def reference(self) -> list[float]:
        """All times of the reference block, ms."""
        return [t for visits in self.visits.values() for v in visits for t in v.reference]


def missing(job: Job, outcome: Outcome, settings: Settings) -> bool:
    """Whether `job` still has to be visited."""
    return not outcome.over(job.key) and len(outcome.visits.get(job.key, ())) < settings.rounds


def keep(outcome: Outcome, journal: Journal | None, record: dict[str, Any]) -> None:
    """Put a record into the journal first, then into the outcome."""
    if journal is not None:
        journal.append({**record, "at": round(time.time(), 3)})
    recall(outcome, [record])


def recall(outcome: Outcome, records: Sequence[dict[str, Any]]) -> None:
    """Put a journal's records into an outcome."""
    for record in records:
        key = record["key"]
        if "failed" in record:
            died = record.get("died") is True
            outcome.deaths[key] += died
            if died and outcome.deaths[key] == 1:
                outcome.forgivable.add(key)
            else:
                outcome.forgivable.discard(key)
            if died and sum(len(v.samples) for v in outcome.visits.get(key, ())) >= ENOUGH_CALM:
                outcome.stopped.add(key)
                continue
            outcome.failures[key] = record["failed"]
            outcome.visits.pop(key, None)
        else:
            taken = Visit(
                tuple(record["samples_ms"]),
                tuple(record["reference_ms"]),
                tuple(record.get("at_s", ())),
                str(record.get("before") or ""),
                record.get("others_s"),
            )
            outcome.visits.setdefault(key, []).append(taken)
