"""What a watcher sees of a run in groups: one stage, and how long the rest takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from microbench.jobs import Job, Settings
from microbench.journal import Journal
from microbench.learn_layers import EARLY_VISITS, MOST_NOTES, Pace
from microbench.runner import Runner
from tests.microbench.fakes import FakeDevice, Watcher

JOBS = [Job(str(i), {}) for i in range(40)]
SETTINGS = Settings(rounds=2, slice_s=0.0, extra_s=1e9, together=16, least_quiet=2)


def run(device: FakeDevice, watcher: Watcher, journal: Journal | None = None) -> None:
    with Runner("fake", "cpu", watcher, device.start, device.clock) as runner:
        runner.progress = Pace(watcher, len(JOBS), SETTINGS.rounds, runner.clock)
        runner.run(JOBS, Job("reference", {}), SETTINGS, journal)


def test_one_stage_whose_steps_are_builds_and_visits() -> None:
    device, watcher = FakeDevice(), Watcher()
    device.noisy = {"3", "20"}  # visited once more and again
    run(device, watcher)
    assert watcher.stages == [("measuring", 120)]
    assert watcher.steps == 120
    assert device.keys("time").count("20") > 2


@pytest.mark.parametrize(("each_s", "unit_s", "unit"), [(2.0, 60, "minutes"), (0.1, 1, "s")])
def test_the_time_left_is_that_of_the_pace_so_far(each_s: float, unit_s: int, unit: str) -> None:
    device, watcher = FakeDevice(), Watcher()
    device.request_s = each_s
    run(device, watcher)
    # After 16 builds and 30 visits: 24 builds and 80 - 30 visits to go, each as long as a request. (The
    # reference was built too, in the first visit's time: 31 requests in 30 visits.)
    left = each_s * (24 + 50 * 31 / EARLY_VISITS) / unit_s
    assert watcher.notes == [f"about {left:.0f} {unit} for the layers that are left"]
    assert watcher.steps_at_note == [16 + 30]


@pytest.mark.parametrize("after", [1, 32, 44, 79, 80])
def test_what_was_measured_before_is_passed_over(tmp_path: Path, after: int) -> None:
    journal = Journal(tmp_path / "j", {}, 0.0)
    run(FakeDevice(), Watcher(), journal)
    del journal.records[after:]
    device, watcher = FakeDevice(), Watcher()
    device.request_s = 2.0
    run(device, watcher, journal)
    journal.close()
    assert len(device.keys("time")) == 80 - after
    assert watcher.stages == [("measuring", 120)]
    assert watcher.steps == 120
    assert len(watcher.notes) == (1 if 80 - after > EARLY_VISITS else 0)


def test_only_the_first_of_many_remarks_are_shown() -> None:
    device, watcher = FakeDevice(), Watcher()
    device.request_s = 2.0
    for job in JOBS[:20]:
        device.refuses["prepare", job.key] = 1
    run(device, watcher)
    refused = [n for n in watcher.notes if "ResourceExhausted" in n]
    assert len(refused) == MOST_NOTES
    assert "more remarks like these are not shown" in watcher.notes
    assert any("layers that are left" in n for n in watcher.notes)
