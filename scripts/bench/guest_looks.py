"""Cost of following the guests of many runner pods, and latency of orders while some pods are silent.

The pods are simulated in a process of their own; what is measured is the controller's part that follows guests.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import httpx2 as httpx

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from deploy.neonvm.access.connections import CONNECT_SECONDS, RunnerConnections, RunnerPlace, Showing, Streams
from deploy.neonvm.access.runner_transport import RunnerTransport
from deploy.neonvm.objects.pods import runner_pod
from deploy.neonvm.ports import GuestError
from deploy.neonvm.remote.address_choice import AddressRange
from deploy.neonvm.remote.address_claims import AddressClaims
from deploy.neonvm.remote.looks import Looks
from deploy.neonvm.remote.pod_guests import PodGuests, PodGuestsDependencies
from deploy.neonvm.remote.runner_client import RunnerClient
from deploy.neonvm.service.__main__ import RUNNER_TIMEOUT
from protocol.kubernetes.objects import Json, items
from protocol.kubernetes.resources import IP_ADDRESSES, PODS, VIRTUAL_MACHINES, Resource
from protocol.messages import ObjectName
from protocol.names import LABEL_VM_NAME, RUNNER_AUTHORITIES
from protocol.runtime.clock import SystemClock
from protocol.runtime.kubernetes.http_api import HttpApi
from protocol.units import MilliCpu, Resources
from scripts.bench.load_client import START_TIMEOUT, BenchError
from scripts.bench.runner_pods import ANSWERING, SILENT

PODS_MEASURED: Final = 1_000
SILENT_PODS: Final = 300
_SECONDS: Final = 30.0
_KNOWN_WITHIN: Final = 60.0
_SETTLING: Final = 5.0
_PAUSE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Following:
    """``known`` is the time until all pods that answer have, ``orders`` the latencies of orders; both in seconds."""

    silent: int
    known: float
    requests_per_second: float
    cpu_ms_per_second: float
    orders: list[float]

    @property
    def order_median(self) -> float:
        """Median latency of an order, in seconds."""
        return statistics.median(self.orders)


def measure_guest_looks() -> list[Following]:
    """Measure without silent pods, and with some. Raises ``BenchError``."""
    return [asyncio.run(_measured(PODS_MEASURED, silent)) for silent in (0, SILENT_PODS)]


async def _measured(count: int, silent: int) -> Following:
    async with _pods() as port, _controller(count, silent, port) as (guests, http):
        began = time.perf_counter()
        task = asyncio.create_task(guests.run())
        try:
            names = [(_name(number), f"p{number}") for number in range(silent, count)]
            while not all(guests.is_known(*name_and_uid) for name_and_uid in names):
                if time.perf_counter() - began > _KNOWN_WITHIN:
                    raise BenchError(f"after {_KNOWN_WITHIN:g} s the controller does not know all pods yet")
                await asyncio.sleep(0.02)
            known_after = time.perf_counter() - began
            # The first look at all pods is more work than following them, and is not measured.
            await asyncio.sleep(_SETTLING)
            return await _steady(silent, known_after, http, port)
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def _steady(silent: int, known: float, http: httpx.AsyncClient, port: int) -> Following:
    orders = list[float]()
    # No pod has this address, but the HTTP client is the one that follows all pods: an order waits if they hold that
    # client up.
    runner = RunnerClient(http, RunnerPlace("a pod", "", f"{ANSWERING}9.9", port, port), Looks())
    before, cpu, began = await _count(port), time.process_time(), time.perf_counter()
    while (passed := time.perf_counter() - began) < _SECONDS:
        sent_at = time.perf_counter()
        try:
            await runner.set_cpu(MilliCpu(1000))
        except GuestError as error:
            raise BenchError(f"an order was not taken: {error}") from error
        orders.append(time.perf_counter() - sent_at)
        await asyncio.sleep(_PAUSE)
    # The pods count the orders, too.
    used, requests = time.process_time() - cpu, await _count(port) - before - len(orders)
    return Following(silent, known, requests / passed, 1000.0 * used / passed, orders)


@asynccontextmanager
async def _pods() -> AsyncIterator[int]:
    """The simulated pods' port, once they answer."""
    # On all addresses: every pod has one of its own in 127.0.0.0/8.
    with socket.create_server(("0.0.0.0", 0), backlog=1024) as listening:
        port = listening.getsockname()[1]
        # Even a bench that is killed must not leave the pods behind.
        dies_with_us = ("setpriv", "--pdeathsig", "KILL", "--")
        command = (*dies_with_us, sys.executable, "-m", "scripts.bench.runner_pods", str(listening.fileno()))
        process = await asyncio.create_subprocess_exec(*command, pass_fds=[listening.fileno()])
    try:
        async with asyncio.timeout(START_TIMEOUT):
            await _count(port)
        yield port
    finally:
        process.terminate()
        await process.wait()


