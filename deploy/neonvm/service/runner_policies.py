"""Maintains a NetworkPolicy for the ports of runner pods in each namespace with VMs."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from deploy.neonvm.objects.runner_policy import (
    CLUSTER_POLICIES,
    NAME,
    NAMESPACED_POLICIES,
    PolicyAction,
    is_ours,
    new_policy,
    policy_action,
    relevant_fields,
    restoring_patch,
)
from deploy.neonvm.texts import controller as texts
from protocol.kubernetes.api import ApiError, ApiRefusedError, Tolerating
from protocol.kubernetes.objects import Json, labels_of, name_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import NETWORK_POLICIES, Resource
from protocol.messages import ObjectName
from protocol.names import LABEL_VM_NAME
from protocol.runtime.clock import Clock
from protocol.units import Seconds

_log = logging.getLogger("neonvm.policies")

PAUSE: Final = Seconds(10.0)
PAGE: Final = 20
"""Policies in memory at once: a tenant may have many, and the largest (1.5 MiB) take 20 MiB each."""


@dataclass(slots=True)
class RunnerPolicies:
    """The policies of all namespaces; ``own_namespace`` is the namespace of the programs that they admit."""

    client: ApiClient
    vms: Informer
    pods: Informer
    clock: Clock
    own_namespace: str
    _reasons: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """Reconcile periodically until cancelled. Failures are logged and retried; VMs do not wait for their policy."""
        await self.vms.synced.wait()  # before that all policies would be deleted, because no namespace has VMs
        await self.pods.synced.wait()
        while True:
            try:
                await self._reconcile()
                self._reasons.pop("", None)
            except ApiError as error:
                self._failed("", error)
            await self.clock.sleep(PAUSE)

    async def _reconcile(self) -> None:
        policies, closed = defaultdict[str, list[Json]](list), set[str]()
        async for page in self.client.pages(NETWORK_POLICIES, PAGE):
            closed |= {unreadable.name.namespace for unreadable in page.unreadable}
            for policy in page.objects:
                # Keep only the relevant fields: the largest policies take megabytes.
                policies[name_of(policy).namespace].append(relevant_fields(policy))
        for kind in NAMESPACED_POLICIES:
            closed |= await self._namespaces(kind)
        # A list, because `any` of a generator would skip kinds and their errors.
        is_closed_everywhere = any([await self._namespaces(kind) for kind in CLUSTER_POLICIES])
        vms = _by_namespace(self.vms.objects.values())
        pods = _by_namespace(pod for pod in self.pods.objects.values() if LABEL_VM_NAME in labels_of(pod))
        ours = {namespace for namespace, in_namespace in policies.items() if any(map(is_ours, in_namespace))}
        actions: dict[str, PolicyAction] = {}
        for namespace in sorted(vms.keys() | ours):
            others = is_closed_everywhere or namespace in closed
            vms_here, policies_here = vms.get(namespace, []), policies.get(namespace, [])
            if action := policy_action(self.own_namespace, vms_here, policies_here, others, pods.get(namespace, [])):
                actions[namespace] = action
        # Drop namespaces that no longer need action; "" stands for the whole reconciliation.
        self._reasons = {key: reason for key, reason in self._reasons.items() if key in actions or not key}
        for namespace, action in actions.items():
            await self._try(action, namespace)

    async def _namespaces(self, kind: Resource) -> set[str]:
        """The namespaces with objects of ``kind``, which may not be installed; {""} for cluster-scoped objects."""
        namespaces = set[str]()
        # Most clusters do not have these CRDs.
        with Tolerating(RefusalKind.NOT_FOUND):
            async for page in self.client.pages(kind, PAGE):
                namespaces |= {name.namespace for name in map(name_of, page.objects)}
                namespaces |= {unreadable.name.namespace for unreadable in page.unreadable}
        return namespaces

    async def _try(self, action: PolicyAction, namespace: str) -> None:
        """Execute the action; a refusal (quota, webhook, terminating namespace) does not affect other namespaces."""
        name = ObjectName(namespace, NAME)
        try:
            if action is PolicyAction.CREATE:
                await self.client.create(NETWORK_POLICIES, namespace, new_policy(self.own_namespace))
            elif action is PolicyAction.RESTORE:
                await self.client.merge_patch(NETWORK_POLICIES, name, restoring_patch(self.own_namespace))
            else:
                await self.client.delete(NETWORK_POLICIES, name)
            self._reasons.pop(namespace, None)
        except ApiRefusedError as error:
            self._failed(namespace, error)

    def _failed(self, namespace: str, error: Exception) -> None:
        """Log each reason once per namespace."""
        if self._reasons.get(namespace) != str(error):
            self._reasons[namespace] = str(error)
            _log.error(texts.POLICY_NOT_KEPT, extra={"namespace": namespace or "all", "reason": str(error)})


def _by_namespace(objects: Iterable[Json]) -> dict[str, list[Json]]:
    grouped = defaultdict[str, list[Json]](list)
    for resource in objects:
        grouped[name_of(resource).namespace].append(resource)
    return grouped
