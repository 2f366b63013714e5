"""Holders of the Lease and writers of permits, in the order of the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2 as httpx
import msgspec

from protocol.kubernetes.resources import LEASES, VIRTUAL_MACHINES
from protocol.names import ANNOTATION_PERMIT, ANNOTATION_PERMIT_WRITER
from protocol.permits import decode_writer
from tests.scheduler_plugin.replicas.processes.stage import NAMESPACE


@dataclass(slots=True)
class TermsSeen:
    """By version: the holder of the Lease, and the writer of each permit."""

    holders: list[tuple[int, str]] = field(default_factory=list)
    writers: list[tuple[int, str]] = field(default_factory=list)
    _known: dict[str, tuple[str, str]] = field(default_factory=dict)

    def lease(self, obj: Any) -> None:
        """A version of the Lease."""
        self.holders.append((int(obj["metadata"]["resourceVersion"]), obj["spec"].get("holderIdentity") or ""))

    def vm(self, obj: Any) -> None:
        """A version of a VM; it counts if the permit or its writer has changed."""
        meta = obj["metadata"]
        said = meta.get("annotations") or {}
        found = said.get(ANNOTATION_PERMIT, ""), said.get(ANNOTATION_PERMIT_WRITER, "")
        if found != self._known.get(meta["name"], ("", "")):
            self._known[meta["name"]] = found
            self.writers.append((int(meta["resourceVersion"]), found[1]))

    def out_of_term(self) -> list[str]:
        """Permits written while another process, or none, held the Lease; for older ones it is unknown."""
        found = []
        for version, writer in self.writers:
            holder = next((each for at, each in sorted(self.holders, reverse=True) if at < version), None)
            if holder is not None and decode_writer(writer).rpartition(".")[0] != holder:
                found.append(f"at {version} by {writer}, the Lease was {holder or 'free'}")
        return found

    @property
    def terms(self) -> int:
        """Number of times that a process acquired the Lease."""
        names = [holder for _, holder in sorted(self.holders)]
        return sum(bool(each) and each != before for before, each in zip(["", *names], names, strict=False))


@asynccontextmanager
async def terms_seen(http: httpx.AsyncClient) -> AsyncIterator[TermsSeen]:
    """Watches from now on."""
    seen = TermsSeen()
    kinds = ((LEASES.path(NAMESPACE), seen.lease), (VIRTUAL_MACHINES.path(), seen.vm))
    tasks = []
    for path, take in kinds:
        listed = (await http.get(path)).json()
        for each in listed["items"]:
            take(each)
        tasks.append(asyncio.create_task(_watch(http, path, listed["metadata"]["resourceVersion"], take)))
    yield seen
    await asyncio.sleep(2.0)  # what has been written by now arrives
    for task in tasks:
        assert not task.done(), task
        task.cancel()
    await asyncio.wait(tasks)


async def _watch(http: httpx.AsyncClient, path: str, version: str, take: Any) -> None:
    query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "3600"}
    async with http.stream("GET", path, params=query, timeout=None) as answer:
        async for line in answer.aiter_lines():
            take(msgspec.json.decode(line)["object"])
