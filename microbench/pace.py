"""How far a run of many small jobs is: one stage for all its groups, and early on how long it will take."""

from __future__ import annotations

from microbench.runner import Progress
from microbench.timer import Clock

EARLY_VISITS = 30  # after so many the pace is known
PASSED_OVER_S = 1e-3  # a step that takes less was no visit
MOST_NOTES = 10  # of thousands of jobs many may fail, and the run says at its end how many


class Pace:
    """Progress for a runner that passes a single stage on to `shown`: a step per job built and per visit.

    `jobs` are visited `rounds` times each, in groups of which one is done before the next begins; what
    was measured before is passed over in a step, and visits made once more are not shown. After some
    visits it says how long the rest takes.
    """

    def __init__(self, shown: Progress, jobs: int, rounds: int, clock: Clock) -> None:
        self.shown, self.jobs, self.rounds, self.clock = shown, jobs, rounds, clock
        self.stage = ""
        self.last = 0.0  # when the stage or its last step began
        self.begun = self.told = False
        self.notes = 0
        self.seen = self.left = 0  # jobs of the groups so far; steps of this group
        self.building = _Mean()
        self.visiting = _Mean()

    def start(self, text: str, total: int) -> None:
        """A stage of a group begins."""
        if not self.begun:
            self.shown.start("measuring", self.jobs * (1 + self.rounds))
            self.begun = True
        if text == "building":
            self.building = _Mean()
        elif text == "measuring":
            group = total // self.rounds
            self.seen += group
            self.left = total
            for _ in range(group - self.building.number):
                self.shown.step()
        self.stage, self.last = text, self.clock()

    def step(self) -> None:
        """A step of the stage: a job was built, or a visit begins."""
        now = self.clock()
        took, self.last = now - self.last, now
        if self.stage == "building":
            self.building.add(took)
        elif self.stage == "measuring":
            if took > PASSED_OVER_S:  # of the visit before
                self.visiting.add(took)
            if self.visiting.number >= EARLY_VISITS and self.building.number and not self.told:
                self._tell()
            self.left -= 1
        else:
            return
        self.shown.step()

    def note(self, text: str) -> None:
        """A remark for the user; what comes after MOST_NOTES is not shown."""
        self.notes += 1
        if self.notes <= MOST_NOTES:
            self.shown.note(text)
        elif self.notes == MOST_NOTES + 1:
            self.shown.note("more remarks like these are not shown")

    def _tell(self) -> None:
        """How long the rest takes, if it goes on like this."""
        self.told = True
        rest = self.jobs - self.seen
        left = rest * self.building.mean + (rest * self.rounds + self.left) * self.visiting.mean
        words = f"{left / 60:.0f} minutes" if left >= 90 else f"{left:.0f} s"
        self.shown.note(f"about {words} for the layers that are left")


class _Mean:
    """The mean of numbers that come one by one."""

    def __init__(self) -> None:
        self.number, self.sum = 0, 0.0

    def add(self, value: float) -> None:
        """One more."""
        self.number, self.sum = self.number + 1, self.sum + value

    @property
    def mean(self) -> float:
        """Their mean; there must be one."""
        return self.sum / self.number
