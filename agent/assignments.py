"""The VMs that an agent is responsible for (S4.3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from protocol.messages import ObjectName


@dataclass(frozen=True, slots=True, order=True)
class PodContainer:
    """The running database container of a pod; a restart or a new pod creates another."""

    pod_uid: str
    container_id: str


@dataclass(frozen=True, slots=True, order=True)
class Assignment:
    """A VM and its runner pod, or a database in a plain pod and its ``container``."""

    vm: ObjectName
    pod: ObjectName
    pod_ip: str | None = None
    container: PodContainer | None = None


class AssignmentSource(Protocol):
    """The VMs that an agent must serve."""

    @property
    def unreadable(self) -> Mapping[ObjectName, str]:
        """Pods that cannot be decoded, and why; they keep their last assignments."""

    def sets(self) -> AsyncIterator[frozenset[Assignment]]:
        """Yield the whole set, now and after each change. May end or raise ``PortError``; the caller calls it again."""


class OwnVm:
    """The VM of the pod that this agent is a sidecar of."""

    unreadable: Mapping[ObjectName, str] = {}

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    async def sets(self) -> AsyncIterator[frozenset[Assignment]]:
        """Yield the only set, and never end."""
        yield frozenset({self._assignment})
        # If the iterator ended, the supervisor would call ``sets`` in a loop.
        await asyncio.Event().wait()
