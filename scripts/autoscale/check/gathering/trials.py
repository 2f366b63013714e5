"""Pods sent to the API server as dry runs: those of our programs, and one of a VM for our webhook."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from deploy.kube.client import ApiClient
from protocol.kubernetes.api import ApiRefusedError, ApiUnknownError
from protocol.kubernetes.objects import Json, child, labels_of, name_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import PODS, SERVICE_ACCOUNTS
from protocol.names import LABEL_ENABLED, LABEL_INJECT, LABEL_VM_NAME, RUNNER_CONTAINER
from scripts.autoscale.check.facts import CheckFacts, Look, SiteObservations, Unseen, UnseenError
from scripts.autoscale.check.gathering.looking import objects, why_not
from scripts.autoscale.check.installed_programs import agent_container
from scripts.autoscale.check.judges.certificate_ages import our_webhooks

AGENT_ACCOUNT: Final = "vm-agent"
NO_AGENT: Final = "a dry run created a VM pod without an agent"
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
    pods = {name_of(workload).name: pod_of(workload, is_installed=is_installed) for workload in workloads}
    looks = await asyncio.gather(*(_tried(client, namespace, pod) for pod in pods.values()))
    return dict(zip(pods, looks, strict=True))


def pod_of(workload: Json, *, is_installed: bool) -> Json:
    """A pod as the workload's template makes it. Before an installation its service account is not there yet (pure)."""
    template = child(workload, "spec", "template")
    metadata = {**child(template, "metadata"), "generateName": "autoscale-check-"}
    spec = child(template, "spec")
    if not is_installed:
        # A pod whose service account is missing is refused, whatever else is in order.
        spec = {**spec, "serviceAccountName": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def injection(client: ApiClient, facts: CheckFacts) -> Look[str]:
    """Reason why a pod of a VM would get no agent; empty if it gets one."""
    try:
        our_webhooks(facts)
    except UnseenError as error:
        return Unseen(str(error))
    accounts = await objects(client, SERVICE_ACCOUNTS, fields=f"metadata.name={AGENT_ACCOUNT}")
    if isinstance(accounts, Unseen):
        return accounts
    namespaces = [name_of(account).namespace for account in accounts.value]
    watched = [namespace for namespace in namespaces if namespace not in _unasked(facts)]
    if not watched:
        return Unseen(f"no VM namespace has the service account {AGENT_ACCOUNT}")
    # The API server calls the webhook over a network path that no port-forward tests. One namespace stands for all:
    # the webhook's rules are the same in each.
    look = await _tried(client, watched[0], OF_A_VM, lambda made: "" if agent_container(made) else NO_AGENT)
    if isinstance(look, Unseen) or look.value in ("", NO_AGENT):
        return look
    # Another admission plugin refused the pod before the webhook could be judged.
    return Unseen(f"the API server refuses a VM pod in {watched[0]}: {look.value}")


def _unasked(facts: CheckFacts) -> set[str]:
    """The namespaces about whose pods the webhook is not asked."""
    namespaces = [] if isinstance(facts.namespaces, Unseen) else facts.namespaces.value
    excluded = {
        name_of(namespace).name for namespace in namespaces if labels_of(namespace).get(LABEL_INJECT) == "false"
    }
    # The webhook leaves out kube-system and its own namespace, or it could block its own pod.
    return {*excluded, "kube-system", facts.namespace}


async def _tried(
    client: ApiClient, namespace: str, pod: Json, judge: Callable[[Json], str] = lambda _: ""
) -> Look[str]:
    """Reason why the pod is refused, or the verdict of ``judge`` on the pod as it would be stored."""
    try:
        made = await client.try_create(PODS, namespace, pod)
    except ApiRefusedError as error:
        message = error.refusal.message
        # Admission plugins (Pod Security, quotas) answer Forbidden, too; a missing right has its own words.
        if error.kind is RefusalKind.FORBIDDEN and _BY_RIGHTS in message:
            return Unseen(f"you may not create pods in {namespace}, not even as a dry run")
        if error.kind is RefusalKind.NOT_FOUND:
            return Unseen(f"there is no namespace {namespace}")
        # A webhook that declares side effects makes the API server refuse dry runs.
        if _NO_DRY_RUN in message:
            return Unseen(f"a webhook does not support dry runs: {message}")
        # The text before " is forbidden: " only repeats the pod's generated name.
        return SiteObservations(message.partition(" is forbidden: ")[2] or message)
    except ApiUnknownError as error:
        return Unseen(f"create pods in {namespace} as a dry run: {why_not(error)}", has_failed=True)
    return SiteObservations(judge(made))
