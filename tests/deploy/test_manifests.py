"""Every manifest is one that a Kubernetes API takes, and everything that it refers to is in it."""

from __future__ import annotations

from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml
from pydantic import BaseModel, ValidationError

from tests import plain_yaml
from tests.deploy.manifests import (
    FILES,
    NOT_APPLIED,
    ROOT,
    WITH_CERTIFICATES,
    WITH_PODS,
    Document,
    Pod,
    documents,
    name_of,
    one,
    pods,
    pods_of,
)
from tests.local.apiserver.running import running_api_server
from tests.plain_http import plain_client

CUSTOM = {"VirtualMachine", "Issuer", "Certificate"}
"""The kinds that are not Kubernetes' own; ours are checked by their definitions when they are applied."""

ANYWHERE = {"VirtualMachine", "NetworkPolicy"}
"""The kinds of which people choose the namespace."""

OF_THE_CLUSTER = {
    "ClusterRole//system:auth-delegator",
    "ClusterRole//system:kube-scheduler",
    "ClusterRole//system:volume-scheduler",
    "Role/kube-system/extension-apiserver-authentication-reader",
    "PriorityClass//system-cluster-critical",
    "PriorityClass//system-node-critical",
}
"""What every cluster has."""

OF_THE_NODE: dict[str, dict[str, list[str]]] = {
    "neonvm-network": {"add": ["NET_ADMIN"]},
    "neonvm-devices": {},
    "reclaimer": {},
}
"""Containers that run as root: whose the folders of their node are. And what they may beside that."""

SECURED = documents(*WITH_CERTIFICATES)
FOR_PODS = documents(*WITH_PODS)
ALL_PODS = [*pods(), *pods_of(SECURED), *pods_of(FOR_PODS)]
PATIENCE = 400


def test_no_manifest_is_forgotten() -> None:
    shipped = {str(path.relative_to(ROOT)) for path in (ROOT / "deploy").rglob("*.yaml")} | {"vm-deploy.yaml"}
    assert {file for file in shipped if not any(fnmatch(file, each) for each in NOT_APPLIED)} == {
        *FILES,
        *WITH_CERTIFICATES,
        *WITH_PODS,
    }


def test_neonvm_resources_match_folder() -> None:
    parts = [ROOT / f"deploy/kubernetes/crds/{name}.yaml" for name in ("virtualmachinemigrations", "virtualmachines")]
    assert documents("deploy/neonvm.yaml") == [plain_yaml.load(part.read_text()) for part in parts]


def kubernetes_models() -> Any:
    """The official client's types; imported by the tests that use them, because that takes long."""
    return import_module("kubernetes.client.models")


def problems(document: Document) -> list[str]:
    """Errors of a built-in object according to the official client's types, which come from Kubernetes' OpenAPI.

    The local API server stores built-in kinds as they come; a misspelt field would be refused only by a real one.
    """
    model: type[BaseModel] = getattr(kubernetes_models(), f"V1{document['kind']}")
    try:
        model.model_validate(document)
    except ValidationError as error:
        return [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
    return []


@pytest.mark.parametrize("document", [*documents(), *SECURED, *FOR_PODS], ids=name_of)
def test_every_field_is_one_that_kubernetes_knows(document: Document) -> None:
    assert document["kind"] in CUSTOM or problems(document) == []


def test_bad_manifest_fields_are_found() -> None:
    ports = [{"name": "x"}]
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"prots": [], "ports": ports, "selector": {"a": 1}}}
    assert problems(service) == [
        "spec.ports.0.port: Field required",
        "spec.selector.a: Input should be a valid string",
        "spec.prots: Extra inputs are not permitted",
    ]


