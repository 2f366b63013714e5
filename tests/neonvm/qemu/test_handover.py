"""Which side may run the guest during a migration: the table, and every possible course."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import pytest

from deploy.neonvm.qemu import handover
from deploy.neonvm.qemu.handover import (
    HandoverStep,
    MigrationView,
    SourceState,
    TargetState,
    must_continue,
    next_step,
    source_state,
    target_state,
)


def written_table() -> dict[str, dict[TargetState, str]]:
    """The table in the module's docstring, by row."""
    lines = [line[4:] for line in (handover.__doc__ or "").splitlines() if line.startswith("    ")]
    head, *rows = (line for line in lines if line[:18].strip() and line.count("  ") > 4)
    starts = {target: head.index(target.name) for target in TargetState}
    ends = [*list(starts.values())[1:], None]
    return {
        row[:20].strip(): {
            target: row[start:end].strip() for (target, start), end in zip(starts.items(), ends, strict=True)
        }
        for row in rows
    }


def test_transition_table_matches_code() -> None:
    table = written_table()
    for source, target in product(SourceState, TargetState):
        assert next_step(MigrationView(source, target)).value == table[source.name][target]
        called_off = next_step(MigrationView(source, target, is_cancelled=True)).value
        released = next_step(MigrationView(source, target, is_released=True)).value
        hopeless = next_step(MigrationView(source, target, is_released=True, is_cancelled=True, is_hopeless=True)).value
        assert released == table["any, released"][target].partition(",")[0]
        assert hopeless == ("give up" if released == "wait" else released)
        is_lost = source is SourceState.GONE and target is not TargetState.RUNS
        assert called_off == ("give up" if is_lost else table["any, cancelled"][target].partition("  ")[0])


@dataclass(frozen=True)
class Course:
    """The truth about both ends at one moment of a move."""

    source: SourceState = SourceState.SENDING
    source_runs: bool = True
    target: TargetState = TargetState.FILLING
    target_ran: bool = False
    released: bool = False
    over: bool = False

    def events(self) -> Iterator[Course]:
        """All events that can happen next without an action."""
        yield self
        if self.source is not SourceState.GONE:
            yield replace(self, source=SourceState.GONE, source_runs=False)
        if self.target is not TargetState.GONE:
            yield replace(self, target=TargetState.GONE)
        if self.source is SourceState.SENDING:
            yield replace(self, source_runs=False)
            yield replace(self, source=SourceState.KEPT, source_runs=True)
            yield replace(self, source=SourceState.KEPT, source_runs=False)
            if self.target is TargetState.FILLING:
                yield replace(self, source_runs=False, target=TargetState.READY)
            if self.target is TargetState.READY:
                yield replace(self, source=SourceState.SENT, source_runs=False)

    def views(self) -> Iterator[tuple[MigrationView, Course]]:
        """All that can be observed: the source first, the target a moment later, and the true state at that moment."""
        for later in self.events():
            for source in {self.source, SourceState.SILENT}:
                for target in {later.target, TargetState.SILENT}:
                    for called_off, hopeless in product((False, True), repeat=2):
                        yield (
                            MigrationView(source, target, self.released, called_off, hopeless and self.released),
                            later,
                        )

    def after(self, step: HandoverStep) -> Iterator[Course]:
        """The possible next states of a step."""
        match step:
            case HandoverStep.WAIT:
                yield from self.events()
            case HandoverStep.RELEASE:
                assert self.target in {TargetState.READY, TargetState.GONE}
                yield replace(self, released=True)
                if self.target is TargetState.READY:
                    yield replace(self, released=True, target=TargetState.RUNS, target_ran=True)
                    yield replace(self, released=True, target=TargetState.GONE, target_ran=True)
            case HandoverStep.FINISH:
                yield replace(self, source=SourceState.GONE, source_runs=False, over=True)
            case HandoverStep.TAKE_BACK:
                lives = self.source is not SourceState.GONE
                yield replace(self, target=TargetState.GONE, source_runs=lives, over=True)
            case HandoverStep.GIVE_UP:
                yield replace(
                    self, source=SourceState.GONE, source_runs=False, target=TargetState.GONE, released=True, over=True
                )


def test_never_two_guests_or_stale_continue() -> None:
    seen, todo = {Course()}, [Course()]
    while todo:
        course = todo.pop()
        assert not (course.source_runs and course.target is TargetState.RUNS), course
        assert not (course.source_runs and course.target_ran), course
        if course.over:
            continue
        for view, truth in course.views():
            for following in truth.after(next_step(view)):
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
    ends = {(course.source_runs, course.target is TargetState.RUNS) for course in seen if course.over}
    assert ends == {(True, False), (False, True), (False, False)}


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("", SourceState.SENDING),
        ("setup", SourceState.SENDING),
        ("active", SourceState.SENDING),
        ("device", SourceState.SENDING),
        ("cancelling", SourceState.SENDING),
        ("completed", SourceState.SENT),
        ("failed", SourceState.KEPT),
        ("cancelled", SourceState.KEPT),
    ],
)
def test_only_completed_means_that_all_has_arrived(status: str, says: SourceState) -> None:
    assert source_state(status) is says


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("inmigrate", TargetState.FILLING),
        ("paused", TargetState.READY),
        ("prelaunch", TargetState.READY),
        ("running", TargetState.RUNS),
        ("io-error", TargetState.RUNS),
        ("guest-panicked", TargetState.RUNS),
    ],
)
def test_running_only_states_prove_target_ran(state: str, says: TargetState) -> None:
    assert target_state(state) is says


@pytest.mark.parametrize(
    ("source", "state", "continues"),
    [
        (SourceState.SENDING, "running", False),
        (SourceState.SENDING, "finish-migrate", False),
        (SourceState.SILENT, "paused", False),
        (SourceState.SENT, "postmigrate", True),
        (SourceState.KEPT, "paused", True),
        (SourceState.KEPT, "guest-panicked", False),
    ],
)
def test_only_paused_source_is_continued(source: SourceState, state: str, continues: bool) -> None:
    assert must_continue(source, state) is continues
