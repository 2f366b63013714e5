"""The original's agents send no token: if the settings allow it, their pod's address identifies them (B.11)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.runtime.followed_file import SettingsError
from scheduler_plugin.settings.document import parse_settings
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.objects import Obj, node, owner_of, plain_pod, vm, vm_pod
from tests.scheduler_plugin.running import SETTINGS, Running, running

POD = vm_pod("db", "n1")
HERE = "127.0.0.1"
"""Where requests of these tests come from."""

ADMITTING = parse_settings(
    SETTINGS.replace(
        "agents: {", "agents: {withoutTokens: {namespaces: [kube-system], labels: {name: autoscaler-agent}}, "
    )
)


LABELS = {"name": "autoscaler-agent", "vm.neon.tech/name": "db"}
VM_OWNER = owner_of("db", "vm-db")


def agent_pod(**changed: Any) -> Obj:
    """A pod of the original's DaemonSet as it shows itself; ``changed`` are parts of its head, spec and status."""
    pod = plain_pod("autoscaler-agent-x", node="n1", namespace="kube-system", uid="pod-agent")
    pod["metadata"]["labels"] = {"name": "autoscaler-agent", "pod-template-generation": "1"}
    pod["status"] = {"phase": "Running", "podIP": HERE}
    for part, more in changed.items():
        pod[part] |= more
    return pod


def cluster(*agents: Obj) -> FakeCluster:
    found = FakeCluster()
    for name in ("n1", "n2"):
        found.put(NODES, node(name))
    found.put(VMS, vm("db"))
    for pod in (POD, *agents):
        found.put(PODS, pod)
    return found


async def status(scheduler: Running) -> int:
    """Of a request for more without a token; one that is refused changes nothing."""
    before = (await scheduler.probe("nodes")).json()
    response = await scheduler.ask(POD, 2, 8, token="")
    assert response.status_code == 200 or (await scheduler.probe("nodes")).json() == before
    return response.status_code


async def test_node_agent_speaks_for_its_vms() -> None:
    async with running(cluster(agent_pod()), FakeClock(), ADMITTING) as scheduler:
        assert await status(scheduler) == 200
        assert scheduler.reserved("n1") == "3 cpu, 9Gi", "what was granted, and the requests of the agent's own pod"


async def test_agent_has_several_addresses() -> None:
    """A cluster of two families gives each pod one of each, and an agent may come from either."""
    found = cluster(agent_pod(status={"podIP": "fd00::5", "podIPs": [{"ip": "fd00::5"}, {"ip": HERE}]}))
    async with running(found, FakeClock(), ADMITTING) as scheduler:
        assert await status(scheduler) == 200
        found.put(PODS, agent_pod(status={"podIP": "fd00::5", "podIPs": [{"ip": "fd00::5"}]}))
        await settle()
        assert await status(scheduler) == 401


async def test_nothing_is_admitted_by_default() -> None:
    async with running(cluster(agent_pod()), FakeClock()) as scheduler:
        assert await status(scheduler) == 401


STRANGERS: dict[str, tuple[int, list[Obj]]] = {
    "no pod has the address": (401, []),
    "another address": (401, [agent_pod(status={"podIP": "10.0.0.9"})]),
    "another namespace": (401, [agent_pod(metadata={"namespace": "default"})]),
    "another label": (401, [agent_pod(metadata={"labels": {"name": "agent"}})]),
    "no label": (401, [agent_pod(metadata={"labels": {}})]),
    "the node's network": (401, [agent_pod(spec={"hostNetwork": True})]),
    "ended": (401, [agent_pod(status={"phase": "Failed"})]),
    "two pods at one address": (401, [agent_pod(), agent_pod(metadata={"name": "other", "uid": "pod-other"})]),
    "a VM's pod at its address": (401, [agent_pod(), {**vm_pod("guest", "n1"), "status": {"podIP": HERE}}]),
    "a VM's pod with its labels": (401, [agent_pod(metadata={"labels": LABELS, "ownerReferences": [VM_OWNER]})]),
    "on its way out": (401, [agent_pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})]),
    "another node": (403, [agent_pod(spec={"nodeName": "n2"})]),
}


@pytest.mark.parametrize("why", STRANGERS)
async def test_all_others_change_nothing(why: str) -> None:
    expected, agents = STRANGERS[why]
    async with running(cluster(*agents), FakeClock(), ADMITTING) as scheduler:
        assert await status(scheduler) == expected


async def test_token_outranks_address() -> None:
    async with running(cluster(agent_pod()), FakeClock(), ADMITTING) as scheduler:
        assert (await scheduler.ask(POD, 2, 8, token="bad")).status_code == 401


async def test_agent_is_known_by_pod_address() -> None:
    found = cluster(agent_pod())
    async with running(found, FakeClock(), ADMITTING) as scheduler:
        assert await status(scheduler) == 200
        found.put(PODS, agent_pod(status={"podIP": "10.0.0.9"}))
        await settle()
        assert await status(scheduler) == 401
        found.put(PODS, agent_pod())
        await settle()
        assert await status(scheduler) == 200
        found.remove(PODS, "kube-system", "autoscaler-agent-x")
        await settle()
        assert await status(scheduler) == 401


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("{}", "agents.withoutTokens.namespaces: expected a value, the field is missing"),
        ("{namespaces: [], labels: {a: b}}", "agents.withoutTokens.namespaces: expected at least one"),
        ("{namespaces: [kube-system], labels: {}}", "agents.withoutTokens.labels: expected at least one"),
    ],
)
def test_policy_without_valid_target_is_refused(given: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(SETTINGS.replace("agents: {", f"agents: {{withoutTokens: {given}, "))
    assert problem in caught.value.problems
