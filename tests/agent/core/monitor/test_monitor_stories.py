"""A guest with a monitor: asked before memory is removed, notified of new memory, heeded immediately, and trusted only
so far.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from agent.core.actions import PatchVm, Plan, RequestPermit
from agent.core.events import Fault, MonitorAnswered, MonitorJoined, MonitorLost, MonitorNotified, Started, VmSeen
from agent.core.explain import explain
from agent.core.monitor.monitor_side import LONGEST_STATUS, printable
from agent.core.policy import MonitorPolicy
from protocol.guest.monitor_messages import (
    DownscaleRequest,
    DownscaleResult,
    LoadReport,
    UpscaleConfirmation,
    UpscaleNotification,
    UpscaleRequest,
)
from protocol.units import Bytes, Resources
from tests.agent.core.story import POLICY, Story, asks, cu, patches, settled, vm

LOAD = LoadReport(id=1, cause="cpu", span=0.06, cpu_busy=0.25, cpu_stall=1.0, runnable=3)
CONFIRMED = UpscaleConfirmation(2)


def monitored(size: float = 1) -> Story:
    """A settled agent whose monitor knows what the VM has."""
    return speaks(settled(size).happens(MonitorJoined(2)), UpscaleNotification(cu(size)), CONFIRMED)


def speaks(
    story: Story, message: DownscaleRequest | UpscaleNotification, answer: DownscaleResult | UpscaleConfirmation | None
) -> Story:
    """The agent sends exactly ``message``, and gets a response."""
    assert story.plans().message == message
    story.happens(Started(message))
    assert story.plans().message is None, "one message at a time"
    return story.happens(MonitorAnswered(answer))


def agrees(*, ok: bool = True, status: str = "") -> DownscaleResult:
    return DownscaleResult(2, ok=ok, status=status)


def idle(story: Story, until: float) -> Story:
    """Sample an idle guest each second until ``until``."""
    while story.now < until:
        story.at(story.now + 1.0).looks()
    return story


def test_joining_monitor_gets_the_size() -> None:
    story = monitored(2)
    assert explain(story.state, "default/vm-1", story.instant).monitor == {
        "version": 2,
        "counts_on": "2Gi",
        "refused": None,
        "refused_because": None,
        "reports": None,
        "right_reports": 0,
        "false_reports": 0,
    }


def test_shrink_waits_for_monitor() -> None:
    story = idle(monitored(2), 7.0)
    planned = story.plans()
    assert planned.because == "waiting for the guest's monitor to agree to a shrink"
    assert planned.actions[0] == patches(Resources(cu(1).cpu, cu(2).mem), 1), "CPU does not wait for it"
    speaks(story, DownscaleRequest(cu(1)), agrees())
    assert story.plans().actions[0] == patches(cu(1), 1)
    story.happens(Started(patches(cu(1), 1))).obeys()
    assert story.plans().message is None, "what it agreed to is what it knows"


def test_refused_shrink_keeps_memory_and_retries() -> None:
    story = speaks(idle(monitored(2), 7.0), DownscaleRequest(cu(1)), agrees(ok=False, status="programs use\n1 GiB"))
    assert story.plans().message is None
    assert story.plans().because == "keeping memory: the guest's monitor refused 1Gi: programs use 1 GiB"
    said = explain(story.state, "default/vm-1", story.instant).monitor
    assert (said["refused"], said["refused_because"]) == ("1Gi", "programs use 1 GiB")
    idle(story, 11.0)
    assert story.plans().message is None
    idle(story, 12.0)
    speaks(story, DownscaleRequest(cu(1)), agrees(ok=False, status="programs use 1 GiB"))
    assert story.state.monitor.refusal is not None
    assert story.state.monitor.refusal.retry_at == 22.0, "twice as long"
    idle(story, 22.0)
    speaks(story, DownscaleRequest(cu(1)), agrees())
    assert story.state.monitor.refusal is None


def test_refused_shrink_is_halved_until_agreed() -> None:
    """NeonVM's monitor agrees if programs fill less than 85 % of the rest: here to 5Gi, not to 1Gi."""
    story, targets = idle(monitored(8), 7.0), list[Bytes]()
    while isinstance(message := story.plans().message, DownscaleRequest):
        targets.append(message.target.mem)
        speaks(story, message, agrees(ok=message.target.mem >= cu(5).mem, status="too low"))
    assert targets == [cu(size).mem for size in (1, 5, 1, 3, 4)]
    assert story.plans().because == "keeping memory: the guest's monitor refused 4Gi: too low"
    assert story.acts()[0] == patches(Resources(cu(1).cpu, cu(5).mem), 1)
    assert idle(story.obeys(), 11.0).plans().message is None
    speaks(idle(story, 12.0), DownscaleRequest(cu(1)), agrees(ok=False, status="too low"))
    assert story.state.monitor.refusal is not None
    assert story.state.monitor.refusal.retry_at == 22.0, "the halves have not counted"


