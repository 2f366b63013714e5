"""Dependencies of NeonVM's controllers: the API, its caches, and the host of the guests."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from deploy.kube.client import ApiClient
from deploy.kube.events import EventRecorder
from deploy.kube.informer import Informer
from deploy.neonvm.ports import Acceleration, PodRole
from deploy.neonvm.runner.resizer import Resizer
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock

_LETTERS: Final = string.ascii_lowercase + string.digits

PodForm = Callable[[Json, Json], Json]
"""Returns the pod to create for a VM, given the VM and its plain pod."""


def unchanged_pod(vm: Json, pod: Json) -> Json:  # noqa: ARG001 - a PodForm
    """A ``PodForm`` that returns the plain pod, for our own kubelet."""
    return pod


def random_suffix() -> str:
    """Five letters and digits, like the suffix of ``generateName``."""
    return "".join(random.choices(_LETTERS, k=5))


@dataclass(frozen=True, slots=True)
class HostedGuest:
    """The guest of one pod. ``resizer`` is None if it does not run here, waits for an incoming migration, or has not
    been polled yet (``is_known``). ``migration_obstacle`` is why it cannot be migrated, in one line; empty if it can.
    ``moves_asleep``: it can be migrated without waking it. ``fault`` is the error of the last poll, if it is not.
    """

    resizer: Resizer | None = None
    role: PodRole = PodRole.EMPTY
    is_known: bool = True
    migration_obstacle: str = ""
    acceleration: Acceleration | None = None
    moves_asleep: bool = False
    fault: str = ""


class GuestHost(Protocol):
    """The guests of the cluster's pods, on the kubelet's side."""

    def guest(self, pod: Json | None) -> HostedGuest:
        """The guest of the pod with this name and uid."""

    async def send(
        self, source: ObjectName, target: ObjectName, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        """Migrate the guest of one pod to another. Raises and is cancelled as ``Guest.send``."""

    async def vm_address(self, vm: Json) -> str:
        """The VM's address on the flat network; empty if it is not on it. Raises ``ApiError`` and ``GuestError``."""

    async def release_vm(self, vm: ObjectName, uid: str) -> None:
        """Release the address and the disk of a deleted VM."""


@dataclass(frozen=True, slots=True)
class ControllerDependencies:
    """Dependencies of the controllers. ``suffix`` returns a random suffix for a pod's name."""

    client: ApiClient
    vms: Informer
    pods: Informer
    migrations: Informer
    guest_host: GuestHost
    events: EventRecorder
    clock: Clock
    suffix: Callable[[], str] = random_suffix
    form: PodForm = unchanged_pod
