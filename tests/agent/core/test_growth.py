"""Latency of growth, counted from the need to the new size, including everything in between."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.core.goal import Goal
from agent.core.growth import MAX_OPEN, PendingGrowth, Wait, WaitStage, follow
from protocol.units import Instant, Seconds
from tests.agent.core.story import Story, cu, settled, vm


@dataclass
class Waiting:
    """A story, and the waits that its events ended."""

    story: Story
    pending: tuple[PendingGrowth, ...] = ()

    def needs(self, size: float) -> list[Wait]:
        """The guest needs this many compute units."""
        need = cu(size)
        self.story.state.guest.goal = Goal(need.cpu, need.mem, ())
        return self.follows()

    def permits(self, size: float) -> list[Wait]:
        """The scheduler grants this size."""
        self.story.state.scheduler.ceiling = cu(size)
        return self.follows()

    def has(self, size: float) -> list[Wait]:
        """The object reports this size."""
        seen = self.story.state.vm.observed
        assert seen is not None
        self.story.state.vm.observed = replace(seen, use=cu(size), actual=cu(size))
        return self.follows()

    def follows(self) -> list[Wait]:
        """The waits that have ended."""
        self.pending, ended = follow(self.story.state, self.pending, self.story.instant)
        return list(ended)

    def at(self, now: float) -> Waiting:
        """Moves on to ``now``."""
        self.story.at(now)
        return self


def waits(stage: WaitStage, *took: float) -> list[Wait]:
    return [Wait(stage, Seconds(each)) for each in took]


def test_growth_times_permit_and_size() -> None:
    waiting = Waiting(settled(1))
    assert waiting.at(2.0).needs(3) == []
    assert waiting.at(2.5).permits(4) == waits(WaitStage.PERMIT, 0.5)
    assert waiting.at(3.0).has(2) == []
    assert waiting.at(4.0).has(4) == waits(WaitStage.SIZE, 2.0)
    assert waiting.pending == ()


def test_growth_within_permit_has_no_permit_wait() -> None:
    waiting = Waiting(settled(1))
    waiting.permits(4)
    assert waiting.at(2.0).needs(3) == waits(WaitStage.PERMIT, 0.0)


def test_size_without_permit_ends_both_waits() -> None:
    waiting = Waiting(settled(1))
    waiting.at(2.0).needs(3)
    assert waiting.at(3.0).has(3) == [*waits(WaitStage.PERMIT, 1.0), *waits(WaitStage.SIZE, 1.0)]


def test_risen_need_starts_second_wait() -> None:
    waiting = Waiting(settled(1))
    waiting.at(2.0).needs(2)
    waiting.at(5.0).needs(4)
    assert waiting.at(6.0).permits(4) == [*waits(WaitStage.PERMIT, 4.0), *waits(WaitStage.PERMIT, 1.0)]
    assert waiting.at(7.0).has(2) == waits(WaitStage.SIZE, 5.0)
    assert waiting.at(8.0).has(4) == waits(WaitStage.SIZE, 3.0)


def test_fallen_need_lowers_size_keeps_start() -> None:
    waiting = Waiting(settled(1))
    waiting.at(2.0).needs(4)
    waiting.at(3.0).needs(2)
    assert waiting.pending == (PendingGrowth(cu(2), Instant(2.0)),)
    waiting.at(4.0).needs(4)
    assert waiting.at(5.0).has(2) == [*waits(WaitStage.PERMIT, 3.0), *waits(WaitStage.SIZE, 3.0)]


def test_a_need_that_is_gone_is_forgotten() -> None:
    waiting = Waiting(settled(1))
    waiting.at(2.0).needs(4)
    assert (waiting.at(3.0).needs(1), waiting.pending) == ([], ())


def test_nothing_waits_for_more_than_the_vms_maximum() -> None:
    waiting = Waiting(settled(8))
    assert (waiting.at(2.0).needs(20), waiting.pending) == ([], ())


def test_foreign_vm_has_no_waits() -> None:
    waiting = Waiting(settled(1))
    waiting.at(2.0).needs(4)
    seen = waiting.story.state.vm.observed
    assert seen is not None
    for other in (replace(seen, ours=False), replace(seen, enabled=False)):
        waiting.story.state.vm.observed = other
        assert follow(waiting.story.state, waiting.pending, waiting.story.instant) == ((), ())
    waiting.story.state.vm.observed = None
    assert follow(waiting.story.state, waiting.pending, waiting.story.instant) == ((), ())


def test_a_guest_that_says_nothing_asks_for_nothing() -> None:
    waiting = Waiting(settled(1))
    waiting.at(2.0).needs(4)
    waiting.story.state.guest.goal = Goal(None, None, ())
    assert (waiting.follows(), waiting.pending) == ([], ())


@given(st.lists(st.tuples(st.sampled_from(["needs", "has", "permits"]), st.integers(1, 40)), max_size=60))
def test_open_waits_are_bounded_and_ordered(steps: list[tuple[str, int]]) -> None:
    waiting = Waiting(Story().sees(vm(cu(1), high=40)))
    for second, (what, size) in enumerate(steps):
        for wait in getattr(waiting.at(float(second)), what)(size):
            assert 0.0 <= wait.took <= second
        seen = waiting.story.state.vm.observed
        assert seen is not None
        assert len(waiting.pending) <= MAX_OPEN
        assert [growth.since for growth in waiting.pending] == sorted(growth.since for growth in waiting.pending)
        assert not any(growth.size.within(seen.actual) for growth in waiting.pending)