def collection(document: Document) -> str:
    group_version = document["apiVersion"]
    root = f"/apis/{group_version}" if "/" in group_version else f"/api/{group_version}"
    kind = document["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}{'es' if kind.endswith('ss') else 's'}"
    namespace = document["metadata"].get("namespace", "default" if document["kind"] in ANYWHERE else "")
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


async def applied(client: httpx.AsyncClient, document: Document) -> httpx.Response:
    """The server's response to a strict server-side apply, as in cluster-init.sh."""
    return await client.patch(
        f"{collection(document)}/{document['metadata']['name']}",
        content=yaml.safe_dump(document),
        headers={"Content-Type": "application/apply-patch+yaml"},
        params={"fieldManager": "test", "force": "true", "fieldValidation": "Strict"},
    )


def of_cert_manager(kind: str) -> Document:
    """A stand-in for a CRD of cert-manager, which accepts everything."""
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.cert-manager.io"},
        "spec": {
            "group": "cert-manager.io",
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


async def until_served(client: httpx.AsyncClient, path: str) -> None:
    for _ in range(PATIENCE):
        if (await client.get(path)).status_code == 200:
            return
    raise AssertionError(f"{path} is not served")


async def test_applying_twice_changes_nothing(tmp_path: Path) -> None:
    definitions = [of_cert_manager("Issuer"), of_cert_manager("Certificate"), *documents("deploy/neonvm.yaml")]
    objects = [each for each in documents() if each["kind"] != "CustomResourceDefinition"]
    async with running_api_server(tmp_path) as server:
        identity = {"Authorization": f"Bearer {server.token}"}
        async with plain_client(base_url=server.url, headers=identity) as client:
            for each in definitions:
                assert (await applied(client, each)).is_success, name_of(each)
            for each in definitions:
                spec = each["spec"]
                await until_served(client, f"/apis/{spec['group']}/v1/{spec['names']['plural']}")
            versions: list[list[Any]] = []
            for _ in range(2):
                answers = [await applied(client, each) for each in objects]
                assert [answer.text for answer in answers if not answer.is_success] == []
                versions.append([answer.json()["metadata"]["resourceVersion"] for answer in answers])
            assert versions[0] == versions[1]
            (vm,) = (each for each in objects if each["kind"] == "VirtualMachine")
            misspelt = {**vm, "spec": {**vm["spec"], "schedulername": "x"}}
            refused = await applied(client, misspelt)
            assert (refused.status_code, "schedulername" in refused.text) == (400, True)


def known() -> set[str]:
    """Every object that can be referred to; a Certificate also is the Secret that it fills."""
    secrets = {
        f"Secret/{each['metadata']['namespace']}/{each['spec']['secretName']}"
        for each in documents()
        if each["kind"] == "Certificate"
    }
    return {name_of(each) for each in [*documents(), *SECURED]} | secrets | OF_THE_CLUSTER


def references_of_pod(pod: Pod) -> set[str]:
    found = {f"ServiceAccount/{pod.namespace}/{pod.spec['serviceAccountName']}"}
    if "priorityClassName" in pod.spec:
        found.add(f"PriorityClass//{pod.spec['priorityClassName']}")
    for volume in pod.spec.get("volumes", ()):
        if "configMap" in volume:
            found.add(f"ConfigMap/{pod.namespace}/{volume['configMap']['name']}")
        if "secret" in volume:
            found.add(f"Secret/{pod.namespace}/{volume['secret']['secretName']}")
    return found


def references_of(document: Document) -> set[str]:
    namespace, spec = document["metadata"].get("namespace", ""), document.get("spec", {})
    match document["kind"]:
        case "ClusterRoleBinding" | "RoleBinding":
            role = document["roleRef"]
            place = "" if role["kind"] == "ClusterRole" else namespace
            subjects = {f"{each['kind']}/{each['namespace']}/{each['name']}" for each in document["subjects"]}
            return {f"{role['kind']}/{place}/{role['name']}"} | subjects
        case "Certificate":
            return {f"Issuer/{namespace}/{spec['issuerRef']['name']}"}
        case "Issuer" if "ca" in spec:
            return {f"Secret/{namespace}/{spec['ca']['secretName']}"}
        case _:
            return set()


@pytest.mark.parametrize("pod", ALL_PODS, ids=lambda pod: pod.owner)
def test_every_pod_is_one_that_kubernetes_knows(pod: Pod) -> None:
    assert kubernetes_models().V1PodSpec.model_validate(pod.spec).containers


@pytest.mark.parametrize("pod", ALL_PODS, ids=lambda pod: pod.owner)
def test_what_a_pod_refers_to_is_there(pod: Pod) -> None:
    assert references_of_pod(pod) - known() == set()


@pytest.mark.parametrize("document", [*documents(), *SECURED, *FOR_PODS], ids=name_of)
def test_what_an_object_refers_to_is_there(document: Document) -> None:
    assert references_of(document) - known() == set()


@pytest.mark.parametrize("pod", ALL_PODS, ids=lambda pod: pod.owner)
def test_volumes_and_mounts_match(pod: Pod) -> None:
    mounted = {mount["name"] for each in pod.containers for mount in each.get("volumeMounts", ())}
    assert mounted == {volume["name"] for volume in pod.spec.get("volumes", ())}


@pytest.mark.parametrize("pod", ALL_PODS, ids=lambda pod: pod.owner)
def test_containers_are_locked_down_with_requests(pod: Pod) -> None:
    for each in pod.containers:
        security = {**pod.spec.get("securityContext", {}), **each["securityContext"]}
        assert security.get("runAsNonRoot") or each["name"] in OF_THE_NODE
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"], **OF_THE_NODE.get(each["name"], {})}
        assert set(each["resources"]["requests"]) == {"cpu", "memory"}


@pytest.mark.parametrize("pod", ALL_PODS, ids=lambda pod: pod.owner)
def test_failure_message_reaches_pod_status(pod: Pod) -> None:
    assert {each.get("terminationMessagePolicy") for each in pod.containers} == {"FallbackToLogsOnError"}


@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget"])
def test_a_selector_finds_the_pods_that_it_means(kind: str) -> None:
    for each in (each for each in documents() if each["kind"] == kind):
        selector = each["spec"]["selector"]
        wanted = selector.get("matchLabels", selector).items()
        (pod,) = (pod for pod in pods() if wanted <= pod.labels.items())
        ports = {port["name"] for container in pod.containers for port in container.get("ports", ())}
        assert {port["targetPort"] for port in each["spec"].get("ports", ())} <= ports


def test_a_workload_selects_its_own_pods() -> None:
    for pod in (pod for pod in pods() if pod.labels):
        kind, _, name = pod.owner.split("/")
        assert one(kind, name)["spec"]["selector"]["matchLabels"].items() <= pod.labels.items()


def test_reclaimer_has_no_token() -> None:
    """Of the agent's pod only the agent speaks to the API and to the scheduler; both see the cgroups and the socket.

    The reclaimer's records are its own, and outlive the pod: a limit that was left low is put back by the next one.
    """
    (agents,) = (each for each in pods_of(FOR_PODS) if each.owner == "DaemonSet/kube-system/autoscaling-agent")
    assert agents.spec["automountServiceAccountToken"] is False
    agent, reclaimer = agents.containers
    mounts = [
        {mount["name"]: mount.get("readOnly", False) for mount in each["volumeMounts"]} for each in agents.containers
    ]
    shared = {"cgroup": True, "reclaimer": False}
    tokens = {"identity": True, "api-access": True, "policy": True, "guests": True}
    assert mounts == [tokens | shared, {"cgroup": False, "reclaimer": False, "holds": False}]
    (holds,) = (volume for volume in agents.spec["volumes"] if volume["name"] == "holds")
    assert holds["hostPath"] == {"path": "/run/autoscaling-reclaimer", "type": "DirectoryOrCreate"}
    variables = {each["name"]: each.get("value") for each in agent["env"]}
    own = {each["name"]: each["value"] for each in reclaimer["env"]}
    assert own.pop("RECLAIMER_RECORDS") == reclaimer["volumeMounts"][-1]["mountPath"]
    assert own == {name: variables[name] for name in own}
    assert (reclaimer["image"], reclaimer["command"][-1]) == (agent["image"], "agent.reclaimer")


def test_lease_free_scheduler_keeps_default_tolerations() -> None:
    """It may still act there, and nothing keeps the one that replaces it from acting too."""
    (scheduler,) = (each for each in pods() if each.owner == "Deployment/kube-system/autoscaling-scheduler")
    assert not [arg for arg in scheduler.containers[0]["args"] if arg.startswith("--lease")]
    assert [each for each in scheduler.spec.get("tolerations", []) if "tolerationSeconds" in each] == []


def test_replicas_use_lease_and_leader_service() -> None:
    """A selector that finds nothing empties what Kubernetes wrote for a scheduler that acted alone before."""
    found = {name_of(each): each["spec"] for each in SECURED if "spec" in each}
    selector = found["Service/kube-system/autoscaling-scheduler"]["selector"]
    assert [pod.owner for pod in ALL_PODS if selector.items() <= pod.labels.items()] == []
    workload = found["Deployment/kube-system/autoscaling-scheduler"]
    assert (workload["replicas"], workload["strategy"]["type"]) == (2, "RollingUpdate")
    (scheduler,) = (each for each in pods_of(SECURED) if each.owner == "Deployment/kube-system/autoscaling-scheduler")
    assert "--lease=kube-system/autoscaling-scheduler" in scheduler.containers[0]["args"]
