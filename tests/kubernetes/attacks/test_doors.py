"""Callers of our programs' ports and of the API server, with real tokens, real reviews and real TLS."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2 as httpx
import pytest

from protocol.names import TOKEN_AUDIENCE
from tests.kubernetes.attacks import doors
from tests.kubernetes.attacks.doors import DOORS, Door
from tests.kubernetes.attacks.page_door import Page, of_page, page_of, people
from tests.kubernetes.attacks.runner_door import of_runner
from tests.kubernetes.attacks.table import door_rows
from tests.kubernetes.attacks.world import SYSTEM, Obj, pod
from tests.kubernetes.failing.bare_control_plane import BareControlPlane
from tests.kubernetes.failing.faulty_proxy import faulty_proxy
from tests.kubernetes.failing.fleet import VMS, Fleet, Vm, until
from tests.kubernetes.failing.our_programs import Scheduler, identity, scheduler
from tests.kubernetes.failing.permit_asker import SMALL, Asker
from tests.scheduler_plugin.certificates import files

pytestmark = pytest.mark.kubernetes

_SAYS: Final = {200: "", 401: doors.TOKEN, 403: doors.WHOSE, 404: doors.UNKNOWN}
_ARGUMENTS: Final = {"Pod": {"metadata": {"name": "x", "namespace": "default"}, "spec": {}}, "NodeNames": []}


@dataclass(frozen=True, slots=True)
class Street:
    """Two VMs on two nodes, our scheduler, and the pods of others whose tokens are tried."""

    fleet: Fleet
    ours: Scheduler
    page: Page
    folder: Path
    one: Vm
    two: Vm

    async def agents_port(self, token: str, vm: Vm | None = None) -> str:
        """The reason why a request with this token, for the first VM or another, is rejected."""
        asked = vm or self.one
        asker = Asker(Vm(asked.name, asked.node, asked.uid, token), self.ours.agents, self.ours.http, SMALL)
        status = await asker.ask(SMALL)
        return _SAYS.get(status, str(status))

    async def token(self, name: str, account: str, node: str, namespace: str = SYSTEM) -> str:
        """A token for the scheduler of a new pod of that account on that node."""
        made = await self.fleet.create(f"/api/v1/namespaces/{namespace}/pods", pod(name, node, namespace, account))
        return await self.fleet.token(namespace, account, TOKEN_AUDIENCE, made)

    async def of_vm(self, audience: str = "") -> str:
        """A token of the first VM's agent."""
        return await self.fleet.token("default", "vm-agent", audience, await self.fleet.pod(self.one))

    async def api_server(self, token: str) -> str:
        """The reason why reading the VMs of a namespace is rejected."""
        headers = {"Authorization": f"Bearer {token}"}
        answer = await self.fleet.http.get(VMS, headers=headers)
        said = answer.json().get("message", "")
        return {200: "", 401: doors.TOKEN}.get(answer.status_code, "RBAC" if "cannot" in said else said)

    async def extender(self, name: str = "", authority: str = "", token: str = "") -> str:
        """The reason why a client with the certificate of that name, signed by ``authority``, is rejected."""
        trust = ssl.create_default_context(cafile=str(files(self.folder, "server")[0]))
        if name:
            trust.load_cert_chain(*files(self.folder, name, authority))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with httpx.AsyncClient(verify=trust, trust_env=False) as http:
            try:
                answer = await http.post(f"https://{self.ours.extender}/filter", json=_ARGUMENTS, headers=headers)
            except httpx.TransportError:  # after the handshake, in TLS 1.3: the server hangs up
                return doors.TLS
        return {200: "", 403: doors.NOT_FOR_IT}.get(answer.status_code, str(answer.status_code))


