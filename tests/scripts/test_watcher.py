"""A watcher of one VM stops on request, even if something else happens at that moment."""

import asyncio
from typing import cast

from deploy.kube.informer import ObjectChange
from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from protocol.pod_database import database_of
from protocol.runtime.clock import SystemClock
from protocol.units import Resources
from scripts.autoscale.demonstration.watcher import Watcher
from scripts.autoscale.site import Site, SiteSources
from tests.fake_clock import settle
from tests.pod_databases import pod_database

VM = ObjectName("default", "db")
GUEST: Json = {"cpus": {"min": 1, "max": 4}, "memorySlots": {"min": 1, "max": 4}}
SIZED: Json = {
    "metadata": {"namespace": "default", "name": "db"},
    "spec": {"guest": GUEST},
    "status": {"cpus": "2", "memorySize": "1Gi"},
}


def watcher(sizes: list[Resources]) -> Watcher:
    return Watcher(cast("Site", None), VM, SystemClock(), sizes.append, lambda _, __: None)


async def test_end_with_new_size_is_noticed() -> None:
    watching = watcher([])
    asking = asyncio.ensure_future(watching._query_agent(cast("SiteSources", None)))
    await settle()
    watching._changed(ObjectChange(VM, None, SIZED))
    asking.cancel()
    await settle()
    assert asking.cancelled()


async def test_size_is_reported_at_once() -> None:
    sizes: list[Resources] = []
    watching = watcher(sizes)
    watching._changed(ObjectChange(ObjectName("default", "other"), None, SIZED))
    watching._changed(ObjectChange(VM, None, SIZED))
    watching._changed(ObjectChange(VM, SIZED, None))
    assert sizes == [Resources.parse(2, "1Gi")]
    assert watching.snapshot().phase == "Pending"


async def test_pod_size_is_from_the_kubelet() -> None:
    sizes: list[Resources] = []
    watching = watcher(sizes)
    watching.vm = database_of(VM)
    ready = [{"type": "Ready", "status": "True"}]
    watching._changed(ObjectChange(VM, None, pod_database("db", conditions=ready)))
    snapshot = watching.snapshot()
    assert sizes == [Resources.parse(1, "1Gi")]
    assert (snapshot.node, snapshot.available, snapshot.max_size) == ("n1", True, Resources.parse(4, "8Gi"))
    watching._changed(ObjectChange(VM, None, pod_database("db", bounds="")))
    assert (watching.snapshot().size, watching.snapshot().available) == (None, False)
