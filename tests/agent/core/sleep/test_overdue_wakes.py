"""How long a wake has been overdue, which an alert reports."""

from __future__ import annotations

from msgspec.structs import replace

from protocol.guest.sleep import SleepReport, SleepState
from tests.agent.core.sleep.sleepers import answered, asleep, seen, shows
from tests.agent.core.story import GIB, Story


def overdue(story: Story) -> float:
    return story.state.sleep.wake_overdue(seen(story).sleep, story.instant)


def starting(at: float, saved: int) -> Story:
    """A VM that wakes at 1000 s, gets its permit at ``at``, and then reads ``saved`` bytes."""
    story = shows(asleep().at(1000.0), "Waking", SleepState.WAKING)
    answered(story)
    report = SleepReport("a", SleepState.WAKING, saved=saved)
    return shows(story.at(at), "Running", SleepState.WAKING, sleep=report)


def test_wait_for_the_permit_is_overdue_at_once() -> None:
    """A large memory is no excuse as long as it is not being read."""
    assert overdue(asleep().at(1000.0)) == 0.0
    report = SleepReport("a", SleepState.WAKING, saved=64 * GIB)
    story = shows(asleep().at(1000.0), "Waking", SleepState.WAKING, sleep=report)
    assert overdue(story.at(1040.0)) == 40.0


def test_reading_a_large_memory_is_expected() -> None:
    """64 GiB from a disk that reads 100 MiB a second. Earlier waiting time still counts."""
    story = starting(1010.0, 64 * GIB)
    story.sees(replace(seen(story), version=seen(story).version + 1))
    assert overdue(story.at(1011.0)) == 10.0
    assert overdue(story.at(1010.0 + 655.0)) == 10.0
    assert round(overdue(story.at(1010.0 + 655.36 + 25.0))) == 35


def test_small_guest_is_overdue_soon() -> None:
    assert overdue(starting(1001.0, 150 * 2**20).at(1041.0)) == 39.5


def test_running_guest_is_not_overdue() -> None:
    story = shows(starting(1001.0, 0).at(1002.0), "Running", SleepState.AWAKE)
    assert overdue(story.at(1100.0)) == 0.0
    again = shows(story.at(2000.0), "Running", SleepState.WAKING, sleep=SleepReport("b", SleepState.WAKING, saved=GIB))
    assert overdue(again.at(2005.0)) == 0.0
