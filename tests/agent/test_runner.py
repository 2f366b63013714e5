"""The life of one VM's agent, with time moved by hand and faults at every port."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from agent.core.events import Fault
from agent.core.explain import explain
from agent.ports import PortError, RefusedError
from protocol.floors import Floor, encode_floor
from protocol.guest.monitor_messages import (
    DownscaleRequest,
    DownscaleResult,
    LoadReport,
    UpscaleConfirmation,
    UpscaleNotification,
)
from protocol.names import ANNOTATION_BOUNDS, ANNOTATION_CONFIG, ANNOTATION_FLOOR
from protocol.units import Resources
from protocol.virtual_machine import Bounds
from tests.agent.core.story import POLICY, cu, holding
from tests.agent.fake_monitor import FakeMonitor
from tests.agent.fake_ports import RunnerFixture

AWAY = PortError(Fault.NETWORK, "away")


async def test_load_grows_and_idle_shrinks() -> None:
    async with RunnerFixture() as fixture:
        await fixture.clock.advance(1.0)
        fixture.guest.cores = 0.25
        await fixture.clock.advance(1.0)
        assert fixture.vm_api.patched == [(cu(2), 1)], "within one second of the load"
        fixture.guest.cores = 0.0
        await fixture.clock.advance(7.0)
        assert fixture.vm_api.patched == [(cu(2), 1), (cu(1), 2)]
        assert fixture.scheduler.asked == [cu(1), cu(1), cu(2), cu(1)], "with its load as soon as that is known"
        assert fixture.runner.log.tally["patch_ok"] == 2


async def test_slow_scrape_does_not_move_later_ones() -> None:
    """After a stall of the process, all VMs of a node would otherwise be scraped at the same moment from then on."""
    async with RunnerFixture() as fixture:
        await fixture.clock.advance(2.0)
        began, fixture.guest.takes = fixture.guest.looked_at[-1], 2.3
        await fixture.clock.advance(1.0)
        fixture.guest.takes = 0.0
        await fixture.clock.advance(5.0)
        assert [at - began for at in fixture.guest.looked_at[2:]] == pytest.approx([0.0, 1.0, 4.0, 5.0, 6.0])


async def test_guest_that_kills_is_logged_once_a_minute() -> None:
    """A guest may report a kill in each scrape; the log has the first, and another one a minute later."""
    async with RunnerFixture() as fixture:
        await fixture.clock.advance(2.0)
        for _ in range(30):
            fixture.guest.oom_kills += 2.0
            await fixture.clock.advance(1.0)
        killed = [fields for _, message, fields in fixture.log.lines if message.startswith("the kernel OOM-killed")]
        assert killed == [{"vm": "default/vm-1", "kills": 2}]
        assert fixture.runner.state.guest.kills.total == 60
        await fixture.clock.advance(60.0)
        fixture.guest.oom_kills += 1.0
        await fixture.clock.advance(1.0)
        assert fixture.log.messages.count("the kernel OOM-killed processes") == 2


async def test_absent_scheduler_is_retried() -> None:
    async with RunnerFixture() as fixture:
        fixture.guest.cores = 0.25
        fixture.scheduler.errors = [PortError(Fault.NETWORK, "away")] * 2
        await fixture.clock.advance(1.0)
        assert fixture.vm_api.patched == []
        await fixture.clock.advance(9.0)
        assert fixture.vm_api.patched == [(cu(2), 1)]
        assert fixture.guest.looks == 11
        assert fixture.log.messages == [
            "permit received",
            "request to the scheduler failed",
            "permit received",
            "resized",
        ]


async def test_conflict_rereads_and_patches_again() -> None:
    async with RunnerFixture() as fixture:
        await fixture.clock.advance(1.0)
        fixture.vm_api.change(shown=False, annotations={"other": "client"})
        fixture.guest.cores = 0.25
        await fixture.clock.advance(1.0)
        assert fixture.vm_api.patched == [(cu(2), 1), (cu(2), 2)]
        assert fixture.runner.log.tally["patch_conflict"] == 1


async def test_conflict_with_api_away_waits_for_watch() -> None:
    async with RunnerFixture() as fixture:
        await fixture.clock.advance(1.0)
        fixture.vm_api.change(shown=False, annotations={"other": "client"})
        fixture.vm_api.get_errors = [AWAY]
        fixture.guest.cores = 0.25
        await fixture.clock.advance(1.0)
        assert fixture.vm_api.patched == [(cu(2), 1)]
        fixture.vm_api.change(annotations={})
        await fixture.clock.advance(0.0)
        assert fixture.vm_api.patched == [(cu(2), 1), (cu(2), 3)]


@pytest.mark.parametrize("error", [AWAY, RefusedError(Fault.AGENT, "403"), RefusedError(Fault.VM_API, "404")])
async def test_failed_patch_retries_after_five_seconds(error: PortError) -> None:
    async with RunnerFixture() as fixture:
        await fixture.clock.advance(1.0)
        fixture.vm_api.patch_errors = [error]
        fixture.guest.cores = 0.25
        await fixture.clock.advance(5.9)
        assert fixture.vm_api.patched == [(cu(2), 1)]
        await fixture.clock.advance(0.1)
        assert fixture.vm_api.patched == [(cu(2), 1), (cu(2), 1)]
        assert "not resized" in fixture.log.messages


async def test_growth_altered_by_webhook_backs_off() -> None:
    """A webhook caps the size: without a pause the agent would patch as fast as the API server answers."""
    async with RunnerFixture() as fixture:
        fixture.vm_api.stores = lambda use: use.at_most(cu(2))
        await fixture.clock.advance(1.0)
        fixture.guest.cores = 1.0
        await fixture.clock.advance(1.0)
        assert fixture.vm_api.patched == [(cu(8), 1)]
        assert fixture.scheduler.asked[-2:] == [cu(8), cu(2)], "unusable room is given back"
        why = "the API server stored 500m cpu, 2Gi instead of 2 cpu, 8Gi; an admission webhook may have changed it"
        refused = f"growth to 2 cpu, 8Gi was refused: {why}; no room is reserved for it until the next try"
        assert fixture.vm_api.told == [("ResizeRefused", refused)]
        await fixture.clock.advance(60.0)
        assert fixture.vm_api.patched == [(cu(8), version) for version in range(1, 5)], "after 5, 10 and 20 s"


async def test_shrink_altered_by_webhook_backs_off() -> None:
    async with RunnerFixture() as fixture:
        fixture.vm_api.stores = lambda use: use.at_least(cu(4))
        fixture.guest.cores = 1.0
        await fixture.clock.advance(2.0)
        fixture.guest.cores = 0.0
        await fixture.clock.advance(60.0)
        assert fixture.vm_api.patched == [(cu(8), 1), *((cu(1), version) for version in range(2, 6))]
        assert fixture.vm_api.found.use == cu(4)


async def test_watch_restarts_after_pause() -> None:
    async with RunnerFixture() as fixture:
        assert fixture.vm_api.gets == 1
        fixture.vm_api.end_watch()
        await fixture.clock.advance(0.9)
        assert fixture.vm_api.gets == 1
        await fixture.clock.advance(0.2)
        assert fixture.vm_api.gets == 2
        fixture.vm_api.end_watch(AWAY)
        await fixture.clock.advance(1.1)
        assert fixture.vm_api.gets == 3
        assert fixture.log.messages[-2:] == ["cannot read the object", "the object can be read again"]


async def test_unreadable_vm_backs_off() -> None:
    fixture = RunnerFixture()
    fixture.vm_api.get_errors = [AWAY] * 20
    async with fixture:
        await fixture.clock.advance(7.5)
        assert fixture.vm_api.gets == 4, "at 0, 1, 3 and 7 seconds"
        assert fixture.scheduler.requests == []


async def test_annotation_overrides_policy_file() -> None:
    async with RunnerFixture() as fixture:
        fixture.vm_api.change(annotations={ANNOTATION_CONFIG: "smoothing: {maxGap: 90s}"})
        await fixture.clock.advance(0.0)
        assert fixture.runner.state.policy.smoothing.max_gap == 90.0
        fixture.runner.use_policy(replace(POLICY, smoothing=holding(4.0, max_gap=7.0)))
        assert fixture.runner.state.policy.smoothing.max_gap == 90.0
        fixture.vm_api.change(annotations={})
        await fixture.clock.advance(0.0)
        assert fixture.runner.state.policy.smoothing.max_gap == 7.0


async def test_bad_policy_keeps_last_good() -> None:
    async with RunnerFixture() as fixture:
        fixture.vm_api.change(annotations={ANNOTATION_CONFIG: "cpu: {target: 0.7}"})
        fixture.vm_api.change(annotations={ANNOTATION_CONFIG: "cpu: {target: 7}"})
        await fixture.clock.advance(0.0)
        assert fixture.runner.state.policy.cpu.target == 0.7
        level, message, fields = fixture.log.lines[-1]
        assert (level, message) == (logging.ERROR, "policy rejected; keeping the previous one")
        assert "cpu.target: expected float <= 1.0" in str(fields["reason"])
        fixture.runner.refuse_policy("policy.yaml: gone")
        assert fixture.runner.log.tally["policy_refused"] == 2


async def test_bad_bounds_keep_last_good() -> None:
    problem = f"metadata.annotations[{ANNOTATION_BOUNDS}]: document: malformed"
    async with RunnerFixture() as fixture:
        fixture.vm_api.change(bounds=Bounds(cu(1), cu(4)))
        fixture.vm_api.change(bounds=Bounds(cu(2), cu(8)), problems=(problem,), has_bounds=False)
        await fixture.clock.advance(0.0)
        seen = fixture.runner.state.vm.observed
        assert seen is not None
        assert seen.bounds == Bounds(cu(2), cu(4)), "the old ones, within the new spec"
        assert {"vm": "default/vm-1", "reason": problem} in [fields for _, _, fields in fixture.log.lines]
        said = explain(fixture.runner.state, "default/vm-1", fixture.clock.now())
        assert [(each["with_"], each["reason"]) for each in said.troubles] == [("settings", problem)]
        fixture.vm_api.change(bounds=Bounds(cu(1), cu(8)), problems=(), has_bounds=True)
        await fixture.clock.advance(0.0)
        assert explain(fixture.runner.state, "default/vm-1", fixture.clock.now()).troubles == []


async def test_annotation_policy_decides_shrink() -> None:
    def hold(window: str) -> dict[str, str]:
        stages = f"[{{hold: {{window: {window}}}}}]"
        return {ANNOTATION_CONFIG: f"smoothing: {{cpu: {stages}, memory: {stages}}}"}

    async with RunnerFixture() as fixture:
        fixture.vm_api.change(annotations=hold("20s"))
        fixture.guest.cores = 0.25
        await fixture.clock.advance(2.0)
        assert fixture.vm_api.found.use == cu(2)
        fixture.vm_api.change(annotations=hold("0s"))
        fixture.guest.cores = 0.0
        await fixture.clock.advance(19.0)
        said = explain(fixture.runner.state, "default/vm-1", fixture.clock.now())
        assert fixture.vm_api.found.use == cu(2)
        assert said.because == "holding: less has not been proven to be enough"
        assert tuple(said.smoothing[0].values()) == ("cpu", "hold", "0", "500m", "maximum of the window (20 s)")
        assert [failure["reason"] for failure in said.troubles] == [
            f"annotation {ANNOTATION_CONFIG}: smoothing.cpu[0].hold.window: "
            "expected a span above zero and at most a year, got '0s'"
        ]
        await fixture.clock.advance(5.0)
        assert fixture.vm_api.found.use == cu(1)


async def test_less_than_was_asked_for_is_a_warning() -> None:
    async with RunnerFixture() as fixture:
        fixture.scheduler.room = cu(1)
        fixture.guest.cores = 0.25
        await fixture.clock.advance(1.0)
        assert fixture.log.lines[-1] == (
            logging.WARNING,
            "permit below the request",
            {
                "vm": "default/vm-1",
                "asked_cpu": "500m",
                "asked_mem": "2Gi",
                "permit_cpu": "250m",
                "permit_mem": "1Gi",
                "migrate": False,
            },
        )


async def test_port_bug_ends_runner_and_tasks() -> None:
    fixture = RunnerFixture()

    async def broken() -> None:
        raise ZeroDivisionError

    fixture.guest.scrape = broken  # type: ignore[method-assign,assignment]
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(30):
            await fixture.runner.run()
    assert caught.group_contains(ZeroDivisionError)
    assert (asyncio.all_tasks(), fixture.guest.closed) == ({asyncio.current_task()}, 1)


async def test_floor_expires_and_bad_floor_is_reported() -> None:
    async with RunnerFixture() as fixture:
        await fixture.clock.advance(1.0)
        floor = Floor(cu(2), fixture.clock.wall() + 60.0)
        fixture.vm_api.change(annotations={ANNOTATION_FLOOR: encode_floor(floor)})
        await fixture.clock.advance(2.0)
        assert fixture.vm_api.patched == [(cu(2), 2)]
        await fixture.clock.advance(70.0)
        assert [size for size, _ in fixture.vm_api.patched] == [cu(2), cu(1)], "the floor has ended by itself"
        fixture.vm_api.change(annotations={ANNOTATION_FLOOR: "{}"})
        await fixture.clock.advance(1.0)
        failure = fixture.runner.state.settings_failure
        assert failure is not None
        assert failure.reason == (
            "metadata.annotations[autoscaling.neon.tech/floor]: vCPUs: expected a value, the field is missing"
        )


async def test_annotation_skips_and_reports_unknown_settings() -> None:
    said = '{"loadAverageFractionTarget": 0, "memoryUsageFractionTarget": 0.6}'
    reason = f"annotation {ANNOTATION_CONFIG}: loadAverageFractionTarget: ignored: expected a share above 0, got 0"
    async with RunnerFixture() as fixture:
        fixture.vm_api.change(annotations={ANNOTATION_CONFIG: said})
        await fixture.clock.advance(1.0)
        state = fixture.runner.state
        assert (state.policy.cpu.target, state.policy.memory.target) == (POLICY.cpu.target, 0.6)
        assert state.settings_failure is not None
        assert state.settings_failure.reason == reason
        assert fixture.log.messages.count("some settings were ignored") == 1
        fixture.runner.use_policy(replace(POLICY, ignored=("of the file",)))
        assert state.settings_failure.reason == f"of the file; {reason}"
        fixture.vm_api.change(annotations={})
        await fixture.clock.advance(1.0)
        assert state.settings_failure.reason == "of the file"


async def test_far_future_floor_lasts_one_day() -> None:
    async with RunnerFixture() as fixture:
        far = Floor(cu(2), fixture.clock.wall() + 10**8)
        fixture.vm_api.change(annotations={ANNOTATION_FLOOR: encode_floor(far)})
        await fixture.clock.advance(1.0)
        seen = fixture.runner.state.vm.observed
        assert seen is not None
        assert seen.floor is not None
        assert seen.floor.until <= fixture.clock.now() + 86_400
        until = seen.floor.until
        await fixture.clock.advance(60.0)
        fixture.vm_api.change()
        await fixture.clock.advance(1.0)
        seen = fixture.runner.state.vm.observed
        assert seen is not None
        assert seen.floor is not None
        assert seen.floor.until == until, "another view of the VM does not begin it again"


async def test_new_watch_notices_restored_store() -> None:
    async with RunnerFixture() as fixture:
        kept = fixture.vm_api.found
        fixture.vm_api.change(use=cu(2), actual=cu(2))
        await fixture.clock.advance(1.0)
        assert fixture.runner.state.held == cu(2)
        fixture.vm_api.restore(kept)
        await fixture.clock.advance(2.0)
        assert fixture.vm_api.patched == [(cu(2), 1)], "onto the object as it is now"
        assert fixture.log.messages.count("resourceVersion went backwards: the cluster was restored from a backup") == 1


async def test_monitor_report_grows_and_agreement_shrinks() -> None:
    monitor = FakeMonitor()
    async with RunnerFixture(monitor=monitor) as fixture:
        await fixture.clock.advance(1.2)
        await monitor.says(UpscaleConfirmation(2), LoadReport(1, "cpu", 0.1, 0.25, 1.0, 3))
        assert fixture.vm_api.patched == [(cu(8), 1)]
        await fixture.clock.advance(0.0)
        await monitor.says(UpscaleConfirmation(4))
        await fixture.clock.advance(10.0)
        assert [type(message) for _, message in monitor.heard] == [
            UpscaleNotification,
            UpscaleNotification,
            DownscaleRequest,
        ]
        assert fixture.vm_api.found.use == Resources(cu(1).cpu, cu(8).mem)
        await monitor.says(DownscaleResult(monitor.last_number, ok=False, status="in use"))
        await fixture.clock.advance(1.0)
        assert fixture.vm_api.found.use.mem == cu(8).mem
        assert "the guest's monitor refused a shrink" in fixture.log.messages
        monitor.absent = [PortError(Fault.NETWORK, "connection refused")] * 100
        await monitor.says(PortError(Fault.GUEST, "hung up"))
        await fixture.clock.advance(59.0)
        assert fixture.vm_api.found.use.mem == cu(8).mem
        await fixture.clock.advance(2.0)
        assert fixture.vm_api.found.use == cu(1)
        assert fixture.log.messages.count("lost the connection to the guest's monitor") == 1
