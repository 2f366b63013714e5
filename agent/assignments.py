"""The VMs that an agent is responsible for, and who names them (S4.3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from protocol.messages import ObjectName


@dataclass(frozen=True, slots=True, order=True)
class PodContainer:
    """The running container of a pod's database, ``container_id``, and the UID of its pod.

    A restarted container is another one, and so is a recreated pod.
    """

    pod_uid: str
    container_id: str


@dataclass(frozen=True, slots=True, order=True)
class Assignment:
    """A VM, and the pod that it runs in; or the database in a pod without a VM, and its ``container``."""

    vm: ObjectName
    pod: ObjectName
    pod_ip: str | None = None
    container: PodContainer | None = None


class AssignmentSource(Protocol):
    """Names the VMs."""

    @property
    def unreadable(self) -> Mapping[ObjectName, str]:
        """Pods that cannot be read, and why; their last known assignments stay."""

    def sets(self) -> AsyncIterator[frozenset[Assignment]]:
        """The whole set, now and after each change. May end or raise ``PortError``: then it is asked again."""


class OwnVm:
    """The set of one: the VM of the pod that this agent is a sidecar of."""

    unreadable: Mapping[ObjectName, str] = {}

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    async def sets(self) -> AsyncIterator[frozenset[Assignment]]:
        """The one set, for ever."""
        yield frozenset({self._assignment})
        # If the iterator ended, the supervisor would call ``sets`` again and again.
        await asyncio.Event().wait()