def test_failed_answer_counts_as_refusal() -> None:
    story = speaks(idle(monitored(2), 7.0), DownscaleRequest(cu(1)), None)
    assert story.plans().because == "keeping memory: the guest's monitor refused 1Gi: internal error in the monitor"


def test_an_answer_without_a_question_changes_nothing() -> None:
    story = monitored(2)
    before = replace(story.state.monitor)
    story.happens(MonitorAnswered(agrees()))
    assert story.state.monitor == before


def test_monitor_cannot_refuse_lowered_bound() -> None:
    story = speaks(idle(monitored(4), 7.0), DownscaleRequest(cu(1)), agrees(ok=False))
    story.sees(vm(cu(4), version=2, high=2))
    patch = story.plans().actions[0]
    assert isinstance(patch, PatchVm)
    assert patch.target.mem == cu(2).mem


def test_monitor_hears_of_memory_once_online() -> None:
    story = monitored(1).looks(used=1.0).at(2.0).looks(used=1.0)
    assert story.acts()[-1] == asks(cu(2), cu(1), 2, used=1.0)
    story.answers(cu(2)).acts()
    assert story.plans().message is None, "ordered, but not there yet"
    seen = story.state.vm.observed
    assert seen is not None
    story.happens(VmSeen(structs.replace(seen, use=cu(2), version=2)))
    assert story.plans().message is None
    story.obeys()
    speaks(story, UpscaleNotification(cu(2)), CONFIRMED)
    assert story.plans().message is None


def failing() -> Story:
    """A monitor that fails to process the message, at first and five seconds later."""
    story = speaks(settled(2).happens(MonitorJoined(1)), UpscaleNotification(cu(2)), None)
    began = story.now
    assert idle(story, began + 4.0).plans().message is None
    return speaks(idle(story, began + 5.0), UpscaleNotification(cu(2)), None)


def test_failed_growth_message_is_repeated() -> None:
    """NeonVM's answers ``InternalError`` while its database is away, and would keep its file cache small forever."""
    story = failing()
    speaks(idle(story, story.now + 10.0), UpscaleNotification(cu(2)), CONFIRMED)
    assert story.state.monitor.failed_notice is None


def test_unconfirmed_growth_blocks_nothing_else() -> None:
    story = failing()
    speaks(idle(story, story.now + 9.0), DownscaleRequest(cu(1)), agrees())
    assert story.state.monitor.failed_notice is None


def test_agreed_shrink_can_be_withdrawn() -> None:
    story = speaks(idle(monitored(2), 7.0), DownscaleRequest(cu(1)), agrees())
    story.at(8.0).looks(used=1.0)
    assert story.plans().message == UpscaleNotification(cu(2))


GONE = MonitorLost(Fault.GUEST, "hung up")
KEPT = "keeping memory: lost the guest's monitor, which may reconnect"


def shrinks(story: Story) -> bool:
    """True if memory is taken away now."""
    return any(isinstance(each, PatchVm) and each.target.mem < cu(2).mem for each in story.plans().actions)


def test_monitor_gone_for_minute_is_ignored() -> None:
    """It refused, and then its guest is too busy to respond, or restarts: that is no consent."""
    story = speaks(idle(monitored(2), 7.0), DownscaleRequest(cu(1)), agrees(ok=False))
    story.happens(GONE)
    assert (story.plans().because, story.plans().message, shrinks(story)) == (KEPT, None, False)
    story.at(30.0).happens(GONE)
    assert (idle(story, 66.0).plans().because, shrinks(story)) == (KEPT, False)
    assert (idle(story, 67.0).plans().message, shrinks(story)) == (None, True)
    troubles = explain(story.state, "default/vm-1", story.instant).troubles
    assert [(each["with_"], each["reason"]) for each in troubles] == [("monitor", "hung up")]
    story.happens(MonitorJoined(1))
    assert explain(story.state, "default/vm-1", story.instant).troubles == []


