"""Rights of the programs that run VMs match their calls, and no admission policy rejects these."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx2 as httpx
import pytest

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from deploy.neonvm.objects.runner_policy import NAME
from deploy.neonvm.overlay.node_network import WATCHED, NodeNetwork, NodeNetworkDependencies
from deploy.neonvm.overlay.node_plan import OverlayNode
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import Json, text, texts
from protocol.kubernetes.resources import NETWORK_POLICIES, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.names import (
    ANNOTATION_APPROVED,
    ANNOTATION_REQUESTED,
    ANNOTATION_SCALING_UNIT,
    AUTO_MIGRATION,
    LABEL_ALWAYS_MIGRATE,
    LABEL_ENABLED,
)
from protocol.runtime.kubernetes.http_api import HttpApi
from tests.deploy.manifests import documents
from tests.deploy.policies.admission import is_judged, refusal, write_by
from tests.deploy.test_rights import Right, granted, right
from tests.fake_clock import FakeClock
from tests.neonvm.remote.pods_world import DB, world

ACCOUNT = "system:serviceaccount:kube-system:neonvm-controller"
POLICIES = [each for each in documents() if each["kind"] == "ValidatingAdmissionPolicy"]
JUDGED = ["ipaddresses", "leases", "networkpolicies", "pods", "virtualmachinemigrations", "virtualmachines"]
SAID: dict[str, dict[str, str]] = {
    "labels": dict.fromkeys((LABEL_ENABLED, AUTO_MIGRATION, LABEL_ALWAYS_MIGRATE), "true"),
    "annotations": dict.fromkeys((ANNOTATION_SCALING_UNIT, ANNOTATION_REQUESTED, ANNOTATION_APPROVED), "{}"),
}
"""What is said on a VM for its pod."""

SPARED = {
    ("networking.k8s.io", "ipaddresses", "get"),
    ("", "events", "patch"),
    ("authentication.k8s.io", "tokenreviews", "create"),
}
"""Where the creation of a claim was not answered, where an event is repeated, and where a runner shows its token."""


def says_it(pod: Json) -> bool | None:
    """True if a pod has all labels and annotations of ``SAID``, False if none; None for some."""
    kept = [value == texts(pod, "metadata", kind).get(name) for kind in SAID for name, value in SAID[kind].items()]
    return all(kept) if all(kept) or not any(kept) else None


async def test_the_controller_may_do_what_it_does(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        way = made.start()
        way.keeps = True
        await made.create_vm(extraNetwork={"enable": True})
        await made.until(made.runs_well)
        await made.until(lambda: made.api.objects("networkpolicies", "networking.k8s.io"))
        await made.client.merge_patch(NETWORK_POLICIES, ObjectName("default", NAME), {"spec": {"ingress": [{}]}})
        edited = len(way.asked)
        await made.until(lambda: any(each.url.path.endswith(f"/{NAME}") for each in way.asked[edited:]))
        await made.client.merge_patch(VIRTUAL_MACHINES, DB, {"metadata": SAID, "spec": {"overcommit": {"cpu": 2}}})
        await made.until(lambda: says_it(made.api.objects("pods")[0]))
        unsaid = {kind: dict.fromkeys(SAID[kind]) for kind in SAID}
        await made.client.merge_patch(VIRTUAL_MACHINES, DB, {"metadata": unsaid})
        await made.until(lambda: says_it(made.api.objects("pods")[0]) is False)
        first = text(made.status, "podName")
        made.pods[first].qemu.end_with("its kernel panicked")
        await made.until(lambda: made.runs_well() and made.status["podName"] != first)
        await made.move()
        await made.send()
        await made.until(lambda: made.migration.get("phase") == "Succeeded" and made.runs_well())
        await made.client.delete(VIRTUAL_MACHINES, DB)
        await made.until(lambda: not made.status and not made.claims)
        await made.until(lambda: not made.api.objects("networkpolicies", "networking.k8s.io"))
        does = {right(each.method, each.url.path, each.url.params) for each in way.asked}
        writes = [
            write_by(ACCOUNT, each.request.method, each.request.url.path, each.before, each.after)
            for each in way.written
        ]
    assert sorted({each.resource for each in writes if any(is_judged(policy, each) for policy in POLICIES)}) == JUDGED
    assert {said for each in writes if (said := refusal(POLICIES, each))} == set()
    may = granted("ClusterRole", "neonvm-controller") | granted("Role", "neonvm-controller")
    assert sorted(does - may) == []
    assert sorted(may - does - SPARED) == []


async def test_controller_may_adopt_move_without_target(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.boot()
        await made.move()
        await made.until(lambda: made.sending)
        await made.kill()
        await made.client.delete(PODS, ObjectName("default", text(made.migration, "targetPodName")))
        await made.until(lambda: len(made.pods) == 1)
        way = made.start()
        await made.until(lambda: made.migration.get("phase") == "Failed" and made.runs_well())
        does = {right(each.method, each.url.path, each.url.params) for each in way.asked}
    assert sorted(does - granted("ClusterRole", "neonvm-controller") - granted("Role", "neonvm-controller")) == []


async def test_the_network_program_may_do_what_it_does() -> None:
    used: set[Right] = set()
    pod = {"metadata": {"namespace": "default", "name": "db-x", "uid": "u1", "labels": {"vm.neon.tech/name": "db"}}}

    def answer(request: httpx.Request) -> httpx.Response:
        used.add(right(request.method, request.url.path, request.url.params))
        if request.url.path.endswith("/pods/db-x"):
            return httpx.Response(200, json=pod)
        if request.url.params.get("watch"):
            return httpx.Response(410, json={})
        return httpx.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": []})

    async def holder(_: str) -> ObjectName | None:
        return ObjectName("default", "db-x")

    transport = httpx.MockTransport(answer)
    async with ApiClient(
        HttpApi(httpx.AsyncClient(base_url="http://api", transport=transport), lambda: None)
    ) as client:
        caches = {kind: Informer(client, kind, FakeClock()) for kind in WATCHED}
        for each in caches.values():
            await each.refresh()
            with pytest.raises(ApiRefusedError):
                await each._facts._watch(client.api, FakeClock())
        deps = NodeNetworkDependencies(client, caches, FakeClock(), holder)
        network = NodeNetwork(OverlayNode("n1", "10.0.0.1", 1500), deps)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert not await network._serve("place-1", theirs)
    assert used == granted("ClusterRole", "neonvm-network")
