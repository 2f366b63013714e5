"""The input and the output of a migration's plan, and what its texts are made of (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from deploy.neonvm.ports import PodRole
from deploy.neonvm.texts import controller as texts
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, name_of, node_of, text, whole

CONDITION: Final = "Migrated"
"""The one condition of a migration; its time of transition is when the migration ended."""

WAITS: Final = frozenset({texts.WAITING, texts.UNSCHEDULABLE})
"""The reasons of one that may not begin yet, or whose target pod no node takes."""


class Sending(Enum):
    """State of the move itself, in this process."""

    NOT_BEGUN = "not begun"
    ACTIVE = "active"
    FAILED = "failed"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class TransferState:
    """The move itself. ``info`` is what ``status.info`` says of it, empty while it says nothing."""

    sending: Sending = Sending.NOT_BEGUN
    reason: str = ""
    story: str = ""
    info: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class MoveFacts:
    """Inputs of the migration's plan.

    ``fault`` says what is wrong with the migration's own spec. ``rival`` names another migration of the VM that is
    under way; ``remains`` says what a failed one has left behind, while that is waited for. ``source`` and ``target``
    are the pods that the status names (the source: before it names one, the VM's). ``is_quiet``: the source's guest is
    held and not being resized. ``is_overdue``: the migration has had all its time. ``transfer`` is the move in this
    process: another process may have begun it before. ``hindrance`` says why the source's guest cannot be moved.
    """

    migration: Json
    fault: str
    vm: Json | None
    rival: str
    remains: str
    source: Json | None
    target: Json | None
    source_role: PodRole
    target_role: PodRole
    is_quiet: bool
    transfer: TransferState
    is_overdue: bool
    # A function, because most plans draw no name.
    new_pod_name: Callable[[], str]
    hindrance: str = ""


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """``status`` is merged into the object's status where it differs; all is done in the order of the fields.
    ``cancel`` calls the move off, which ends later; with ``send`` it is one that another process may have begun.
    ``own_source`` makes the migration an owner of the source's pod, beside the VM that controls it. ``tell`` says on
    the VM and on the migration how it ended.
    """

    add_finalizer: bool = False
    adopt_target: bool = False
    status: tuple[tuple[str, object], ...] = ()
    own_source: bool = False
    create_target: bool = False
    send: bool = False
    cancel: bool = False
    delete_target: bool = False
    tell: bool = False
    remove_finalizer: bool = False


def pod_on(pod: Json) -> str:
    """A pod and its node."""
    return texts.POD_ON.format(pod=name_of(pod).name, node=node_of(pod) or "no node")


def time_of(migration: Json) -> int:
    """Duration limit of the migration, in seconds."""
    return whole(migration, "spec", "completionTimeout")


def why_unplaced(target: Json | None) -> str:
    """The scheduler's reason for a target without a node; empty before it has one."""
    condition = condition_of(target or {}, "PodScheduled")
    why = text(condition, "message") if text(condition, "status") == "False" else ""
    return texts.NO_PLACE.format(why=why) if why else ""


def figures(transfer: TransferState) -> str:
    """The numbers that people ask for, as far as they are known."""
    info = dict(transfer.info)
    ram = info.get("ram")
    if not info or not isinstance(ram, dict):
        return ""
    mebibytes = int(ram.get("transferred", 0)) >> 20  # bytes to MiB
    return texts.FIGURES.format(total=info["totalTimeMs"], downtime=info["downtimeMs"], mebibytes=mebibytes)
