"""The attacked cluster on a real API server: its objects, the tokens of who attacks, and how an attempt ended."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import httpx2 as httpx

from protocol.kubernetes.resources import MIGRATIONS, NODES, SERVICE_ACCOUNTS
from tests.deploy.manifests import WITH_PODS, documents
from tests.kubernetes.attacks.attempt import RBAC, Attempt
from tests.kubernetes.attacks.world import (
    ADMIN,
    ELSEWHERE,
    HOME,
    NAMESPACES,
    OBJECTS,
    SCHEDULER,
    SYSTEM,
    Obj,
    Who,
)
from tests.kubernetes.failing.bare_control_plane import BareControlPlane
from tests.kubernetes.failing.faulty_proxy import faulty_proxy
from tests.kubernetes.failing.fleet import Fleet, until

MERGE: Final = {"Content-Type": "application/merge-patch+json"}
_POLICY: Final = re.compile(r"ValidatingAdmissionPolicy '([^']+)'")
_ROLES: Final = frozenset({"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"})
_FENCES: Final = frozenset({"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"})
_OF_THE_LEADER: Final = "deploy/kubernetes/with-certificates/scheduler-leader.yaml"
"""What two schedulers may do beside what one may."""
_OPERATOR: Final[tuple[Obj, ...]] = (
    *(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        for name, labels in NAMESPACES.items()
    ),
    *(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
        for name, namespace in (
            ("operator", ELSEWHERE),
            ("tenant", HOME),
            *(("default", each) for each in (SYSTEM, *NAMESPACES)),
        )
    ),
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "tenant", "namespace": HOME},
        "rules": [
            {
                "apiGroups": ["vm.neon.tech"],
                "resources": ["virtualmachines", "virtualmachinemigrations"],
                "verbs": ["*"],
            }
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tenant", "namespace": HOME},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"},
        "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": HOME}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "operator-of-others"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": ELSEWHERE}],
    },
)
"""What a cluster of others has: namespaces, an operator that may do everything, and a tenant who may do so to VMs."""


@dataclass(frozen=True, slots=True)
class Attacked:
    """The cluster over ``http``, as an administrator; each attempt uses the token of its identity."""

    http: httpx.AsyncClient
    tokens: dict[Who, str] = field(default_factory=dict)

    async def end_of(self, tried: Attempt) -> str:
        """The layer that rejected the attempt: ``RBAC``, ``policy NAME``, or empty. Any other result is quoted."""
        answer = await self._made(tried)
        if answer.is_success:
            return ""
        said = str(answer.json()["message"])
        if answer.status_code != httpx.codes.FORBIDDEN:
            return f"{answer.status_code}: {said}"
        if policy := _POLICY.search(said):
            return f"policy {policy.group(1)}"
        return RBAC if f'User "{tried.who.username}" cannot' in said else said

    async def _made(self, tried: Attempt) -> httpx.Response:
        namespace = tried.namespace if tried.kind.namespaced else ""
        headers = await self._identity(tried.who)
        path = tried.kind.path(namespace, tried.name or None, tried.subresource)
        match tried.verb:
            case "create":
                path = path if tried.subresource else tried.kind.path(namespace)
                return await self.http.post(path, json=tried.body, headers=headers)
            case "patch":
                return await self.http.patch(path, json=tried.body, headers=headers | MERGE)
            case "update":
                version = (await self.http.get(path)).json()["metadata"]["resourceVersion"]
                body = tried.body | {"metadata": {**tried.body["metadata"], "resourceVersion": version}}
                return await self.http.put(path, json=body, headers=headers)
            case "delete":
                return await self.http.request("DELETE", path, json={"gracePeriodSeconds": 0}, headers=headers)
            case _:
                return await self.http.get(path, headers=headers)

    async def _identity(self, who: Who) -> dict[str, str]:
        if who.account and who not in self.tokens:
            namespace, _, account = who.account.partition(":")
            fleet, pod = Fleet(self.http), None
            if who.pod:
                pod = (await self.http.get(f"/api/v1/namespaces/{namespace}/pods/{who.pod}")).json()
            self.tokens[who] = await fleet.token(namespace, account, "", pod)
        return {"Authorization": f"Bearer {self.tokens[who]}"} if who.account else {}

    async def make(self) -> None:
        """Makes all objects, and says in their status what a cluster would say."""
        fleet = Fleet(self.http)
        await until(self._has_accounts, "there are accounts for pods")
        for kind, found in OBJECTS:
            meta = found["metadata"]
            namespace = meta.get("namespace", "")
            # Only the scheduler may label a migration as its own.
            by = SCHEDULER if kind is MIGRATIONS and "labels" in meta else ADMIN
            made = await self.http.post(kind.path(namespace), json=found, headers=await self._identity(by))
            assert made.is_success, made.text
            if kind is NODES:
                await fleet.patch(kind.path(name=meta["name"]), {"spec": {"taints": None}})
            if "status" in found:
                await fleet.patch(kind.path(namespace, meta["name"], "status"), {"status": found["status"]})

    async def _has_accounts(self) -> bool:
        return (await self.http.get(SERVICE_ACCOUNTS.path(ELSEWHERE, "default"))).is_success


@asynccontextmanager
async def attacked(plane: BareControlPlane) -> AsyncIterator[Attacked]:
    """The cluster with our roles and policies, once they are in force."""
    # Those for pods come last: their roles of the same names may do more.
    shipped = [*documents(), *documents(_OF_THE_LEADER), *documents(*WITH_PODS)]
    ours = [each for each in shipped if each["kind"] in _ROLES | _FENCES]
    plane.apply([*_OPERATOR, *ours])
    headers = {"Authorization": f"Bearer {plane.pki.admin_token}"}
    async with (
        faulty_proxy(plane) as way,
        httpx.AsyncClient(
            base_url=way.url, verify=plane.client_tls(), headers=headers, trust_env=False, timeout=20.0
        ) as http,
    ):
        made = Attacked(http)
        await made.make()
        yield made
