"""The controller on a cluster keeps a NetworkPolicy where it has VMs, and stands back for others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from deploy.neonvm.objects.runner_policy import NAME, new_policy
from deploy.neonvm.service.runner_policies import PAUSE, RunnerPolicies
from protocol.kubernetes.objects import Json, text
from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, NETWORK_POLICIES, VIRTUAL_MACHINES, Resource
from protocol.messages import ObjectName
from tests.fake_clock import FakeClock, settle
from tests.neonvm.remote.pods_world import DB, World, world
from tests.neonvm.sample_objects import virtual_machine

OURS = ObjectName("default", NAME)


def kept(made: World) -> list[str]:
    return sorted(text(each, "metadata", "name") for each in made.api.objects("networkpolicies", "networking.k8s.io"))


def deny_all(name: str = "deny") -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    }


async def pass_by(made: World) -> None:
    """Longer than the controller's pause."""
    until = made.clock.now() + 15.0
    await made.until(lambda: made.clock.now() >= until)


async def test_the_policy_lives_as_long_as_vms(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.start()
        await made.create_vm()
        await made.until(lambda: kept(made) == [NAME])
        (stored,) = made.api.objects("networkpolicies", "networking.k8s.io")
        assert stored["spec"] == new_policy("kube-system")["spec"]
        await made.client.merge_patch(NETWORK_POLICIES, OURS, {"spec": {"ingress": [{}]}})
        await made.until(lambda: made.api.objects("networkpolicies", "networking.k8s.io")[0]["spec"] == stored["spec"])
        await made.until(made.runs_well)
        await made.client.delete(VIRTUAL_MACHINES, DB)
        await made.until(lambda: kept(made) == [])


async def test_it_goes_when_another_closes_the_pods(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.start()
        await made.create_vm()
        await made.until(lambda: kept(made) == [NAME])
        await made.client.create(NETWORK_POLICIES, "default", deny_all())
        await made.until(lambda: kept(made) == ["deny"])
        await made.client.delete(NETWORK_POLICIES, ObjectName("default", "deny"))
        await made.until(lambda: kept(made) == [NAME])


async def test_policies_of_a_cluster_network_are_respected(tmp_path: Path) -> None:
    kind = Resource("cilium.io", "v2", "ciliumnetworkpolicies", "CiliumNetworkPolicy")
    schema: dict[str, Any] = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    definition: Json = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "names": {"plural": kind.plural, "kind": kind.kind},
            "scope": "Namespaced",
            "versions": [{"name": kind.version, "served": True, "storage": True, "schema": schema}],
        },
    }
    async with world(tmp_path) as made:
        await made.client.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition)
        body: Json = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "deny"}}
        await made.client.create(kind, "default", body)
        made.start()
        await made.create_vm()
        await made.until(made.runs_well)
        await pass_by(made)
        assert kept(made) == []


async def test_a_program_without_a_home_makes_none(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.home = ""
        made.start()
        await made.create_vm()
        await made.until(made.runs_well)
        await pass_by(made)
        assert kept(made) == []


async def test_a_refusal_holds_up_no_other_namespace(caplog: pytest.LogCaptureFixture) -> None:
    """A quota in one namespace: each reason is logged once, and the others have their policy."""
    made: list[str] = []
    answers = [503, 200, 200, 200, 403]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            made.append(request.url.path.split("/")[5])
            return httpx.Response(403 if made[-1] == "a" else 201, json={"message": "exceeded quota"})
        if request.url.path != NETWORK_POLICIES.path():
            return httpx.Response(404, json={})
        return httpx.Response(answers.pop(0), json={"metadata": {"resourceVersion": "1"}, "items": []})

    clock = FakeClock()
    async with ApiClient(httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(answer))) as client:
        vms = Informer(client, VIRTUAL_MACHINES, clock)
        for namespace in ("a", "b"):
            vms._store(ObjectName(namespace, "db"), virtual_machine(namespace=namespace))
        vms.synced.set()
        running = asyncio.create_task(RunnerPolicies(client, vms, clock, "kube-system").run())
        while answers:
            await settle()
            await clock.advance(PAUSE)
        await settle()
        running.cancel()
    assert made == ["a", "b"] * 3
    assert [each.namespace for each in caplog.records if "NetworkPolicy" in each.message] == ["all", "a", "all"]  # type: ignore[attr-defined]
