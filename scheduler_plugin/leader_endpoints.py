"""Services that point to the leader: they have no selector, and the leader writes itself into their EndpointSlices.

The leader creates a missing slice: Argo CD excludes EndpointSlices, and restored backups or users may remove them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Never

from protocol.kubernetes.api import ApiCall, ApiError, ApiRefusedError, KubernetesApi
from protocol.kubernetes.objects import Json, JsonObject, items, text, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import ENDPOINT_SLICES, MERGE_PATCH, SERVICES
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.runtime.kubernetes.lease import NEVER
from protocol.units import Instant, Seconds
from scheduler_plugin.term import Term
from scheduler_plugin.texts import logs

LOG: Final = logging.getLogger("autoscale.endpoints")

TIMEOUT: Final = Seconds(2.0)
INTERVAL: Final = Seconds(5.0)
RETRY: Final = Seconds(0.25)

FOR_PEOPLE: Final = frozenset({RefusalKind.FORBIDDEN, RefusalKind.INVALID, RefusalKind.NOT_FOUND})
"""Refusals that last until someone changes the installation."""


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """IP address of a replica's ``pod``, and its ``node`` if known.

    kube-proxy needs the node for a pod to reach itself through a Service.
    """

    address: str
    pod: ObjectName
    node: str = ""


class LeaderEndpoints:
    """The EndpointSlices ``slices``, and the address of this replica."""

    def __init__(self, api: KubernetesApi, clock: Clock, slices: Sequence[ObjectName], place: ReplicaAddress) -> None:
        self._api = api
        self._clock = clock
        self._slices = slices
        target: Json = {"kind": "Pod", "namespace": place.pod.namespace, "name": place.pod.name}
        # ``nodeName`` must not be empty.
        node: Json = {"nodeName": place.node} if place.node else {}
        self._endpoint: Json = {
            "addresses": [place.address],
            "conditions": {"ready": True},
            "targetRef": target,
            **node,
        }

    async def keep(self, term: Term) -> Never:
        """Keep all slices pointing to this replica, until cancelled at the end of the term."""
        # Check repeatedly: an upgrade of the manifests may reset them.
        due = dict.fromkeys(self._slices, NEVER)
        while True:
            for name in [slice_name for slice_name in self._slices if due[slice_name] <= self._clock.now()]:
                wait = await self._update(name, term)
                due[name] = Instant(self._clock.now() + wait)
            until = min(due.values(), default=self._clock.now() + INTERVAL)
            await self._clock.sleep(Seconds(max(0.0, until - self._clock.now())))

    async def _update(self, name: ObjectName, term: Term) -> Seconds:
        """Check a slice once; return the delay before it is checked again."""
        try:
            await self._point_here(name, term)
        except ApiError as error:
            LOG.warning(logs.NO_CLIENTS, extra={"slice": str(name), "reason": str(error)})
            # Retrying soon does not help before someone changes the installation.
            return INTERVAL if isinstance(error, ApiRefusedError) and error.kind in FOR_PEOPLE else RETRY
        return INTERVAL

    async def _point_here(self, name: ObjectName, term: Term) -> None:
        path = ENDPOINT_SLICES.path(name.namespace, name.name)
        try:
            endpoint_slice = await self._api.call(ApiCall("GET", path, TIMEOUT))
        except ApiRefusedError as error:
            if error.kind is not RefusalKind.NOT_FOUND:
                raise
            await self._create(name, term)
            return
        if self._points_here(endpoint_slice):
            return
        # Replace all endpoints: clients must not reach a second scheduler, or one that stopped and cannot remove
        # itself. The resourceVersion detects concurrent writes.
        body: Json = {"metadata": {"resourceVersion": version_of(endpoint_slice)}, "endpoints": [self._endpoint]}
        with term.writing(ApiCall("PATCH", path, TIMEOUT, body=body, content_type=MERGE_PATCH)) as call:
            await self._api.call(call)
        LOG.info(logs.SLICE_UPDATED, extra={"slice": str(name)})

    async def _create(self, name: ObjectName, term: Term) -> None:
        service = await self._api.call(ApiCall("GET", SERVICES.path(name.namespace, name.name), TIMEOUT))
        # Owned by the Service, so that it is deleted with it.
        body = slice_of(service, self._endpoint)
        with term.writing(ApiCall("POST", ENDPOINT_SLICES.path(name.namespace), TIMEOUT, body=body)) as call:
            await self._api.call(call)
        LOG.info(logs.SLICE_CREATED, extra={"slice": str(name)})

    def _points_here(self, obj: JsonObject) -> bool:
        endpoints = items(obj, "endpoints")
        # The API server may add fields to the endpoint.
        return len(endpoints) == 1 and self._endpoint.items() <= endpoints[0].items()


def slice_of(service: JsonObject, endpoint: Json) -> Json:
    """The EndpointSlice of a Service without a selector, as in the chart, with one endpoint (pure)."""
    name = text(service, "metadata", "name")
    owner: Json = {"apiVersion": "v1", "kind": "Service", "name": name, "uid": text(service, "metadata", "uid")}
    return {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": ENDPOINT_SLICES.kind,
        "metadata": {
            "namespace": text(service, "metadata", "namespace"),
            "name": name,
            "labels": {
                "app.kubernetes.io/name": "autoscaling-scheduler",
                "kubernetes.io/service-name": name,
                # Kubernetes' own controllers ignore slices managed by others.
                "endpointslice.kubernetes.io/managed-by": "autoscaling-scheduler",
            },
            "ownerReferences": [owner],
        },
        "addressType": "IPv4",
        "ports": [_port(port) for port in items(service, "spec", "ports")],
        "endpoints": [endpoint],
    }


def _port(of_service: Json) -> Json:
    """The slice's port for a Service port; the chart's target ports are numbers."""
    target = of_service.get("targetPort")
    # A named port is defined in the pod.
    number = target if isinstance(target, int) else of_service.get("port")
    return {"name": text(of_service, "name"), "port": number, "protocol": text(of_service, "protocol") or "TCP"}
