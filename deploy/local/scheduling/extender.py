"""HTTP client of a scheduler extender, as kube-scheduler with ``nodeCacheCapable: true``.

Any status except 200 is an ``ExtenderError``. JSON keys are the Go field names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import httpx2 as httpx
import msgspec

from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName


class ExtenderError(Exception):
    """The extender did not answer, sent an invalid response, or refused the request; the message says which."""


class FilterResult(msgspec.Struct, frozen=True):
    """Response to ``filter``; unset fields are null."""

    # The names of Go's `ExtenderFilterResult`, which has no JSON tags.
    NodeNames: list[str] | None = None
    FailedNodes: dict[str, str] | None = None
    FailedAndUnresolvableNodes: dict[str, str] | None = None
    Error: str = ""

    @property
    def refusals(self) -> dict[str, str]:
        """Reason of each refused node."""
        return {**(self.FailedNodes or {}), **(self.FailedAndUnresolvableNodes or {})}


class HostScore(msgspec.Struct, frozen=True):
    """One entry of the response to ``prioritize``; ``Score`` is 0-10."""

    Host: str
    Score: int


class BindResult(msgspec.Struct, frozen=True):
    """Response to ``bind``; an empty error means bound."""

    Error: str = ""


ResponseT = TypeVar("ResponseT")


class Extender:
    """Client of one extender."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def filter(self, pod: Json, nodes: Sequence[str]) -> FilterResult:
        """Filter ``nodes`` for ``pod``. Raises ``ExtenderError``, also if the response has a node not in ``nodes``."""
        # `nodeCacheCapable: true` means that only node names are sent.
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
        result = await self._post("/filter", body, FilterResult)
        if result.Error:
            raise ExtenderError(result.Error)
        # An error in kube-scheduler too.
        if unknown := set(result.NodeNames or ()) - set(nodes):
            raise ExtenderError(f"extender filter returned a node that was not in the request: {min(unknown)}")
        return result

    async def prioritize(self, pod: Json, nodes: Sequence[str]) -> dict[str, int]:
        """Scores of ``nodes``; empty if the extender fails, as kube-scheduler ignores these errors."""
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
        try:
            return {score.Host: score.Score for score in await self._post("/prioritize", body, list[HostScore])}
        except ExtenderError:
            return {}

    async def bind(self, pod: ObjectName, uid: str, node: str) -> None:
        """Bind ``pod`` to ``node``. Raises ``ExtenderError`` with the extender's reason."""
        body = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": uid, "Node": node}
        if error := (await self._post("/bind", body, BindResult)).Error:
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
