"""Services that lead to the leader: they select no pods, and the leader writes itself into their EndpointSlices.

A missing slice is created: Argo CD leaves EndpointSlices out, a restored cluster may lack them, people delete them.
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
"""Refusals that last until a person changes the installation."""


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """Address of a replica: that of its ``pod``, and the ``node`` if known.

    kube-proxy lets a pod reach itself through a Service only if it knows that the endpoint is on its own node.
    """

    address: str
    pod: ObjectName
    node: str = ""


class LeaderEndpoints:
    """The EndpointSlices ``slices``, and the place of this replica."""

    def __init__(self, api: KubernetesApi, clock: Clock, slices: Sequence[ObjectName], place: ReplicaAddress) -> None:
        self._api = api
        self._clock = clock
        self._slices = slices
        target: Json = {"kind": "Pod", "namespace": place.pod.namespace, "name": place.pod.name}
        # Left out if unknown: ``nodeName`` must not be empty.
        node: Json = {"nodeName": place.node} if place.node else {}
        self._endpoint: Json = {
            "addresses": [place.address],
            "conditions": {"ready": True},
            "targetRef": target,
            **node,
        }

    async def keep(self, term: Term) -> Never:
        """Keep all slices pointing to this replica, until cancelled at the end of the term."""
        # Checked again and again, so that changes by others (an upgrade of the manifests) do not last.
        due = dict.fromkeys(self._slices, NEVER)
        while True:
            for name in [slice_name for slice_name in self._slices if due[slice_name] <= self._clock.now()]:
                wait = await self._tried(name, term)
                due[name] = Instant(self._clock.now() + wait)
            until = min(due.values(), default=self._clock.now() + INTERVAL)
            await self._clock.sleep(Seconds(max(0.0, until - self._clock.now())))

    async def _tried(self, name: ObjectName, term: Term) -> Seconds:
        """Check a slice once; return the delay before it is checked again."""
        try:
            await self._lead_here(name, term)
        except ApiError as error:
            LOG.warning(logs.NO_CLIENTS, extra={"slice": str(name), "reason": str(error)})
            # A quick retry cannot help until a person has changed the installation.
            return INTERVAL if isinstance(error, ApiRefusedError) and error.kind in FOR_PEOPLE else RETRY
        return INTERVAL

    async def _lead_here(self, name: ObjectName, term: Term) -> None:
        path = ENDPOINT_SLICES.path(name.namespace, name.name)
        try:
            endpoint_slice = await self._api.call(ApiCall("GET", path, TIMEOUT))
        except ApiRefusedError as error:
            if error.kind is not RefusalKind.NOT_FOUND:
                raise
            await self._make(name, term)
            return
        if self._leads_here(endpoint_slice):
            return
        # One endpoint replaces all: clients must not be sent to two schedulers, nor to one that was stopped and cannot
        # remove itself. The resourceVersion makes the API server reject the write if somebody else wrote in between.
        body: Json = {"metadata": {"resourceVersion": version_of(endpoint_slice)}, "endpoints": [self._endpoint]}
        with term.writing(ApiCall("PATCH", path, TIMEOUT, body=body, content_type=MERGE_PATCH)) as call:
            await self._api.call(call)
        LOG.info(logs.SLICE_TURNED, extra={"slice": str(name)})

    async def _make(self, name: ObjectName, term: Term) -> None:
        service = await self._api.call(ApiCall("GET", SERVICES.path(name.namespace, name.name), TIMEOUT))
        # The Service owns the slice, so that it is deleted with the installation.
        body = slice_of(service, self._endpoint)
        with term.writing(ApiCall("POST", ENDPOINT_SLICES.path(name.namespace), TIMEOUT, body=body)) as call:
            await self._api.call(call)
        LOG.info(logs.SLICE_CREATED, extra={"slice": str(name)})

    def _leads_here(self, found: JsonObject) -> bool:
        endpoints = items(found, "endpoints")
        # A subset: the API server may add fields of its own to the endpoint.
        return len(endpoints) == 1 and self._endpoint.items() <= endpoints[0].items()


def slice_of(service: JsonObject, endpoint: Json) -> Json:
    """The EndpointSlice of a Service without a selector, as the chart makes it, with its one endpoint (pure)."""
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
                # Kubernetes' own controllers leave slices alone that somebody else manages.
                "endpointslice.kubernetes.io/managed-by": "autoscaling-scheduler",
            },
            "ownerReferences": [owner],
        },
        "addressType": "IPv4",
        "ports": [_port(port) for port in items(service, "spec", "ports")],
        "endpoints": [endpoint],
    }


def _port(of_service: Json) -> Json:
    """The slice's port for a port of the Service: its target, which is a number in the Services of the chart."""
    target = of_service.get("targetPort")
    # A named port would have to be looked up in the pod.
    number = target if isinstance(target, int) else of_service.get("port")
    return {"name": text(of_service, "name"), "port": number, "protocol": text(of_service, "protocol") or "TCP"}
