"""The controller on a cluster maintains a NetworkPolicy in namespaces with VMs, unless others have policies there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from deploy.neonvm.objects.runner_policy import NAME, new_policy
from deploy.neonvm.service.runner_policies import PAUSE, RunnerPolicies
from protocol.kubernetes.objects import Json, name_of, text
from protocol.kubernetes.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    NETWORK_POLICIES,
    PODS,
    VIRTUAL_MACHINES,
    Resource,
)
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.http_api import HttpApi
from tests.fake_clock import FakeClock, settle
from tests.neonvm.remote.pods_world import DB, World, world
from tests.neonvm.sample_objects import virtual_machine

OURS = ObjectName("default", NAME)


def kept(made: World) -> list[str]:
    return sorted(text(each, "metadata", "name") for each in made.api.objects("networkpolicies", "networking.k8s.io"))


def deny_all() -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "deny"},
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


async def test_labels_of_a_running_pod_count(tmp_path: Path) -> None:
    """The VM has lost the label by which a policy closes its pod; the pod has kept it."""
    async with world(tmp_path) as made:
        made.start()
        await made.create_vm()
        await made.until(lambda: kept(made) == [NAME])
        (pod,) = made.api.objects("pods")
        await made.client.merge_patch(PODS, name_of(pod), {"metadata": {"labels": {"tier": "db"}}})
        closing = deny_all()
        closing["spec"] = {"podSelector": {"matchLabels": {"tier": "db"}}, "policyTypes": ["Ingress"]}
        await made.client.create(NETWORK_POLICIES, "default", closing)
        await made.until(lambda: kept(made) == ["deny"])


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
        await made.boot()
        await pass_by(made)
        assert kept(made) == []


async def test_a_program_without_a_home_makes_none(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.policy_namespace = ""
        await made.boot()
        await pass_by(made)
        assert kept(made) == []


class Api:
    """An API server that refuses policies in namespace ``a``; ``answers`` are those to lists of policies, in order.

    ``others`` are lists of other kinds, by their paths.
    """

    def __init__(self, answers: list[int], others: Mapping[str, str] | None = None) -> None:
        self.answers, self.others, self.made = answers, others or {}, list[str]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            self.made.append(request.url.path.split("/")[5])
            return httpx.Response(403 if self.made[-1] == "a" else 201, json={"message": "exceeded quota"})
        if request.url.path in self.others:
            return httpx.Response(200, text=self.others[request.url.path])
        if request.url.path != NETWORK_POLICIES.path():
            return httpx.Response(404, json={})
        return httpx.Response(self.answers.pop(0), json={"metadata": {"resourceVersion": "1"}, "items": []})

    async def play(self, *removed: str, by: Callable[[httpx.Request], httpx.Response] | None = None) -> None:
        """VMs in the namespaces ``a`` and ``b``, until all answers are given; in one turn ``removed`` ones are gone."""
        clock, transport = FakeClock(), httpx.MockTransport(by or self)
        async with ApiClient(
            HttpApi(httpx.AsyncClient(base_url="http://api", transport=transport), lambda: None)
        ) as client:
            vms, pods = (Informer(client, kind, clock) for kind in (VIRTUAL_MACHINES, PODS))
            for namespace in ("a", "b"):
                vms._facts.learn(virtual_machine(namespace=namespace), reread=True)
            vms.synced.set()
            pods.synced.set()
            running = asyncio.create_task(RunnerPolicies(client, vms, pods, clock, "kube-system").run())
            count = len(self.answers)
            while self.answers:
                await settle()
                is_gone = len(self.answers) == count - 2
                for namespace in removed:
                    if is_gone:
                        vms._facts.forget(ObjectName(namespace, "db"))
                    else:
                        # Its UID is that of the VM that has gone, which only a restored store brings back.
                        vms._facts.reset_versions()
                        vms._facts.learn(virtual_machine(namespace=namespace), reread=True)
                await clock.advance(PAUSE)
            await settle()
            running.cancel()


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.namespace for each in caplog.records if "NetworkPolicy" in each.message]  # type: ignore[attr-defined]


async def test_a_refusal_holds_up_no_other_namespace(caplog: pytest.LogCaptureFixture) -> None:
    """A quota in one namespace: each reason is logged once, and the other namespaces get their policy."""
    api = Api([503, 200, 200, 200, 403])
    await api.play()
    assert api.made == ["a", "b"] * 3
    assert logged(caplog) == ["all", "a", "all"]


@pytest.mark.parametrize("spec", ["{}", '{"n": 1e999999}'], ids=["readable", "unreadable"])
@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("cilium.io/v2/ciliumnetworkpolicies", ["a"]),
        ("crd.projectcalico.org/v1/networkpolicies", ["a"]),
        ("crd.antrea.io/v1beta1/networkpolicies", ["a"]),
        ("cilium.io/v2/ciliumclusterwidenetworkpolicies", []),
        ("crd.projectcalico.org/v1/globalnetworkpolicies", []),
        ("crd.antrea.io/v1beta1/clusternetworkpolicies", []),
        ("policy.networking.k8s.io/v1alpha1/baselineadminnetworkpolicies", []),
        ("policy.networking.k8s.io/v1alpha2/clusternetworkpolicies", []),
    ],
)
async def test_policies_of_other_kinds_close(kind: str, spec: str, made: list[str]) -> None:
    """A NetworkPolicy that allows traffic may override each of them: Antrea's and the last two by their baseline
    tiers.
    """
    item = f'{{"metadata": {{"namespace": "b", "name": "deny"}}, "spec": {spec}}}'
    api = Api([200], {f"/apis/{kind}": f'{{"metadata": {{"resourceVersion": "1"}}, "items": [{item}]}}'})
    await api.play()
    assert api.made == made


async def test_all_pages_of_policies_count() -> None:
    """A cluster may have thousands of policies: they are never in memory all at once. The last page closes ``b``."""
    pages = {"": ("a", "2"), "2": ("b", "")}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST" or request.url.path != NETWORK_POLICIES.path():
            return api(request)
        assert int(request.url.params["limit"]) <= 20
        namespace, rest = pages[request.url.params.get("continue", "")]
        selector = {"matchLabels": {"app": "web"}} if namespace == "a" else {}
        policy = {"metadata": {"namespace": namespace, "name": "x"}, "spec": {"podSelector": selector}}
        metadata = {"resourceVersion": "1", "continue": rest}
        api.answers.clear()
        return httpx.Response(200, json={"metadata": metadata, "items": [policy]})

    api = Api([200])
    await api.play(by=answer)
    assert set(api.made) == {"a"}


async def test_a_reason_is_forgotten_with_its_vms(caplog: pytest.LogCaptureFixture) -> None:
    """The VM of ``a`` is deleted in the third turn and recreated in the fourth."""
    api = Api([200] * 4)
    await api.play("a")
    assert (api.made, logged(caplog)) == (["a", "b", "a", "b", "b", "a", "b"], ["a", "a"])
