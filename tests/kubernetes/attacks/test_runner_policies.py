"""The controller keeps its NetworkPolicies on a real API server, with its own token, rights and fences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpx2 as httpx
import pytest

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from deploy.neonvm.objects.runner_policy import NAME
from deploy.neonvm.service.runner_policies import PAUSE, RunnerPolicies
from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.objects import Json, name_of, text
from protocol.kubernetes.resources import NETWORK_POLICIES, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.http_api import HttpApi
from tests.deploy.manifests import documents
from tests.fake_clock import FakeClock
from tests.kubernetes.failing.bare_control_plane import BareControlPlane
from tests.kubernetes.failing.faulty_proxy import faulty_proxy
from tests.kubernetes.failing.fleet import Fleet, until
from tests.neonvm.sample_objects import virtual_machine

pytestmark = pytest.mark.kubernetes
SPACE = "walled"
OURS = ObjectName(SPACE, NAME)
DENY: Json = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny-all"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}
_OURS_TOO = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}


def of_controller() -> list[Json]:
    """The controller's account, rights and fences."""
    return [each for each in documents() if "neonvm-controller" in each["metadata"]["name"] and _is_asked_for(each)]


def _is_asked_for(each: Json) -> bool:
    kind = text(each, "kind")
    return kind in _OURS_TOO or kind.startswith("ValidatingAdmissionPolicy")


@asynccontextmanager
async def clients(plane: BareControlPlane) -> AsyncIterator[tuple[ApiClient, ApiClient]]:
    """An administrator's, and the controller's."""
    plane.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}, *of_controller()])
    async with faulty_proxy(plane) as way:

        def over(token: str) -> httpx.AsyncClient:
            headers = {"Authorization": f"Bearer {token}"}
            return httpx.AsyncClient(base_url=way.url, verify=plane.client_tls(), headers=headers, trust_env=False)

        admin = over(plane.pki.admin_token)
        token = await Fleet(admin).token("kube-system", "neonvm-controller", "", None)
        async with (
            ApiClient(HttpApi(admin, lambda: None)) as of_admin,
            ApiClient(HttpApi(over(token), lambda: None)) as own,
        ):
            await until(partial(_may_list, own), "its rights are in force", 30.0)
            yield of_admin, own


async def _may_list(client: ApiClient) -> bool:
    try:
        await client.list(NETWORK_POLICIES)
    except ApiRefusedError:
        return False
    return True


async def test_network_policy_is_kept_or_withdrawn(plane: BareControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    """The controller compares with the object as stored, so it writes once, and again after an edit."""
    async with clients(plane) as (admin, own):
        clock = FakeClock()
        vms, pods = (Informer(own, kind, clock) for kind in (VIRTUAL_MACHINES, PODS))
        vms._facts.learn(virtual_machine(namespace=SPACE), reread=True)
        vms.synced.set()
        pods.synced.set()
        running = asyncio.create_task(RunnerPolicies(own, vms, pods, clock, "kube-system").run())

        async def policies() -> dict[str, str]:
            await clock.advance(PAUSE)
            found = (await admin.list(NETWORK_POLICIES, SPACE)).objects
            return {name_of(each).name: text(each, "metadata", "resourceVersion") for each in found}

        async def has_settled() -> bool:
            before = await policies()
            await asyncio.sleep(0.5)
            return before.keys() == {NAME} and await policies() == before

        await until(has_settled, "there is one, and it is not written again", 20.0)
        first = (await admin.get(NETWORK_POLICIES, OURS))["spec"]
        await admin.merge_patch(NETWORK_POLICIES, OURS, {"spec": {"ingress": [{}], "egress": [{}]}})

        async def is_undone() -> bool:
            await clock.advance(PAUSE)
            return (await admin.get(NETWORK_POLICIES, OURS))["spec"] == first

        await until(is_undone, "the edit is undone", 20.0)
        await admin.create(NETWORK_POLICIES, SPACE, DENY)

        async def is_alone() -> bool:
            return (await policies()).keys() == {"deny-all"}

        await until(is_alone, "it stands back", 20.0)
        running.cancel()
    refused = [vars(each)["reason"] for each in caplog.records if "NetworkPolicy" in each.message]
    assert refused == []