async def _count(port: int) -> int:
    while True:
        with suppress(httpx.HTTPError):
            async with httpx.AsyncClient(trust_env=False) as http:
                return int((await http.get(f"http://127.0.0.1:{port}/count")).text)


@asynccontextmanager
async def _controller(count: int, silent: int, port: int) -> AsyncIterator[tuple[PodGuests, httpx.AsyncClient]]:
    """The part that follows guests, with caches that have been listed."""
    clock = SystemClock()
    listed = {
        PODS: [_pod(number, number < silent, port) for number in range(count)],
        VIRTUAL_MACHINES: [_vm(number, port) for number in range(count)],
    }
    client = _static_api(listed)
    connections = PlainConnections()
    http = httpx.AsyncClient(transport=RunnerTransport(connections), timeout=RUNNER_TIMEOUT)
    async with client, http:
        caches = {kind: Informer(client, kind, clock) for kind in (PODS, VIRTUAL_MACHINES, IP_ADDRESSES)}
        pods, vms, addresses = caches.values()
        claims = AddressClaims(client, addresses, vms, AddressRange.parse("10.111.0.1-10.111.0.9"))
        deps = PodGuestsDependencies(pods, http, connections.monitor, claims, clock, lambda _: None, connections.forget)
        guests = PodGuests(deps)
        for informer in (vms, pods):
            await informer.refresh()
        yield guests, http


class PlainConnections(RunnerConnections):
    """Plain connections: the simulated pods have no certificates."""

    def __init__(self) -> None:
        super().__init__(_no_certificate, _no_pod)

    async def api(self, place: RunnerPlace) -> Streams:
        """A plain connection. Raises ``OSError``."""
        async with asyncio.timeout(CONNECT_SECONDS):
            return Streams(*await asyncio.open_connection(place.address, place.api))


def _no_certificate() -> Showing:
    raise OSError("simulated pods ask for no certificate")


async def _no_pod(_: str) -> str:
    return ""


def _static_api(listed: dict[Resource, list[Json]]) -> ApiClient:
    by_path = {kind.path(""): objects for kind, objects in listed.items()}

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": by_path[request.url.path]})

    return ApiClient(
        HttpApi(httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(answer)), lambda: None)
    )


def _name(number: int) -> ObjectName:
    return ObjectName("default", f"vm-{number}")


def _pod(number: int, is_silent: bool, port: int) -> Json:
    # The address says whether a pod is silent; see ``runner_pods``.
    address = f"{SILENT if is_silent else ANSWERING}{number // 250}.{number % 250 + 1}"
    labels = {LABEL_VM_NAME: f"vm-{number}"}
    metadata = {"name": f"vm-{number}", "namespace": "default", "uid": f"p{number}", "labels": labels}
    manifest = runner_pod(_vm(number, port), f"vm-{number}", Resources.parse("1", "1Gi"), sidecar=False)
    (runner,) = items(manifest, "spec", "containers")
    spec: Json = {"containers": [{**runner, "env": [{"name": RUNNER_AUTHORITIES, "value": ""}]}]}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running", "podIP": address}}


def _vm(number: int, port: int) -> Json:
    sizes = {"min": 1, "max": 4, "use": 1}
    guest = {"cpus": sizes, "memorySlots": sizes, "memorySlotSize": "1Gi"}
    metadata = {"name": f"vm-{number}", "namespace": "default", "uid": f"v{number}"}
    return {"metadata": metadata, "spec": {"runnerPort": port, "guest": guest}}
