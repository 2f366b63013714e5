"""VMs on nodes as objects of a real API server, what of them may be used, and agents that ask for it.

What is asserted here is read from the objects and from the answers to agents, never from a program's own book alone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2 as httpx

from protocol.names import ANNOTATION_PERMIT, TOKEN_AUDIENCE
from protocol.permits import decode_permit
from protocol.units import Bytes, Resources
from protocol.virtual_machine import parse_virtual_machine
from tests.kubernetes.real_kubernetes import PATIENCE, NotYetError

Obj = dict[str, Any]
NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/namespaces/default/pods"
AGENT_PODS: Final = "/api/v1/namespaces/kube-system/pods"
VMS: Final = "/apis/vm.neon.tech/v1/namespaces/default/virtualmachines"
ACCOUNT: Final = "/api/v1/namespaces/{}/serviceaccounts/{}/token"
MERGE: Final = {"Content-Type": "application/merge-patch+json"}
ZERO: Final = Resources.parse("0", "0")
SIZE: Final = Resources.parse("8", "32Gi")
"""What each node has, and may be used whole."""

SLOT: Final = Bytes.parse("1Gi")

_numbers = itertools.count(1)


class UnansweredError(Exception):
    """The API server refused a request; the message quotes it."""


async def until(look: Callable[[], Awaitable[object]], what: str, seconds: float = PATIENCE) -> None:
    """Wait until ``look`` returns True. Raises ``NotYetError``."""
    try:
        async with asyncio.timeout(seconds):
            while not await _so_far(look):  # noqa: ASYNC110 - what is waited for is in other processes
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise NotYetError(f"{what}: not within {seconds:g} s") from None


async def _so_far(look: Callable[[], Awaitable[object]]) -> object:
    """The result of ``look``; nothing while the API server does not respond."""
    try:
        return await look()
    except (httpx.TransportError, UnansweredError):
        return None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The cluster's objects, as an administrator sees them over ``http``. Pods of VMs are made with ``requests``."""

    http: httpx.AsyncClient
    requests: Mapping[str, str] = field(default_factory=dict)

    async def node(self) -> str:
        """A node of ``SIZE``; its name."""
        name = f"node-{next(_numbers)}"
        await self.create(NODES, {"metadata": {"name": name}})
        amounts = {"cpu": SIZE.cpu.quantity(), "memory": SIZE.mem.quantity(), "pods": "110"}
        conditions = [{"type": "Ready", "status": "True"}]
        status = {"status": {"allocatable": amounts, "capacity": amounts, "conditions": conditions}}
        await self.patch(f"{NODES}/{name}/status", status)
        await self.patch(f"{NODES}/{name}", {"spec": {"taints": None}})
        return name

    async def vm(self, node: str, cpu: str | int = 1, slots: int = 4) -> Vm:
        """A VM that runs on ``node``, with its pod."""
        name = f"db-{next(_numbers)}"
        labels = {"autoscaling.neon.tech/enabled": "true"}
        made = await self.create(
            VMS, {**_vm(name), "metadata": {"name": name, "labels": labels}, "spec": {"guest": _guest(cpu, slots)}}
        )
        pod = await self.create(PODS, _pod(made, node, self.requests))
        await self.patch(f"{PODS}/{name}-pod/status", {"status": {"phase": "Running", "podIP": "10.244.1.9"}})
        used = {"cpus": cpu, "memorySize": f"{slots}Gi"}
        status = {"phase": "Running", "podName": f"{name}-pod", "node": node, **used}
        await self.patch(f"{VMS}/{name}/status", {"status": status})
        token = await self.token("default", "vm-agent", TOKEN_AUDIENCE, pod)
        return Vm(name, node, made["metadata"]["uid"], token)

    async def unbound_vm(self) -> Vm:
        """A VM whose pod has no node yet."""
        name = f"db-{next(_numbers)}"
        made = await self.create(VMS, {**_vm(name), "spec": {"guest": _guest(1, 4)}})
        await self.patch(f"{VMS}/{name}/status", {"status": {"podName": f"{name}-pod"}})
        pod = _pod(made, "", self.requests)
        del pod["spec"]["nodeName"]
        await self.create(PODS, pod)
        return Vm(name, "", made["metadata"]["uid"], "")

    async def resize(self, vm: Vm, cpu: int, slots: int) -> None:
        """Order this size for the VM, and wait until it has it."""
        await self.patch(f"{VMS}/{vm.name}", {"spec": {"guest": _guest(cpu, slots)}})
        await self.patch(f"{VMS}/{vm.name}/status", {"status": {"cpus": cpu, "memorySize": f"{slots}Gi"}})

    async def move(self, vm: Vm, node: str) -> None:
        """The VM's pod is replaced by one of the same name on another node."""
        made = _body(await self.http.get(f"{VMS}/{vm.name}"))
        await self.http.request("DELETE", f"{PODS}/{vm.name}-pod", json={"gracePeriodSeconds": 0})
        await self.create(PODS, _pod(made, node, self.requests))

    async def agent_pod(self, node: str) -> Obj:
        """The pod of the agent of a node."""
        spec = {
            "nodeName": node,
            "serviceAccountName": "autoscaling-agent",
            "containers": [{"name": "agent", "image": "agent"}],
        }
        made = await self.create(AGENT_PODS, {"metadata": {"name": f"agent-{node}"}, "spec": spec})
        await self.patch(f"{AGENT_PODS}/agent-{node}/status", {"status": {"phase": "Running"}})
        return made

    async def pod(self, vm: Vm) -> Obj:
        """The pod of a VM."""
        return _body(await self.http.get(f"{PODS}/{vm.name}-pod"))

    async def bare_vm(self) -> str:
        """A VM without a pod; its name."""
        name = f"db-{next(_numbers)}"
        await self.create(VMS, {**_vm(name), "spec": {"guest": _guest(1, 4)}})
        return name

    async def has_pods_of(self, *vms: str) -> bool:
        """True if these VMs have one pod each, and no other VM has any."""
        return sorted(each["metadata"]["labels"]["vm.neon.tech/name"] for each in await self.list(PODS)) == sorted(vms)

    async def remove(self, *vms: Vm) -> None:
        """Deletes VMs and their pods."""
        for each in vms:
            await self.http.delete(f"{VMS}/{each.name}")
            await self.http.request("DELETE", f"{PODS}/{each.name}-pod", json={"gracePeriodSeconds": 0})

    async def clear(self) -> None:
        """Deletes all VMs, pods and nodes."""
        for path in (VMS, PODS, AGENT_PODS, NODES):
            for found in await self.list(path):
                await self.http.request("DELETE", f"{path}/{found['metadata']['name']}", json={"gracePeriodSeconds": 0})

    async def token(self, namespace: str, account: str, audience: str = "", pod: Obj | None = None) -> str:
        """A token of a service account, bound to a pod where one is given, as a kubelet asks for."""
        spec: Obj = {"expirationSeconds": 3600}
        if audience:
            spec["audiences"] = [audience]
        if pod is not None:
            about = pod["metadata"]
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": about["name"], "uid": about["uid"]}
        made = await self.create(ACCOUNT.format(namespace, account), {"spec": spec})
        return str(made["status"]["token"])

    async def create(self, path: str, body: Obj) -> Obj:
        """Creates an object and returns it."""
        return _body(await self.http.post(path, json=body))

    async def patch(self, path: str, body: Obj) -> Obj:
        """Merges ``body`` into an object and returns it."""
        return _body(await self.http.patch(path, json=body, headers=MERGE))

    async def list(self, path: str) -> list[Obj]:
        """The objects of a collection."""
        items: list[Obj] = _body(await self.http.get(path))["items"]
        return items

    async def claims(self) -> dict[str, dict[str, Resources]]:
        """By node and VM: the size that its objects allow it to use."""
        vms = {each["metadata"]["name"]: each for each in await self.list(VMS)}
        found: dict[str, dict[str, Resources]] = {each["metadata"]["name"]: {} for each in await self.list(NODES)}
        for pod in await self.list(PODS):
            name = pod["metadata"]["labels"]["vm.neon.tech/name"]
            if "nodeName" in pod["spec"]:
                found.setdefault(pod["spec"]["nodeName"], {})[name] = claim(vms[name]) if name in vms else ZERO
        return found

    async def permits(self) -> dict[str, Resources]:
        """By VM: the permit on its object."""
        return {each["metadata"]["name"]: permit_on(each) for each in await self.list(VMS)}


