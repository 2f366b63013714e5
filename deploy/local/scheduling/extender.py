"""HTTP client of a scheduler extender, like kube-scheduler's with ``nodeCacheCapable: true``.

Any status except 200 is an ``ExtenderError``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import httpx2 as httpx
import msgspec

from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from scheduler_plugin.web.extender_messages import ExtenderBindingResult, ExtenderFilterResult, HostPriority


class ExtenderError(Exception):
    """The extender did not respond, sent an invalid response, or rejected the request; the message says which."""


ResponseT = TypeVar("ResponseT")


class Extender:
    """Client of one extender."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def filter(self, pod: Json, nodes: Sequence[str]) -> ExtenderFilterResult:
        """Filter ``nodes`` for ``pod``. Raises ``ExtenderError``, also if the response has other nodes."""
        # `nodeCacheCapable: true` means that only node names are sent.
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
        result = await self._post("/filter", body, ExtenderFilterResult)
        if result.error:
            raise ExtenderError(result.error)
        # An error in kube-scheduler too.
        if unknown := set(result.node_names or ()) - set(nodes):
            raise ExtenderError(f"extender filter returned a node that was not in the request: {min(unknown)}")
        return result

    async def prioritize(self, pod: Json, nodes: Sequence[str]) -> dict[str, int]:
        """Scores of ``nodes``; empty if the extender fails, as kube-scheduler ignores these errors."""
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
        try:
            return {score.host: score.score for score in await self._post("/prioritize", body, list[HostPriority])}
        except ExtenderError:
            return {}

    async def bind(self, pod: ObjectName, uid: str, node: str) -> None:
        """Bind ``pod`` to ``node``. Raises ``ExtenderError`` with the extender's reason."""
        body = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": uid, "Node": node}
        if error := (await self._post("/bind", body, ExtenderBindingResult)).error:
            raise ExtenderError(error)

    async def _post(self, verb: str, body: Mapping[str, object], result: type[ResponseT]) -> ResponseT:
        try:
            response = await self._http.post(
                verb, content=msgspec.json.encode(body), headers={"Content-Type": "application/json"}
            )
        except httpx.HTTPError as error:
            raise ExtenderError(f"extender {verb}: request failed: {error!r}") from error
        # kube-scheduler accepts no other 2xx status either.
        if response.status_code != httpx.codes.OK:
            raise ExtenderError(f"extender {verb}: HTTP {response.status_code}: {response.text[:200]}")
        try:
            return msgspec.json.decode(response.content, type=result)
        # Deeply nested JSON exhausts the decoder's stack.
        except (ValueError, RecursionError) as error:
            raise ExtenderError(f"extender {verb}: invalid response: {error}") from error
