"""Input and output of a VirtualMachine's plan (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from deploy.neonvm.ports import Acceleration, GuestState
from protocol.guest.sleep import SleepReport
from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from protocol.units import Resources
from protocol.virtual_machine import VirtualMachine


@dataclass(frozen=True, slots=True)
class ActiveMigration:
    """The active migration of the VM. ``is_placed``: its target has, or had, a node. ``is_transferring``: preparation
    is done. ``target_guest`` is the guest in the target pod, None until it runs there.
    """

    source: str
    target: str
    is_placed: bool
    is_transferring: bool
    target_pod: Json | None
    target_guest: GuestState | None


@dataclass(frozen=True, slots=True)
class VmObservation:
    """Input of the plan. ``machine`` is None if the spec is invalid; ``fault`` is then the error.

    ``guest`` is the guest's state, None if unknown; ``guest_fault`` its last error. ``restart_due``: the restart
    backoff is over. ``new_pod_name`` returns a name that was never used. ``is_known``: the guest has been polled.
    ``acceleration`` is its accelerator. ``stalled`` are the resources (``cpu``, ``memory``) whose resize makes no
    progress. ``others`` are the VM's other pods; ``active_migration`` is the active migration, if any.
    ``sleeping`` is the runner's report on the last sleep; ``migrates``: a migration of the VM is pending or under way;
    ``moves_asleep``: a sleeping guest can be migrated without waking it; ``is_sleep_over``: the VM has been asleep for
    as long as TCP connections survive.
    """

    vm: Json
    machine: VirtualMachine | None
    fault: str
    pod: Json | None
    guest: GuestState | None
    guest_fault: str
    vm_address: str
    restart_due: bool
    new_pod_name: Callable[[], str]
    others: tuple[Json, ...] = ()
    active_migration: ActiveMigration | None = None
    is_known: bool = True
    acceleration: Acceleration | None = None
    stalled: frozenset[str] = frozenset()
    sleeping: SleepReport = field(default_factory=SleepReport)
    migrates: bool = False
    moves_asleep: bool = False
    is_sleep_over: bool = False


@dataclass(frozen=True, slots=True)
class VmPlan:
    """Actions, executed in the order of the fields. ``status`` is a merge patch. ``remake_pod``: delete the unscheduled
    pod, which would boot with more than the VM now requests; it is created again. ``desired`` is the size to which the
    guest is resized; ``hold`` stops resizing it.
    ``unneeded_pods`` are to be deleted. ``sleep`` is an order to sleep for the guest. ``wake``: wake it
    after the status was written.
    """

    status: Json
    add_finalizer: bool = False
    create_pod: bool = False
    delete_pod: bool = False
    remake_pod: bool = False
    remove_finalizer: bool = False
    desired: Resources | None = None
    hold: bool = False
    wait_for_restart: bool = False
    unneeded_pods: tuple[ObjectName, ...] = ()
    sleep: str = ""
    wake: bool = False
