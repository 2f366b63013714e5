"""Scheduling throughput: alternates rounds with our extender and rounds without any extender.

Only the programs of one side run in a round.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import httpx2 as httpx
import yaml

from deploy.local.kubernetes.machine.credentials import INSIDE
from protocol.kubernetes.objects import Json, child, text
from protocol.kubernetes.pages import LineSplitter
from protocol.kubernetes.resources import PODS
from protocol.units import Seconds
from scripts.bench.kubernetes.bulk_client import METADATA, BulkClient
from scripts.bench.kubernetes.control_plane import ControlPlane, RunningProgram, manifest
from scripts.bench.kubernetes.fake_objects import NAMESPACE
from scripts.bench.kubernetes.speed_figures import ALONE, OURS, Round, Side
from scripts.bench.load_client import BenchError
from scripts.process_costs import cpu_of

_KUBE_SCHEDULER: Final = "autoscaling-kube-scheduler-config"
# kube-scheduler's default of 50 requests per second limits the throughput.
_UNBOUNDED: Final = {"qps": 5000, "burst": 5000}
_TIMEOUT: Final = Seconds(120.0)
_SETTLE: Final = Seconds(1.0)


def kube_scheduler_settings(side: Side, kubeconfig: str) -> Json:
    """The shipped kube-scheduler settings; for ``ALONE``, without our extender."""
    config_map = next(item for item in manifest() if text(item, "metadata", "name") == _KUBE_SCHEDULER)
    settings = yaml.safe_load(text(child(config_map, "data"), "scheduler.yaml"))
    settings["clientConnection"] = {**_UNBOUNDED, "kubeconfig": kubeconfig}
    if side == ALONE:
        del settings["extenders"]
        for profile in settings["profiles"]:
            # Only our extender needs it.
            profile.pop("percentageOfNodesToScore", None)
    return dict(settings)


@dataclass(slots=True)
class _Bindings:
    """Number and times of bindings, and CPU seconds of each program at the first and the last one."""

    programs: Callable[[], dict[str, Seconds]]
    count: int = 0
    before: int = 0
    began: float = 0.0
    ended: float = 0.0
    first: dict[str, Seconds] | None = None
    last: dict[str, Seconds] | None = None

    def record(self, count: int, expected: int) -> None:
        """Record that ``count`` of ``expected`` pods are bound."""
        # A restarted watch counts from zero again.
        if count <= self.count:
            return
        self.ended = time.perf_counter()
        if self.first is None:
            # Measure from the first binding on, to exclude the startup of kube-scheduler.
            self.began, self.before, self.first = self.ended, count, self.programs()
        self.count = count
        if count >= expected:
            self.last = self.programs()


class Rounds:
    """Runs rounds on one control plane with ``nodes`` nodes; ``vms`` contains the VMs' UIDs by number."""

    def __init__(self, plane: ControlPlane, bulk: BulkClient, nodes: int, vms: dict[int, str]) -> None:
        self._plane = plane
        self._bulk = bulk
        self._nodes = nodes
        self._vms = vms

    async def measure(self, side: Side) -> Round:
        """Run one round. Raises ``BenchError``."""
        try:
            async with AsyncExitStack() as stack:
                return await self._measure(side, stack)
        finally:
            await self._bulk.delete_pods()

    async def _measure(self, side: Side, stack: AsyncExitStack) -> Round:
        running = [*self._plane.running]
        if side == OURS:
            running.append(await stack.enter_async_context(self._plane.service()))
        # Before kube-scheduler starts, to exclude the time of creating pods.
        await self._bulk.create_pods(self._vms)
        await self._plane.clock.sleep(_SETTLE)
        settings = kube_scheduler_settings(side, self._plane.scheduler_kubeconfig)
        running.append(await stack.enter_async_context(self._plane.kube_scheduler(settings)))
        bindings = await self._count_bindings(running)
        first, last = bindings.first or {}, bindings.last or {}
        pods, seconds = bindings.count - bindings.before, bindings.ended - bindings.began
        cpu = {name: round((last[name] - used) / pods * 1000, 3) for name, used in first.items() if name in last}
        return Round(side, self._nodes, round(pods / seconds, 1), cpu)

    async def _count_bindings(self, running: Sequence[RunningProgram]) -> _Bindings:
        pids = {program.name: program.pid for program in running}
        bindings, expected = _Bindings(lambda: {name: cpu_of(pid) for name, pid in pids.items()}), len(self._vms)
        try:
            async with asyncio.timeout(_TIMEOUT):
                async for count in self._bound_pods():
                    bindings.record(count, expected)
                    if count >= expected:
                        return bindings
        except TimeoutError:
            pass
        raise BenchError(f"only {bindings.count} of {expected} pods were bound within {_TIMEOUT:g} s")

    async def _bound_pods(self) -> AsyncIterator[int]:
        """Yield the number of bound pods whenever it changes."""
        query = {"watch": "1", "fieldSelector": "spec.nodeName!="}
        headers = {"Authorization": f"Bearer {self._bulk.token}", "Accept": METADATA}
        async with httpx.AsyncClient(
            headers=headers, base_url=INSIDE, verify=self._bulk.tls, timeout=float(_TIMEOUT), trust_env=False
        ) as client:
            while True:
                # When the API server ends a watch, the next one lists all bound pods again.
                splitter, count = LineSplitter(), 0
                async with client.stream("GET", PODS.path(NAMESPACE), params=query) as response:
                    async for chunk in response.aiter_bytes():
                        count += sum(line.startswith(b'{"type":"ADDED"') for line in splitter.feed(chunk))
                        yield count