def test_agreed_shrink_survives_lost_monitor() -> None:
    story = speaks(idle(monitored(2), 7.0), DownscaleRequest(cu(1)), agrees()).happens(GONE)
    assert story.plans().actions[0] == patches(cu(1), 1)


def test_returning_monitor_is_asked_again() -> None:
    story = speaks(idle(monitored(2), 7.0), DownscaleRequest(cu(1)), agrees(ok=False)).happens(GONE)
    speaks(idle(story, 10.0).happens(MonitorJoined(2)), UpscaleNotification(cu(2)), CONFIRMED)
    speaks(idle(story, 12.0), DownscaleRequest(cu(1)), agrees(ok=False))
    assert shrinks(idle(story.happens(GONE), 71.0)) is False
    assert shrinks(idle(story, 72.0)) is True


def test_crashing_monitor_delays_shrink_for_one_minute() -> None:
    story = idle(monitored(2), 7.0)
    for until in (7.0, 30.0, 60.0):
        speaks(idle(story, until).happens(MonitorJoined(2)), UpscaleNotification(cu(2)), CONFIRMED)
        assert story.plans().message == DownscaleRequest(cu(1))
        story.happens(Started(DownscaleRequest(cu(1)))).happens(GONE)
    assert (shrinks(idle(story, 66.0)), shrinks(idle(story, 67.0))) == (False, True)


def test_memory_request_grows_one_step_and_expires() -> None:
    story = (
        idle(monitored(1), 3.0).happens(MonitorNotified(UpscaleRequest(1))).happens(MonitorNotified(UpscaleRequest(3)))
    )
    assert story.plans().because == "growing: the guest's monitor requested memory"
    assert story.acts() == [asks(cu(2), cu(1), 2)]
    story.answers(cu(2)).acts()
    story.obeys()
    speaks(story, UpscaleNotification(cu(2)), CONFIRMED)
    assert idle(story, 12.0).plans().because == "holding: the guest's monitor requested memory"
    assert idle(story, 13.0).plans().because == "waiting for the guest's monitor to agree to a shrink"


def test_load_report_grows_before_next_scrape() -> None:
    story = monitored(1).at(1.2).happens(MonitorNotified(LOAD))
    assert story.plans().because == (
        "growing: the guest's monitor reported load: tasks waited 100% of the time, 3 runnable"
    )
    assert story.acts() == [asks(cu(8), cu(1), 2)]
    assert story.answers(cu(8)).acts() == [patches(cu(8), 1)]
    story.obeys().at(2.0).looks(cores=0.5).at(3.0).looks(cores=1.0).at(4.3).looks(cores=1.0)
    assert explain(story.state, "default/vm-1", story.instant).monitor["right_reports"] == 1


def test_unconfirmed_report_counts_as_false() -> None:
    story = idle(monitored(1).happens(MonitorNotified(LOAD)), 5.0)
    found = explain(story.state, "default/vm-1", story.instant).monitor
    assert (found["right_reports"], found["false_reports"], found["reports"]) == (0, 1, None)


def test_new_connections_start_growth() -> None:
    burst = replace_report(LOAD, cpu_busy=0.0, cpu_stall=0.0, new_processes=5)
    story = monitored(1).happens(MonitorNotified(burst))
    assert story.plans().because == ("growing: the guest's monitor reported load: 5 new connections within a second")
    assert story.acts() == [asks(cu(2), cu(1), 2)], "no more than as much again"


def test_reason_mentions_connection_activity() -> None:
    grown = monitored(1).happens(MonitorNotified(replace_report(LOAD, active=3, waiting=1))).plans().because
    assert grown == (
        "growing: the guest's monitor reported load: tasks waited 100% of the time, 3 runnable,"
        " 3 connections active, 1 waiting for locks"
    )
    burst = replace_report(LOAD, cpu_busy=0.0, cpu_stall=0.0, new_processes=5, active=4)
    assert (
        monitored(1)
        .happens(MonitorNotified(burst))
        .plans()
        .because.endswith("5 new connections within a second, 4 connections active")
    )


