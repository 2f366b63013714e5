"""Dependencies of NeonVM's controllers: the API, its caches, and the guests of this process."""

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
"""Turns a VM and the plain pod of its plan into the pod that the cluster needs."""


def as_planned(vm: Json, pod: Json) -> Json:  # noqa: ARG001 - a PodForm
    """The plain pod: a kubelet of ours knows what to do with it."""
    return pod


def random_suffix() -> str:
    """Five letters and digits, as Kubernetes appends to generated names."""
    return "".join(random.choices(_LETTERS, k=5))


@dataclass(frozen=True, slots=True)
class HostedGuest:
    """The guest of one pod. ``resizer`` is None if it does not run here, or only receives. Nothing is known about it
    before ``is_known``. ``hindrance`` says why it cannot be moved, in one line; empty if nothing known prevents it.
    ``moves_asleep``: it can be moved while it sleeps, too. ``fault`` is why it is not known yet; empty if it is, or if
    nobody has asked it.
    """

    resizer: Resizer | None = None
    role: PodRole = PodRole.EMPTY
    is_known: bool = True
    hindrance: str = ""
    acceleration: Acceleration | None = None
    moves_asleep: bool = False
    fault: str = ""


class GuestHost(Protocol):
    """The guests that run here, by their pods; the kubelet's side."""

    def guest(self, pod: Json | None) -> HostedGuest:
        """The guest of that very pod, which an earlier pod of the same name is not."""

    async def send(
        self, source: ObjectName, target: ObjectName, limits: TransferLimits, progress: Callable[[TransferInfo], None]
    ) -> TransferInfo:
        """Moves the guest of one pod into another. Raises and is cancelled as ``Guest.send``."""

    async def vm_address(self, vm: Json) -> str:
        """The VM's address on the flat network; empty if it is not on it. Raises ``ApiError`` and the like."""

    async def release_vm(self, vm: ObjectName, uid: str) -> None:
        """Releases the address and the disk of a VM that is gone for good."""


@dataclass(frozen=True, slots=True)
class ControllerDependencies:
    """Dependencies of the controllers. ``suffix`` draws the random end of a pod's name."""

    client: ApiClient
    vms: Informer
    pods: Informer
    migrations: Informer
    guest_host: GuestHost
    events: EventRecorder
    clock: Clock
    suffix: Callable[[], str] = random_suffix
    form: PodForm = as_planned
