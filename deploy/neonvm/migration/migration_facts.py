"""Input and output of a migration's plan, and values for its messages (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from deploy.neonvm.ports import PodRole
from deploy.neonvm.texts import controller as texts
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, integer, name_of, node_of, text

CONDITION: Final = "Migrated"
"""The only condition of a migration; its lastTransitionTime is when the migration ended."""

WAITS: Final = frozenset({texts.WAITING, texts.UNSCHEDULABLE})
"""Reasons of a migration that cannot start yet, or whose target pod is unschedulable."""


class Sending(Enum):
    """State of the transfer in this process."""

    NOT_BEGUN = "not begun"
    ACTIVE = "active"
    FAILED = "failed"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class TransferState:
    """The transfer. ``info`` is its progress as in ``status.info``; empty before the first report."""

    sending: Sending = Sending.NOT_BEGUN
    reason: str = ""
    message: str = ""
    info: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MigrationInputs:
    """Inputs of the migration's plan.

    ``fault`` is the error in the migration's spec. ``rival`` is another migration of the VM that is under way.
    ``pending_cleanup`` is the cleanup of a failed migration that this one waits for. ``source`` and ``target`` are the
    pods in the status; before it has a source, the VM's pod. ``is_quiet``: the source's guest is held, and no resize is
    under way. ``is_overdue``: the timeout has passed. ``transfer`` is the transfer in this process; another process may
    have started it. ``migration_obstacle`` is why the guest cannot be migrated; ``moves_asleep``: it can be migrated
    while it is asleep.
    """

    migration: Json
    fault: str
    vm: Json | None
    rival: str
    pending_cleanup: str
    source: Json | None
    target: Json | None
    source_role: PodRole
    target_role: PodRole
    is_quiet: bool
    transfer: TransferState
    is_overdue: bool
    # Called only by the plan that creates the target pod.
    new_pod_name: Callable[[], str]
    migration_obstacle: str = ""
    moves_asleep: bool = False


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """Actions, executed in the order of the fields. ``status`` is a merge patch. ``cancel`` cancels the transfer, which
    ends later; together with ``send`` it resumes a transfer of another process only to cancel it. ``own_source`` adds
    the migration as an owner of the source pod, in addition to the VM, its controller. ``record_outcome`` records the
    outcome as Events on the migration and the VM.
    """

    add_finalizer: bool = False
    adopt_target: bool = False
    status: Json = field(default_factory=dict)
    own_source: bool = False
    create_target: bool = False
    send: bool = False
    cancel: bool = False
    delete_target: bool = False
    record_outcome: bool = False
    remove_finalizer: bool = False


def pod_on(pod: Json) -> str:
    """The pod and its node, for messages."""
    return texts.POD_ON.format(pod=name_of(pod).name, node=node_of(pod) or "no node")


def timeout_of(migration: Json) -> int:
    """Timeout of the migration, in seconds."""
    return integer(migration, "spec", "completionTimeout")


def scheduling_failure(target: Json | None) -> str:
    """The scheduler's reason why the target pod is unschedulable; empty if it gave none."""
    condition = condition_of(target or {}, "PodScheduled")
    why = text(condition, "message") if text(condition, "status") == "False" else ""
    return texts.TARGET_UNSCHEDULABLE.format(why=why) if why else ""


def figures(transfer: TransferState) -> str:
    """Duration, downtime and bytes sent, for messages; empty if unknown."""
    if not (info := transfer.info):
        return ""
    mebibytes = integer(info, "ram", "transferred") >> 20  # bytes to MiB
    return texts.FIGURES.format(total=info["totalTimeMs"], downtime=info["downtimeMs"], mebibytes=mebibytes)
