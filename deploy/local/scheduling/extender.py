"""The HTTP side of a scheduler extender, called as kube-scheduler calls it with ``nodeCacheCapable: true``.

Exactly status 200 is an answer; anything else is an ``ExtenderError``. Keys are the Go field names.
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
    """Response to ``filter``; null for an unset field."""

    # The names of Go's `ExtenderFilterResult`, which has no JSON tags.
    NodeNames: list[str] | None = None
    FailedNodes: dict[str, str] | None = None
    FailedAndUnresolvableNodes: dict[str, str] | None = None
    Error: str = ""

    @property
    def refusals(self) -> dict[str, str]:
        """Every refused node and why."""
        return {**(self.FailedNodes or {}), **(self.FailedAndUnresolvableNodes or {})}


class HostScore(msgspec.Struct, frozen=True):
    """One entry of what ``prioritize`` answers: an integer of 0-10."""

    Host: str
    Score: int


class BindResult(msgspec.Struct, frozen=True):
    """Response to ``bind``; an empty error means bound."""

    Error: str = ""


Answer = TypeVar("Answer")


class Extender:
    """One extender, by its base URL."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def filter(self, pod: Json, nodes: Sequence[str]) -> FilterResult:
        """The ``nodes`` that can take ``pod``. Raises ``ExtenderError``, also for a node beyond these."""
        # `Nodes` is null and only names are sent: that is what `nodeCacheCapable: true` means.
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
        result = await self._post("/filter", body, FilterResult)
        if result.Error:
            raise ExtenderError(result.Error)
        # kube-scheduler treats such a node as an error of the extender too.
        if unknown := set(result.NodeNames or ()) - set(nodes):
            raise ExtenderError(f"extender filter returned a node that was not asked about: {min(unknown)}")
        return result

    async def prioritize(self, pod: Json, nodes: Sequence[str]) -> dict[str, int]:
        """Scores of ``nodes``; none if the extender failed, as kube-scheduler drops these errors."""
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
        try:
            return {score.Host: score.Score for score in await self._post("/prioritize", body, list[HostScore])}
        except ExtenderError:
            return {}

    async def bind(self, pod: ObjectName, uid: str, node: str) -> None:
        """Binds; returns when bound. Raises ``ExtenderError`` with the extender's reason."""
        body = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": uid, "Node": node}
        if error := (await self._post("/bind", body, BindResult)).Error:
            raise ExtenderError(error)

    async def _post(self, verb: str, body: Mapping[str, object], answer: type[Answer]) -> Answer:
        try:
            response = await self._http.post(
                verb, content=msgspec.json.encode(body), headers={"Content-Type": "application/json"}
            )
        except httpx.HTTPError as error:
            raise ExtenderError(f"extender {verb} did not answer: {error!r}") from error
        # Other 2xx codes are failures too: kube-scheduler accepts 200 alone.
        if response.status_code != httpx.codes.OK:
            raise ExtenderError(f"extender {verb} answered HTTP {response.status_code}: {response.text[:200]}")
        try:
            return msgspec.json.decode(response.content, type=answer)
        # Deeply nested JSON exhausts the decoder's stack.
        except (ValueError, RecursionError) as error:
            raise ExtenderError(f"extender {verb} answered nonsense: {error}") from error
