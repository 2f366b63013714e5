"""Submits pods as dry runs: of our programs for admission, and of a VM for our webhook."""

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
from scripts.autoscale.check.facts import CheckFacts, Observation, Observed, Unavailable, UnavailableError
from scripts.autoscale.check.gathering.observing import objects
from scripts.autoscale.check.installed_programs import agent_container
from scripts.autoscale.check.judges.certificate_ages import our_webhooks
from scripts.autoscale.terminal.api_failures import failure_reason

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
"""A VM's pod that even the strictest Pod Security and quotas admit."""

_BY_RIGHTS: Final = "cannot create resource"
_NO_DRY_RUN: Final = "dry run"


async def admission(
    client: ApiClient, namespace: str, workloads: Iterable[Json], *, is_installed: bool
) -> dict[str, Observation[str]]:
    """Reason why the API server refuses a pod of each program; empty if it does not."""
    pods = {name_of(workload).name: pod_of(workload, is_installed=is_installed) for workload in workloads}
    observations = await asyncio.gather(*(_dry_run(client, namespace, pod) for pod in pods.values()))
    return dict(zip(pods, observations, strict=True))


def pod_of(workload: Json, *, is_installed: bool) -> Json:
    """A pod from the workload's template (pure)."""
    template = child(workload, "spec", "template")
    metadata = {**child(template, "metadata"), "generateName": "autoscale-check-"}
    spec = child(template, "spec")
    if not is_installed:
        # The API server refuses any pod whose service account does not exist yet.
        spec = {**spec, "serviceAccountName": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def injection(client: ApiClient, facts: CheckFacts) -> Observation[str]:
    """Reason why a pod of a VM would get no agent; empty if it gets one."""
    try:
        our_webhooks(facts)
    except UnavailableError as error:
        return Unavailable(str(error))
    accounts = await objects(client, SERVICE_ACCOUNTS, fields=f"metadata.name={AGENT_ACCOUNT}")
    if isinstance(accounts, Unavailable):
        return accounts
    namespaces = [name_of(account).namespace for account in accounts.value]
    watched = [namespace for namespace in namespaces if namespace not in _excluded(facts)]
    if not watched:
        return Unavailable(f"no VM namespace has the service account {AGENT_ACCOUNT}")
    # The API server calls the webhook over a network path that no port-forward tests. One namespace suffices: the
    # webhook's rules are the same in each.
    observation = await _dry_run(client, watched[0], OF_A_VM, lambda made: "" if agent_container(made) else NO_AGENT)
    if isinstance(observation, Unavailable) or observation.value in ("", NO_AGENT):
        return observation
    # Another admission plugin refused the pod, so nothing is known about the webhook.
    return Unavailable(f"the API server refuses a VM pod in {watched[0]}: {observation.value}")


def _excluded(facts: CheckFacts) -> set[str]:
    """The namespaces that the webhook's rules exclude."""
    namespaces = [] if isinstance(facts.namespaces, Unavailable) else facts.namespaces.value
    excluded = {
        name_of(namespace).name for namespace in namespaces if labels_of(namespace).get(LABEL_INJECT) == "false"
    }
    # The webhook excludes kube-system and its own namespace, lest it block its own pod.
    return {*excluded, "kube-system", facts.namespace}


async def _dry_run(
    client: ApiClient, namespace: str, pod: Json, judge: Callable[[Json], str] = lambda _: ""
) -> Observation[str]:
    """Reason why the API server refuses the pod, or the verdict of ``judge`` on the pod that it would store."""
    try:
        made = await client.try_create(PODS, namespace, pod)
    except ApiRefusedError as error:
        message = error.refusal.message
        # Admission plugins (Pod Security, quotas) also answer Forbidden; only the text identifies a missing permission.
        if error.kind is RefusalKind.FORBIDDEN and _BY_RIGHTS in message:
            return Unavailable(f"you cannot create pods in {namespace}, not even as a dry run")
        if error.kind is RefusalKind.NOT_FOUND:
            return Unavailable(f"namespace {namespace} not found")
        # The API server refuses dry runs if a webhook declares side effects.
        if _NO_DRY_RUN in message:
            return Unavailable(f"a webhook does not support dry runs: {message}")
        # The text before " is forbidden: " only contains the pod's generated name.
        return Observed(message.partition(" is forbidden: ")[2] or message)
    except ApiUnknownError as error:
        return Unavailable(f"create pods in {namespace} as a dry run: {failure_reason(error)}", has_failed=True)
    return Observed(judge(made))
