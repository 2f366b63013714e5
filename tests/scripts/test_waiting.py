"""A run whose VM has ended is over at once, with the reason."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from protocol.messages import ObjectName
from scripts.autoscale.demonstration.waiting import end_of, watch_for_ends
from scripts.autoscale.site import SiteError
from tests.neonvm.runtime_fixture import DB, running_runtime
from tests.neonvm.sample_objects import virtual_machine


async def test_ended_guest_ends_the_wait(tmp_path: Path) -> None:
    async with running_runtime(tmp_path) as runtime:
        pod = await runtime.run_vm()

        async def run() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(watch_for_ends(runtime.client, runtime.clock))
                await asyncio.Event().wait()

        waiting = asyncio.ensure_future(run())
        await runtime.settle()
        assert not waiting.done()
        runtime.guests.by_pod[pod].die("its kernel panicked")
        await runtime.settle()
        with pytest.raises(ExceptionGroup) as caught:
            await waiting
        group = caught.value.subgroup(SiteError)
        assert group is not None
        assert "VM db has ended: the guest has ended: its kernel panicked" in _messages(group)


async def test_only_new_ends_of_the_vm_count(tmp_path: Path) -> None:
    async with running_runtime(tmp_path) as runtime:
        pod = await runtime.run_vm()
        runtime.guests.by_pod[pod].die()
        await runtime.pass_time(5)
        assert (await runtime.status())["restartCount"] == 1
        other = asyncio.ensure_future(watch_for_ends(runtime.client, runtime.clock, ObjectName("default", "other")))
        mine = asyncio.ensure_future(watch_for_ends(runtime.client, runtime.clock, DB))
        await runtime.settle()
        assert not mine.done()
        runtime.guests.by_pod[str((await runtime.status())["podName"])].die("its machine was reset")
        await runtime.settle()
        assert (other.done(), mine.done()) == (False, True)
        assert _messages(mine.exception() or Exception()) == [
            "VM db has ended: the guest has ended: its machine was reset"
        ]
        other.cancel()
        await asyncio.wait((other,))


def _messages(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [message for each in error.exceptions for message in _messages(each)]
    return [str(error)]


def test_restarted_vm_counts_as_ended() -> None:
    assert end_of(virtual_machine({"phase": "Running"})) == ""
    assert end_of(virtual_machine({"phase": "Pending"})) == ""
    assert end_of(virtual_machine({"phase": "Failed"})) == "VM db has ended: Failed"
    again = end_of(virtual_machine({"phase": "Running", "restartCount": 1}))
    assert again == "VM db has ended and was restarted; see: autoscale explain default/db"
    assert end_of(virtual_machine({"phase": "Running", "restartCount": 1}), 1) == ""
    deleted = virtual_machine({"phase": "Failed"})
    deleted["metadata"] = {**deleted["metadata"], "deletionTimestamp": "now"}  # type: ignore[dict-item]
    assert end_of(deleted) == ""
