"""Keeps a NetworkPolicy around the ports of runner pods in each namespace that has VMs."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from deploy.neonvm.objects.runner_policy import (
    NAME,
    OF_CLUSTERS,
    OF_NAMESPACES,
    Todo,
    deciding_part,
    is_ours,
    new_policy,
    policy_todo,
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
    """The policies of all namespaces; ``home`` is that of the programs which they let in."""

    client: ApiClient
    vms: Informer
    pods: Informer
    clock: Clock
    home: str
    _reasons: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """Works until cancelled. What fails is logged and tried again: a VM never waits for its policy."""
        await self.vms.synced.wait()  # until then no namespace seems to have VMs, and all policies would go
        await self.pods.synced.wait()
        while True:
            try:
                await self._turn()
                self._reasons.pop("", None)
            except ApiError as error:
                self._failed("", error)
            await self.clock.sleep(PAUSE)

    async def _turn(self) -> None:
        policies, closed = defaultdict[str, list[Json]](list), set[str]()
        async for page in self.client.pages(NETWORK_POLICIES, PAGE):
            closed |= {unreadable.name.namespace for unreadable in page.unreadable}
            for policy in page.objects:
                # Only the deciding part is kept: the largest policies take megabytes.
                policies[name_of(policy).namespace].append(deciding_part(policy))
        for kind in OF_NAMESPACES:
            closed |= await self._namespaces(kind)
        # A list, because each kind has to be asked: an error there must not go unseen.
        is_closed_everywhere = any([await self._namespaces(kind) for kind in OF_CLUSTERS])
        vms = _by_namespace(self.vms.objects.values())
        pods = _by_namespace(pod for pod in self.pods.objects.values() if LABEL_VM_NAME in labels_of(pod))
        ours = {namespace for namespace, in_namespace in policies.items() if any(map(is_ours, in_namespace))}
        todos: dict[str, Todo] = {}
        for namespace in sorted(vms.keys() | ours):
            others = is_closed_everywhere or namespace in closed
            vms_here, policies_here = vms.get(namespace, []), policies.get(namespace, [])
            if todo := policy_todo(self.home, vms_here, policies_here, others, pods.get(namespace, [])):
                todos[namespace] = todo
        # A namespace that needs nothing any more is forgotten; "" stands for the whole turn.
        self._reasons = {key: reason for key, reason in self._reasons.items() if key in todos or not key}
        for namespace, todo in todos.items():
            await self._try(todo, namespace)

    async def _namespaces(self, kind: Resource) -> set[str]:
        """The namespaces with objects of a kind that the cluster may not have; empty for objects of the cluster."""
        namespaces = set[str]()
        # Most clusters have none of these kinds: their API is not installed.
        with Tolerating(RefusalKind.NOT_FOUND):
            async for page in self.client.pages(kind, PAGE):
                namespaces |= {name.namespace for name in map(name_of, page.objects)}
                namespaces |= {unreadable.name.namespace for unreadable in page.unreadable}
        return namespaces

    async def _try(self, todo: Todo, namespace: str) -> None:
        """One namespace; a refusal there (a quota, a webhook, a namespace that ends) holds up no other."""
        name = ObjectName(namespace, NAME)
        try:
            if todo is Todo.CREATE:
                await self.client.create(NETWORK_POLICIES, namespace, new_policy(self.home))
            elif todo is Todo.RESTORE:
                await self.client.merge_patch(NETWORK_POLICIES, name, restoring_patch(self.home))
            else:
                await self.client.delete(NETWORK_POLICIES, name)
            self._reasons.pop(namespace, None)
        except ApiRefusedError as error:
            self._failed(namespace, error)

    def _failed(self, namespace: str, error: Exception) -> None:
        """Logs each reason once."""
        if self._reasons.get(namespace) != str(error):
            self._reasons[namespace] = str(error)
            _log.error(texts.POLICY_NOT_KEPT, extra={"namespace": namespace or "all", "reason": str(error)})


def _by_namespace(objects: Iterable[Json]) -> dict[str, list[Json]]:
    grouped = defaultdict[str, list[Json]](list)
    for resource in objects:
        grouped[name_of(resource).namespace].append(resource)
    return grouped
