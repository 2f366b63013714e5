"""A VM whose spec is edited while its guest runs: orders are relative to what the guest was booted with (S4.2)."""

from __future__ import annotations

from pathlib import Path

import httpx2 as httpx
import pytest

from deploy.neonvm.addressing import RUNNER_PORT
from protocol.kubernetes.objects import Json, child, items, text
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from scheduler_plugin.dashboard.explanation import database_explanation
from tests.neonvm.remote.pods_world import DB, World, world

GI = 1024**3
EDITS: dict[str, Json] = {
    "larger minimum": {"guest": {"memorySlots": {"min": 3, "max": 8, "use": 4}}},
    "smaller slots": {"guest": {"memorySlotSize": "512Mi", "memorySlots": {"min": 4, "max": 16, "use": 8}}},
    "larger slots": {"guest": {"memorySlotSize": "2Gi", "memorySlots": {"min": 1, "max": 8, "use": 2}}},
    "other CPUs": {"guest": {"cpus": {"min": 3, "max": 16, "use": 3}, "memorySlots": {"use": 4}}},
}


async def run_and_edit(made: World, edit: Json) -> None:
    """A VM of 1 to 8 slots of 1Gi that runs with 4 when its spec is edited."""
    await made.boot()
    await order(made, {"guest": {"memorySlots": {"use": 4}}})
    await made.until(lambda: made.status["memorySize"] == "4Gi")
    await order(made, edit)


async def order(made: World, spec: Json) -> None:
    await made.client.merge_patch(VIRTUAL_MACHINES, DB, {"spec": spec})


async def order_bytes(made: World, size: int) -> None:
    vm = await made.client.get(VIRTUAL_MACHINES, DB)
    slot = {"512Mi": GI // 2, "2Gi": 2 * GI}.get(text(vm, "spec", "guest", "memorySlotSize"), GI)
    await order(made, {"guest": {"memorySlots": {"use": size // slot}}})


def plugged(made: World) -> int:
    """The running guest's memory in addition to its boot memory."""
    return made.pods[text(made.status, "podName")].qemu.size


def condition(made: World, kind: str) -> Json:
    return next((each for each in items(made.status, "conditions") if text(each, "type") == kind), {})


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
async def test_new_leader_orders_from_booted_memory(tmp_path: Path, edit: Json) -> None:
    """Another controller knows the guest only from its pod: it neither removes memory nor adds more than ordered."""
    async with world(tmp_path) as made:
        await run_and_edit(made, edit)
        await made.kill()
        made.start()
        await order_bytes(made, 6 * GI)
        await made.until(lambda: made.status["memorySize"] == "6Gi" and made.status["phase"] == "Running")
        assert plugged(made) == 5 * GI


async def test_new_leader_asks_at_booted_ports(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        asked: set[int | None] = set()
        inner = made._to_runner

        async def answer(request: httpx.Request) -> httpx.Response:
            asked.add(request.url.port)
            return await inner(request)

        await run_and_edit(made, {"qmp": 20999, "runnerPort": 25999})
        await made.kill()
        made._to_runner = answer  # type: ignore[method-assign]  # the world's only way to runners
        made.start()
        await order_bytes(made, 6 * GI)
        await made.until(lambda: made.status["memorySize"] == "6Gi")
        assert asked == {RUNNER_PORT}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
async def test_target_of_a_move_has_booted_hardware(tmp_path: Path, edit: Json) -> None:
    """QEMU takes a guest into the same machine only, and its orders stay relative to that machine."""
    async with world(tmp_path) as made:
        await run_and_edit(made, edit)
        await made.until(lambda: made.status["phase"] == "Running")
        before = made.status["machine"]
        await made.move()
        await made.send()
        await made.until(lambda: text(made.migration, "phase") == "Succeeded" and made.runs_well())
        await order_bytes(made, 6 * GI)
        await made.until(lambda: made.status["memorySize"] == "6Gi" and made.status["phase"] == "Running")
        assert (plugged(made), made.status["machine"]) == (5 * GI, before)


async def test_orders_beyond_the_machine_are_clipped_and_told(tmp_path: Path) -> None:
    """A raised maximum applies after a restart; until then the guest has all that its machine can take."""
    async with world(tmp_path) as made:
        await run_and_edit(made, {"guest": {"cpus": {"max": 8, "use": 8}, "memorySlots": {"max": 16, "use": 16}}})
        await made.until(lambda: (made.status["cpus"], made.status["memorySize"]) == ("4", "8Gi"))
        await made.until(lambda: made.status["phase"] == "Running")
        said = condition(made, "RestartRequired")
        assert (said["status"], said["reason"]) == ("True", "SpecChanged")
        assert "CPU max is 4, the spec says 8; memory max is 8Gi, the spec says 16Gi" in text(said, "message")
        assert made.status["machine"] == {"maxCpus": "4", "minMemory": "1Gi", "maxMemory": "8Gi"}
        explained = list(database_explanation(await made.client.get(VIRTUAL_MACHINES, DB), None, None))
        assert f"  RestartRequired: SpecChanged: {text(said, 'message')}" in explained


async def test_restart_takes_the_edited_spec(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await run_and_edit(made, {"guest": {"cpus": {"max": 8}, "memorySlots": {"min": 2}}})
        await made.until(lambda: condition(made, "RestartRequired"))
        first = text(made.status, "podName")
        made.pods[first].qemu.end_with("it was switched off")
        await made.until(lambda: made.runs_well() and made.status["podName"] != first)
        assert child(made.status, "machine") == {"maxCpus": "8", "minMemory": "2Gi", "maxMemory": "8Gi"}
        assert not condition(made, "RestartRequired")
