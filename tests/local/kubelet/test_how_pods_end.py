"""The pod reports how it has ended, even if the API rejects the first attempt."""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import Json, child, is_terminating, items, node_of, text
from protocol.kubernetes.resources import NODES, PODS
from protocol.messages import ObjectName
from tests.neonvm.runtime_fixture import RuntimeFixture


async def assert_says_why(runtime: RuntimeFixture, pod: str) -> None:
    status = child((await runtime.pods())[pod], "status")
    said: Json = {"phase": "Failed", "reason": "GuestEnded", "message": "the guest has ended: its process was killed"}
    assert {key: status[key] for key in said} == said
    assert ("Failed", "the VM has ended: the guest has ended: its process was killed") in await runtime.said()


@pytest.mark.parametrize("fault", [409, 422, 500, 503])
async def test_reason_survives_refused_write(runtime: RuntimeFixture, fault: int) -> None:
    pod = await runtime.run_vm("Never")
    runtime.api.failing, runtime.api.fault = f"/pods/{pod}/status", fault
    runtime.guests.by_pod[pod].die()
    await runtime.pass_time(3)
    assert runtime.api.failing == ""
    await assert_says_why(runtime, pod)


@pytest.mark.parametrize("trouble", ["lost", "unanswered"])
async def test_reason_survives_silent_api(runtime: RuntimeFixture, trouble: str) -> None:
    pod = await runtime.run_vm("Never")
    setattr(runtime.api, trouble, f"/pods/{pod}/status")
    runtime.guests.by_pod[pod].die()
    await runtime.pass_time(3)
    assert (runtime.api.lost, runtime.api.unanswered) == ("", "")
    await assert_says_why(runtime, pod)


async def test_pod_of_earlier_runtime_is_lost(runtime: RuntimeFixture) -> None:
    pod = await runtime.run_vm("Never")
    await runtime.restart()
    found = child((await runtime.pods())[pod], "status")
    assert (found["phase"], found["message"]) == ("Failed", "the guest was lost: the cluster's process was restarted")


async def test_guest_runs_while_status_is_refused(runtime: RuntimeFixture) -> None:
    runtime.api.refused, runtime.api.fault = "PATCH .*/pods/[^/]+/status", 422
    await runtime.create_vm("Never")
    await runtime.pass_time(30)
    ((pod, found),) = (await runtime.pods()).items()
    assert (runtime.guests.running, runtime.guests.made, text(found, "status", "phase")) == ([pod], 1, "Pending")
    runtime.api.refused = ""
    await runtime.pass_time(40)
    assert (text((await runtime.pods())[pod], "status", "phase"), runtime.guests.made) == ("Running", 1)


async def test_runtime_error_ends_one_pod(runtime: RuntimeFixture) -> None:
    runtime.guests.error_at_start = ArithmeticError("a size with a thousand digits")
    await runtime.create_vm("Never")
    await runtime.pass_time(3)
    (found,) = (await runtime.pods()).values()
    status = child(found, "status")
    said = "internal error of the kubelet: ArithmeticError('a size with a thousand digits')"
    assert (status["phase"], status["message"]) == ("Failed", said)


async def test_stopped_kubelet_keeps_guests_running(runtime: RuntimeFixture) -> None:
    pod = await runtime.run_vm("Never")
    node = node_of((await runtime.pods())[pod])
    runtime.controllers.stop_kubelet(node)
    await runtime.client.delete(PODS, ObjectName("default", pod))
    await runtime.pass_time(60)
    assert (runtime.guests.running, is_terminating((await runtime.pods())[pod])) == ([pod], True)
    found = await runtime.client.get(NODES, ObjectName("", node))
    assert [text(each, "status") for each in items(found, "status", "conditions")] == ["Unknown"]
    runtime.controllers.start_kubelet(node)
    await runtime.pass_time(3)
    assert (runtime.guests.running, pod in await runtime.pods()) == ([], False)
    with pytest.raises(LookupError, match="no node 'n9'; the nodes are n1, n2"):
        runtime.controllers.stop_kubelet("n9")


async def test_failed_guest_ends_pod_at_once(runtime: RuntimeFixture) -> None:
    pod = await runtime.run_vm("Never")
    runtime.guests.by_pod[pod].die("its kernel panicked")
    await runtime.settle()
    status = child((await runtime.pods())[pod], "status")
    assert (status["phase"], status["message"]) == ("Failed", "the guest has ended: its kernel panicked")
    assert ("Failed", "the VM has ended: the guest has ended: its kernel panicked") in await runtime.said()