async def of_agents_port(street: Street) -> dict[Door, str]:
    agent, other = "autoscaling-agent", "autoscaling-groups"
    await until_heard(street)
    gone, by_node = await street.fleet.vm(street.one.node), await street.fleet.vm(street.one.node)
    await until_known(street, gone)
    near = await street.token("near", agent, street.one.node)
    await until(lambda: said(street.agents_port(near, by_node), ""), "the VM of the node's agent is known", 60.0)
    found = {
        doors.OWN_POD: await street.agents_port(street.one.token),
        doors.OWN_NODE: await street.agents_port(near, by_node),
        doors.OTHER_POD: await street.agents_port(street.two.token),
        doors.OTHER_NODE: await street.agents_port(await street.token("far", agent, street.two.node)),
        doors.OTHER_ACCOUNT: await street.agents_port(await street.token("beside", other, street.one.node)),
        doors.NO_TOKEN: await street.agents_port("admin"),
        doors.OTHER_AUDIENCE: await street.agents_port(await street.of_vm()),
        doors.UNBOUND: await street.agents_port(await street.fleet.token("default", "vm-agent", TOKEN_AUDIENCE)),
    }
    await street.fleet.remove(gone)
    await until(lambda: said(street.agents_port(gone.token, gone), doors.UNKNOWN), "its pod is gone", 60.0)
    return {**found, doors.GONE: await street.agents_port(gone.token, gone)}


async def of_api_server(street: Street) -> dict[Door, str]:
    gone = await street.fleet.vm(street.one.node)
    token = await street.fleet.token("default", "vm-agent", "", await street.fleet.pod(gone))
    await street.fleet.remove(gone)
    anonymous = await street.fleet.http.get(VMS, headers={"Authorization": ""})
    return {
        doors.ANONYMOUS: "RBAC"
        if "system:anonymous" in anonymous.text and anonymous.status_code == 403
        else anonymous.text,
        doors.FOR_SCHEDULER: await street.api_server(await street.of_vm(TOKEN_AUDIENCE)),
        doors.GONE_AT_API: await street.api_server(token),
    }


async def of_extender(street: Street) -> dict[Door, str]:
    return {
        doors.CERTIFIED: await street.extender("autoscaling-kube-scheduler", "clients"),
        doors.UNCERTIFIED: await street.extender(),
        doors.STRANGER: await street.extender("stranger"),
        doors.OTHER_CLIENT: await street.extender("billing", "clients"),
        doors.WITH_TOKEN: await street.extender(token=street.one.token),
    }


async def said(asked: Awaitable[str], wanted: str) -> bool:
    return await asked == wanted


async def until_heard(street: Street) -> None:
    await until(lambda: said(street.agents_port(street.one.token), ""), "the first VM is known", 60.0)


async def until_known(street: Street, vm: Vm) -> None:
    await until(lambda: said(street.agents_port(vm.token, vm), ""), "the VM is known", 60.0)


@asynccontextmanager
async def street(plane: BareControlPlane, folder: Path) -> AsyncIterator[Street]:
    async with faulty_proxy(plane) as way:
        headers = {"Authorization": f"Bearer {plane.pki.admin_token}"}
        async with httpx.AsyncClient(
            base_url=way.url, verify=plane.client_tls(), headers=headers, trust_env=False, timeout=20.0
        ) as http:
            fleet = Fleet(http)
            one, two = [await fleet.vm(await fleet.node()) for _ in range(2)]
            known = identity(folder / "scheduler", plane, way, await fleet.token(SYSTEM, "autoscaling-scheduler"))
            (certificate, key), (clients, _) = files(folder, "server"), files(folder, "clients")
            tls = [f"--extender-tls-cert={certificate}", f"--extender-tls-key={key}", f"--extender-client-ca={clients}"]
            async with scheduler(known, 0.0, *tls, "--extender-client-name=autoscaling-kube-scheduler") as ours:
                theirs = identity(folder / "page", plane, way, await fleet.token(SYSTEM, "autoscaling-dashboard"))
                async with page_of(theirs, ours.probes) as page:
                    yield Street(fleet, ours, page, folder, one, two)


async def test_callers_are_admitted_as_documented(
    plane: BareControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accounts = ("default", "autoscaling-agent")
    plane.apply([*(_account(name) for name in accounts), *people()])
    async with street(plane, tmp_path) as found:
        ends = await of_agents_port(found) | await of_api_server(found) | await of_extender(found)
        ends |= await of_runner(found.fleet, found.one, found.two, tmp_path)
        ends |= await of_page(found.page, found.fleet, found.one.name, found.one.token)
    with capsys.disabled():
        print("", *door_rows((each, ends[each]) for each in DOORS), sep="\n")
    assert {each: end for each, end in ends.items() if end != each.refused_by} == {}


def _account(name: str) -> Obj:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": SYSTEM}}
