"""Samples of a cluster for the recorder: objects from watches, reports of the scheduler and agents over HTTP."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from protocol.kubernetes.api import KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, child
from protocol.kubernetes.resources import MIGRATIONS, NODES, PODS, VIRTUAL_MACHINES, Resource
from protocol.pod_database import is_pod_database
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.watches.informer import FactInformer
from protocol.runtime.kubernetes.watches.kinds import Kind, WatchReport
from scheduler_plugin.dashboard.sources.http_sources import Sources
from scheduler_plugin.databases import OPTED_IN
from scheduler_plugin.history.core.decoding import ClusterSample, node_price_keys
from scheduler_plugin.history.core.samples import SECOND
from scheduler_plugin.history.recorder import SampleError

KINDS: Final = (VIRTUAL_MACHINES, PODS, NODES, MIGRATIONS)
_PATIENCE: Final = 10.0
"""How long a sample waits for the first lists, in seconds."""


class ClusterSampler:
    """See ``SampleSource``. ``run`` must be running."""

    def __init__(self, api: KubernetesApi, sources: Sources, clock: Clock, report: WatchReport) -> None:
        self._api, self._sources, self._clock = api, sources, clock
        self._informers = {kind: _informer(kind, report) for kind in KINDS}
        self._listed = {kind: asyncio.Event() for kind in KINDS}

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for kind, informer in self._informers.items():
                tasks.create_task(informer.run(self._api, self._clock, self._listed[kind].set))

    async def sample(self) -> ClusterSample:
        """See ``SampleSource``."""
        try:
            async with asyncio.timeout(_PATIENCE):
                for listed in self._listed.values():
                    await listed.wait()
        except TimeoutError:
            # A list may be slow or forbidden; the recorder retries.
            unread = [kind for kind, listed in self._listed.items() if not listed.is_set()]
            reasons = dict.fromkeys(reason for kind in unread if (reason := self._informers[kind].failure))
            message = f"not read yet: {', '.join(kind.plural for kind in unread)}"
            raise SampleError(f"{message} ({'; '.join(reasons)})" if reasons else message) from None
        return ClusterSample(
            at=round(self._clock.wall() * SECOND),
            vms=[
                *self._informers[VIRTUAL_MACHINES].facts.values(),
                *filter(is_pod_database, self._informers[PODS].facts.values()),
            ],
            nodes=await self._sources.of_scheduler("/nodes"),
            price_keys=node_price_keys(self._informers[NODES].facts.values()),
            migrations=list(self._informers[MIGRATIONS].facts.values()),
        )

    async def explanation(self, vm: JsonObject) -> Json | None:
        """See ``SampleSource``."""
        return await self._sources.of_vm(vm)


def _informer(kind: Resource, report: WatchReport) -> FactInformer[JsonObject]:
    is_optional = kind is not VIRTUAL_MACHINES
    # Of nodes only the metadata, because their status is large and changes often.
    read = partial(trimmed, metadata_only=kind is NODES)
    labels = OPTED_IN if kind is PODS else ""
    watched = Kind(kind, read, is_optional=is_optional, may_be_forbidden=is_optional, labels=labels)
    return FactInformer(watched, lambda _: None, report)


def trimmed(obj: JsonObject, *, metadata_only: bool = False) -> JsonObject:
    """The object without ``managedFields``, or only its metadata.

    >>> trimmed({"metadata": {"name": "a", "managedFields": []}, "spec": {}})
    {'metadata': {'name': 'a'}, 'spec': {}}
    >>> trimmed({"metadata": {"name": "a"}, "status": {}}, metadata_only=True)
    {'metadata': {'name': 'a'}}
    """
    metadata = {key: value for key, value in child(obj, "metadata").items() if key != "managedFields"}
    return {"metadata": metadata} if metadata_only else {**obj, "metadata": metadata}