def test_no_alarm_at_maximum() -> None:
    story = monitored(8).happens(MonitorNotified(LOAD))
    assert story.state.monitor.alarm is None


def test_only_stronger_report_replaces_alarm() -> None:
    story = monitored(1).happens(MonitorNotified(replace_report(LOAD, cpu_stall=0.5)))
    first = story.state.monitor.alarm
    story.happens(MonitorNotified(replace_report(LOAD, cpu_stall=0.4)))
    assert story.state.monitor.alarm == first
    story.happens(MonitorNotified(LOAD))
    second = story.state.monitor.alarm
    assert first is not None
    assert second is not None
    assert (second.before, second.need > first.need) == (first.before, True)


def test_denied_load_is_reported_again_without_scrapes() -> None:
    """The guest is too busy to be scraped, and its node is full until later."""
    story = monitored(1).at(1.2).happens(MonitorNotified(LOAD))
    assert story.acts() == [asks(cu(8), cu(1), 2)]
    story.answers(cu(1)).at(4.5)
    assert story.acts() == [asks(cu(1), cu(1), 3)], "the report is outdated"
    story.answers(cu(1)).at(5.2).happens(MonitorNotified(LOAD))
    assert story.acts() == [asks(cu(8), cu(1), 4)]


def test_reports_are_ignored() -> None:
    """If the policy says so, without a monitor, and while the guest settles after a shrink."""
    silent = Story(replace(POLICY, monitor=MonitorPolicy(hold=POLICY.timing.settle.__class__(0.0))))
    silent.sees(vm(cu(1))).happens(MonitorJoined(2)).happens(MonitorNotified(LOAD))
    assert silent.state.monitor.alarm is None
    gone = settled(1).happens(MonitorNotified(LOAD))
    assert gone.state.monitor.alarm is None
    unseen = Story().happens(MonitorJoined(2)).happens(MonitorNotified(LOAD))
    assert unseen.state.monitor.alarm is None
    assert unseen.plans() == Plan((), None, "the object has not been read yet")
    shrinking = speaks(idle(monitored(2), 7.0), DownscaleRequest(cu(1)), agrees())
    shrinking.happens(Started(patches(cu(1), 1))).obeys().happens(MonitorNotified(LOAD))
    assert shrinking.state.monitor.alarm is None


def test_guest_text_is_cut_and_printable() -> None:
    assert printable("a\x1b[2Jb") == "a [2Jb"
    assert len(printable("x" * 5000)) == LONGEST_STATUS


def replace_report(report: LoadReport, **changes: float) -> LoadReport:
    fields = {name: getattr(report, name) for name in report.__struct_fields__}
    return LoadReport(**{**fields, **changes})


MESSAGES = st.one_of(
    st.just(MonitorJoined(2)),
    st.just(MonitorLost(Fault.GUEST, "hung up")),
    st.just(MonitorNotified(UpscaleRequest(1))),
    st.builds(lambda ok: MonitorAnswered(agrees(ok=ok)), st.booleans()),
    st.just(MonitorAnswered(None)),
    st.builds(
        lambda busy, stall, runnable, new: MonitorNotified(
            LoadReport(1, "cpu", 0.1, busy, stall, runnable, new_processes=new)
        ),
        st.floats(0.0, 1024.0),
        st.floats(0.0, 1.0),
        st.integers(0, 1_000_000),
        st.integers(0, 1_000_000),
    ),
)


@given(st.lists(st.tuples(MESSAGES, st.floats(0.0, 2.0), st.booleans()), max_size=30))
def test_monitor_cannot_exceed_bounds_or_permit(
    steps: list[tuple[MonitorNotified, float, bool]],
) -> None:
    story = settled(2)
    for event, wait, looks in steps:
        story.at(story.now + wait).happens(event)
        if looks:
            story.looks()
        planned = story.plans()
        if planned.message is not None:
            story.happens(Started(planned.message))
        for action in story.acts():
            if isinstance(action, RequestPermit):
                assert action.request.resources.within(cu(8))
                story.answers(action.request.resources.at_most(cu(5)))
            else:
                story.obeys()
        seen = story.state.vm.observed
        assert seen is not None
        assert cu(1).within(seen.use)
        assert seen.use.within(cu(5))
        assert Bytes(0) < seen.use.mem
