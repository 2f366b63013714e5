"""Pods sent to the API server as dry runs: whether it admits those of our programs, and asks our webhook about VMs'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from deploy.kube.client import ApiClient, ApiUnavailableError, KubeApiError
from protocol.kubernetes.objects import Json, child, labels_of, name_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import PODS, SERVICE_ACCOUNTS
from protocol.names import LABEL_ENABLED, LABEL_INJECT, LABEL_VM_NAME, RUNNER_CONTAINER
from scripts.autoscale.check.facts import CheckFacts
from scripts.autoscale.check.gathering.looking import objects, why_not
from scripts.autoscale.check.installed_programs import agent_container
from scripts.autoscale.check.judges.certificate_ages import our_webhooks
from scripts.autoscale.check.looks import Look, SiteObservations, Unseen, UnseenError

AGENT_ACCOUNT: Final = "vm-agent"
NO_AGENT: Final = "the API server makes a VM's pod without an agent"
OF_A_VM: Final[Json] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "generateName": "autoscale-check-",
        "labels": {LABEL_VM_NAME: "autoscale-check", LABEL_ENABLED: "true"},
    },
    "spec": {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": RUNNER_CONTAINER,
                "image": "example.invalid/none",
                "resources": {key: {"cpu": "1m", "memory": "1Mi"} for key in ("requests", "limits")},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    },
}
"""A pod as our webhook is asked about it, within the strictest Pod Security and any quota."""

_BY_RIGHTS: Final = "cannot create resource"
_NO_DRY_RUN: Final = "dry run"


async def admission(
    client: ApiClient, namespace: str, workloads: Iterable[Json], *, is_installed: bool
) -> dict[str, Look[str]]:
    """By program: why a pod of it is refused, or nothing if it is not."""
    found = {name_of(each).name: pod_of(each, is_installed=is_installed) for each in workloads}
    looks = await asyncio.gather(*(_tried(client, namespace, pod) for pod in found.values()))
    return dict(zip(found, looks, strict=True))


def pod_of(workload: Json, *, is_installed: bool) -> Json:
    """A pod as the workload's template makes it. Before an installation its service account is not there yet (pure)."""
    template = child(workload, "spec", "template")
    metadata = {**child(template, "metadata"), "generateName": "autoscale-check-"}
    spec = child(template, "spec")
    if not is_installed:
        spec = {**spec, "serviceAccountName": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def injection(client: ApiClient, facts: CheckFacts) -> Look[str]:
    """Why a pod of a VM would get no agent, empty if it would: the API server's own way to the webhook is not ours."""
    try:
        our_webhooks(facts)
    except UnseenError as error:
        return Unseen(str(error))
    accounts = await objects(client, SERVICE_ACCOUNTS, fields=f"metadata.name={AGENT_ACCOUNT}")
    if isinstance(accounts, Unseen):
        return accounts
    where = [name_of(each).namespace for each in accounts.value]
    asked = [each for each in where if each not in _unasked(facts)]
    if not asked:
        return Unseen(f"no namespace of VMs has the service account {AGENT_ACCOUNT}")
    look = await _tried(client, asked[0], OF_A_VM, lambda made: "" if agent_container(made) else NO_AGENT)
    if isinstance(look, Unseen) or look.value in ("", NO_AGENT):
        return look
    return Unseen(f"a pod of a VM is refused in {asked[0]}: {look.value}")


def _unasked(facts: CheckFacts) -> set[str]:
    """The namespaces about whose pods the webhook is not asked."""
    known = [] if isinstance(facts.namespaces, Unseen) else facts.namespaces.value
    out = {name_of(each).name for each in known if labels_of(each).get(LABEL_INJECT) == "false"}
    return {*out, "kube-system", facts.namespace}


async def _tried(
    client: ApiClient, namespace: str, pod: Json, judge: Callable[[Json], str] = lambda _: ""
) -> Look[str]:
    """Why the pod is refused, or what ``judge`` says of it as it would be stored."""
    try:
        made = await client.try_create(PODS, namespace, pod)
    except KubeApiError as error:
        said = error.refusal.message
        if error.kind is RefusalKind.FORBIDDEN and _BY_RIGHTS in said:
            return Unseen(f"you may not create pods in {namespace}, not even as a dry run")
        if error.kind is RefusalKind.NOT_FOUND:
            return Unseen(f"there is no namespace {namespace}")
        if _NO_DRY_RUN in said:
            return Unseen(f"a webhook takes no dry runs: {said}")
        return SiteObservations(said.partition(" is forbidden: ")[2] or said)
    except ApiUnavailableError as error:
        return Unseen(f"create pods in {namespace} as a dry run: {why_not(error)}", has_failed=True)
    return SiteObservations(judge(made))
