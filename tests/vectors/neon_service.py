"""The family neon: HTTP statuses, against the whole scheduler over a fake cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from protocol.messages import ObjectName
from scheduler_plugin.ledger import MigrationFacts
from tests.scheduler_plugin.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.objects import node, plain_pod, token_of, vm, vm_pod
from tests.scheduler_plugin.running import Running, running
from tests.vectors.case import Case
from tests.vectors.registry import Answer, Check, Declined

POD: Final = vm_pod("pg", "n1")


def http_status(case: Case) -> object:
    """The status of a request to the agents' port."""
    text = str(case.raw["desc"])
    if "change of resources while migrating" in text:
        raise Declined(
            "a change while migrating is answered with what the VM may have; it grows when that is over (S4.9)"
        )
    return asyncio.run(_answered(_REQUESTS[text]))


async def _answered(request: Callable[[Running], Awaitable[int]]) -> int:
    cluster = FakeCluster()
    cluster.put(NODES, node("n1"))
    cluster.put(VMS, vm("pg"))
    cluster.put(PODS, POD)
    cluster.put(PODS, plain_pod("shop", node="n1"))
    async with running(cluster, FakeClock()) as scheduler:
        return await request(scheduler)


async def _version_from_the_future(scheduler: Running) -> int:
    return (await scheduler.ask(POD, 1, 4, protoVersion=8)).status_code


async def _unknown_pod(scheduler: Running) -> int:
    return (await scheduler.ask(vm_pod("nobody"), 1, 4)).status_code


async def _no_vm(scheduler: Running) -> int:
    pod = plain_pod("shop", node="n1")
    scheduler.cluster.tokens["token-shop"] = token_of(pod)
    return (await scheduler.ask(pod, 1, 4)).status_code


async def _same_while_migrating(scheduler: Running) -> int:
    order = MigrationFacts(ObjectName("default", "m"), "uid-m", 1, ObjectName("default", "pg"))
    scheduler.parts.context.ledger.see_migration(order, scheduler.parts.context.clock.now())
    return (await scheduler.ask(POD, 1, 4)).status_code


_REQUESTS: Final[Mapping[str, Callable[[Running], Awaitable[int]]]] = {
    "protocol version unsupported": _version_from_the_future,
    "unknown pod": _unknown_pod,
    "pod is not a VM": _no_vm,
    "same resources while migrating": _same_while_migrating,
}

GROUPS: Final[Mapping[str, Check | Answer]] = {"http_status": http_status}
