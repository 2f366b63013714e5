"""Sign-ins at the dashboard, as a process with its own service account and rights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import httpx2 as httpx

from deploy.neonvm.network.sockets import free_ports
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from tests.deploy.manifests import Document, documents
from tests.kubernetes.attacks import doors
from tests.kubernetes.attacks.doors import Door
from tests.kubernetes.attacks.world import Obj
from tests.kubernetes.failing.fleet import Fleet, until
from tests.kubernetes.failing.our_programs import Identity, process, python
from tests.plain_http import plain_client

HOME: Final = "default"
OTHER: Final = "next-door"
CLERK: Final = "clerk"
NOBODY: Final = "nobody"
_RIGHTS: Final = frozenset({"ServiceAccount", "ClusterRole", "ClusterRoleBinding"})


def people() -> list[Document]:
    """The program's own rights, an account that may list one namespace's VMs and one that may list none, and a VM of
    another namespace.
    """
    ours = [each for each in documents("deploy/kubernetes/dashboard.yaml") if each["kind"] in _RIGHTS]
    rbac = "rbac.authorization.k8s.io"
    role = {
        "rules": [{"apiGroups": [VIRTUAL_MACHINES.group], "resources": [VIRTUAL_MACHINES.plural], "verbs": ["list"]}]
    }
    bound = {
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": CLERK},
        "subjects": [{"kind": "ServiceAccount", "name": CLERK, "namespace": HOME}],
    }
    guest = {
        "cpus": {"min": 1, "max": 1, "use": 1},
        "memorySlots": {"min": 1, "max": 1, "use": 1},
        "rootDisk": {"image": "postgres"},
    }
    return [
        *ours,
        *(_named("v1", "ServiceAccount", name, HOME, {}) for name in (CLERK, NOBODY)),
        _named(f"{rbac}/v1", "Role", CLERK, HOME, role),
        _named(f"{rbac}/v1", "RoleBinding", CLERK, HOME, bound),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OTHER}},
        _named(VIRTUAL_MACHINES.api_version, VIRTUAL_MACHINES.kind, "theirs", OTHER, {"spec": {"guest": guest}}),
    ]


def _named(version: str, kind: str, name: str, namespace: str, rest: Obj) -> Document:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, **rest}


@dataclass(frozen=True, slots=True)
class Page:
    """The page at ``http``'s base URL."""

    http: httpx.AsyncClient

    async def signs_in(self, token: str, **headers: str) -> str:
        """The reason why a sign-in with that token is rejected; keeps the session, if any."""
        self.http.cookies.clear()
        answer = await self.http.post("/api/session", json={"token": token}, headers=headers)
        return {200: "", 403: doors.NOT_OWN}.get(answer.status_code, str(answer.status_code))

    async def looks_at(self, namespace: str, vm: str) -> str:
        """The reason why a VM is not shown."""
        status = (await self.http.get(f"/api/vms/{namespace}/{vm}")).status_code
        return {200: "", 401: doors.SIGN_IN, 404: doors.NOT_THEIRS}.get(status, str(status))


async def of_page(page: Page, fleet: Fleet, vm: str, of_agent: str) -> dict[Door, str]:
    """The result for each caller. ``vm`` is one of ``HOME``, and ``of_agent`` a token for the scheduler."""
    refused = "401"  # the page does not say which of the reviews it was
    clerk, nobody = [await fleet.token(HOME, each) for each in (CLERK, NOBODY)]
    found = {doors.NO_SESSION: await page.looks_at(HOME, vm)}
    for door, token in {doors.NO_TOKEN_THERE: "admin", doors.AGENT_THERE: of_agent, doors.NOBODY: nobody}.items():
        end = await page.signs_in(token)
        found[door] = door.refused_by if end == refused else end
    found[doors.OTHER_SITE] = await page.signs_in(clerk, **{"Sec-Fetch-Site": "cross-site"})
    assert await page.signs_in(clerk) == ""
    found[doors.CLERK] = await page.looks_at(HOME, vm)
    found[doors.CURIOUS] = await page.looks_at(OTHER, "theirs")
    assert await page.signs_in(await fleet.token("kube-system", "autoscaling-dashboard")) == ""
    assert await page.looks_at(OTHER, "theirs") == "", "it is there"
    return found


@asynccontextmanager
async def page_of(known: Identity, scheduler: str) -> AsyncIterator[Page]:
    """The program with that identity, once it has read the cluster."""
    page, probes = free_ports(2)
    listens = (f"--listen=127.0.0.1:{page}", f"--metrics-listen=127.0.0.1:{probes}", f"--scheduler={scheduler}")
    with process(
        known.folder / "log", *python("scheduler_plugin.dashboard"), f"--kubeconfig={known.kubeconfig}", *listens
    ):
        async with plain_client(base_url=f"http://127.0.0.1:{page}") as http, plain_client() as probing:

            async def is_ready() -> bool:
                try:
                    return (await probing.get(f"http://127.0.0.1:{probes}/readyz")).is_success
                except httpx.TransportError:
                    return False

            await until(is_ready, "the page has read the cluster")
            yield Page(http)