@dataclass(frozen=True, slots=True)
class Vm:
    """A VM with its pod, and its agent's token for the scheduler."""

    name: str
    node: str
    uid: str
    token: str


def _vm(name: str) -> Obj:
    return {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "metadata": {"name": name}}


def _guest(cpu: str | int, slots: int) -> Obj:
    return {
        "cpus": {"min": "250m", "max": 8, "use": cpu},
        "memorySlotSize": "1Gi",
        "memorySlots": {"min": 1, "max": 16, "use": slots},
        "rootDisk": {"image": "postgres"},
    }


def _pod(vm: Obj, node: str, requests: Mapping[str, str]) -> Obj:
    name, uid = vm["metadata"]["name"], vm["metadata"]["uid"]
    owner = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": name, "uid": uid, "controller": True}
    labels = {"vm.neon.tech/name": name, "autoscaling.neon.tech/enabled": "true"}
    spec = {
        "nodeName": node,
        "serviceAccountName": "vm-agent",
        "schedulerName": "autoscale-scheduler",
        "containers": [{"name": "neonvm-runner", "image": "runner", "resources": {"requests": {**requests}}}],
    }
    return {"metadata": {"name": f"{name}-pod", "labels": labels, "ownerReferences": [owner]}, "spec": spec}


def permit_on(vm: Obj) -> Resources:
    """The permit stored on a VM's object; zero if there is none."""
    text = vm["metadata"].get("annotations", {}).get(ANNOTATION_PERMIT)
    return ZERO if text is None else decode_permit(text)


def claim(vm: Obj) -> Resources:
    """Resources that a VM may use according to its object."""
    read = parse_virtual_machine(vm)
    return read.use.at_least(read.actual or ZERO).at_least(permit_on(vm))


def over_committed(claims: Mapping[str, Mapping[str, Resources]]) -> list[str]:
    """The nodes whose VMs may use more than the node has."""
    return [name for name, vms in claims.items() if not Resources.sum(vms.values()).within(SIZE)]


def _body(response: httpx.Response) -> Obj:
    if not response.is_success:
        raise UnansweredError(f"{response.request.method} {response.request.url}: {response.text}")
    body: Obj = response.json()
    return body
