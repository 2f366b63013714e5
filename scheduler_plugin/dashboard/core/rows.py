"""Rows of the page, from API objects and the scheduler's ``/nodes``. Pure.

Texts from the cluster are unchanged, but truncated if long. The page does not interpret them as markup.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from protocol.guest.sleep import ASLEEP, WAKING, is_asleep
from protocol.kubernetes.access_reviews import Scope
from protocol.kubernetes.objects import JsonObject, child, flag, integer, items, name_of, shortened, text
from protocol.names import ANNOTATION_REASON, BOOTING, LABEL_GROUP
from protocol.pod_database import PREFIX
from protocol.units import QuantityError, Resources
from protocol.virtual_machine import InvalidObjectError, VirtualMachine
from scheduler_plugin.dashboard import texts
from scheduler_plugin.dashboard.core import states
from scheduler_plugin.dashboard.core.sleeping import sleep_sentence
from scheduler_plugin.databases import database_name, database_node, parse_database

UNKNOWN: Final = -1
PENDING: Final = "Pending"
_MIGRATING: Final = frozenset({"PreMigrating", "Migrating"})
_MIB: Final = 1024**2
_EXPLANATION: Final = 1000

Pair = tuple[int, int]
"""Milli-vCPUs and MiB, rounded up; ``UNKNOWN`` if unknown."""

NOTHING: Final[Pair] = (UNKNOWN, UNKNOWN)
ZERO: Final[Pair] = (0, 0)


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One row. ``key`` is unique within its kind; ``namespace`` is empty for cluster-wide objects."""

    key: str
    namespace: str


def row_scope(key: str, namespace: str) -> Scope:
    """The scope that a user must be able to read to see a row.

    >>> row_scope("shop/pod/pg-1", "shop").of_pods, row_scope("Hvpa/shop/pod", "shop").of_pods
    (True, False)
    """
    return Scope(namespace, key.startswith(f"{namespace}/{PREFIX}"))


class VmRow(Row, frozen=True):
    """A database. Sizes, bounds and permit are from its object, the rest, and a pod's permit, from the scheduler.

    - ``promised``: the part of ``denied`` that other VMs are about to free.
    - ``problem``: why its object, or a part of it, is unreadable. ``waiting``: it has been pending for long.
      ``trouble``: the problem of its agent. ``state``: the worst of these (see ``states``).
    - ``wakes``: the size with which a sleeping VM wakes, ``NOTHING`` for others. ``sleep``: since when it sleeps.
    """

    node: str = ""
    group: str = ""
    phase: str = ""
    use: Pair = NOTHING
    least: Pair = NOTHING
    most: Pair = NOTHING
    actual: Pair = NOTHING
    permit: Pair = NOTHING
    enabled: bool = False
    booting: bool = False
    problem: str = ""
    reserved: Pair = NOTHING
    denied: Pair = ZERO
    promised: Pair = ZERO
    migrating: bool = False
    waiting: bool = False
    trouble: str = ""
    state: str = states.CALM
    wakes: Pair = NOTHING
    sleep: str = ""


class NodeRow(Row, frozen=True):
    """A node, from the scheduler's report. ``excess`` should still leave it; ``stuck`` is why it cannot. ``crowded``
    is why a database there could not grow to its maximum.

    ``denied`` is what its VMs were denied, ``promised`` the part of that which others are about to free.
    """

    total: Pair = ZERO
    reserved: Pair = ZERO
    free: Pair = ZERO
    watermark: Pair = ZERO
    excess: Pair = ZERO
    denied: Pair = ZERO
    promised: Pair = ZERO
    open: bool = True
    stuck: str = ""
    crowded: str = ""
    state: str = states.CALM


class MoveRow(Row, frozen=True):
    """A migration, while its object exists; ``wait`` is why it has not started."""

    vm: str = ""
    phase: str = ""
    source: str = ""
    target: str = ""
    reason: str = ""
    progress: str = ""
    started: str = ""
    wait: str = ""


class GroupRow(Row, frozen=True):
    """A group of VMs or a scaled workload: replica count, desired count, and the reason."""

    kind: str = ""
    name: str = ""
    replicas: int = UNKNOWN
    desired: int = UNKNOWN
    healthy: bool = True
    because: str = ""


class StatusRow(Row, frozen=True):
    """State of the scheduler and the API server, for the first line of the page.

    ``responding``: the scheduler responds. ``listed``: all VMs have been read. ``silent`` is since when (Unix seconds)
    watches of VMs or migrations have been silent; 0 if they are not.
    """

    responding: bool = False
    ready: bool = False
    leader: str = ""
    waiting: int = 0
    unreadable: int = 0
    idle: str = ""
    listed: bool = False
    silent: int = 0


def pair(amounts: Resources | None) -> Pair:
    """The amounts as milli-vCPUs and MiB.

    >>> pair(Resources.parse("1500m", "2Gi"))
    (1500, 2048)
    """
    # Rounded up, so that no memory looks like none.
    return NOTHING if amounts is None else (amounts.cpu.value, -(-amounts.mem.value // _MIB))


def pair_at(source: JsonObject, *path: str) -> Pair:
    """Amounts ``{"cpu": …, "mem": …}`` at ``path``.

    >>> pair_at({"free": {"cpu": "2", "mem": "4Gi"}}, "free")
    (2000, 4096)
    """
    amounts = child(source, *path)
    return _pair_of(text(amounts, "cpu"), text(amounts, "mem"))


@lru_cache(maxsize=8192)
def _pair_of(cpu: str, mem: str) -> Pair:
    """Cached, because the VMs of a fleet have few different sizes."""
    try:
        return pair(Resources.parse(cpu, mem))
    except QuantityError:
        return NOTHING


def vm_row(obj: JsonObject) -> VmRow:
    """The row of a VirtualMachine or an opted-in pod. An unreadable one becomes a row with a problem."""
    name = database_name(obj)
    try:
        vm = parse_database(obj)
    except InvalidObjectError as error:
        return VmRow(str(name), name.namespace, shortened(database_node(obj)), problem=shortened(str(error)))
    return _vm_row(vm, obj)


def _vm_row(vm: VirtualMachine, obj: JsonObject) -> VmRow:
    sleeps = is_asleep(obj)
    return VmRow(
        str(vm.name),
        vm.name.namespace,
        node=shortened(vm.node or ""),
        group=vm.labels.get(LABEL_GROUP, ""),
        # A new VM has no status.
        phase=shortened(vm.phase or PENDING),
        use=ZERO if sleeps else pair(vm.use),
        least=pair(vm.bounds.min),
        most=pair(vm.bounds.max),
        actual=pair(vm.actual),
        permit=pair(vm.permit),
        enabled=vm.enabled,
        booting=any(text(condition, "reason") == BOOTING for condition in items(obj, "status", "conditions")),
        problem=shortened("; ".join(vm.problems)),
        wakes=pair(vm.wakes_with) if sleeps else NOTHING,
        sleep=sleep_sentence(obj),
    )


def _text_at(source: JsonObject, *path: str) -> str:
    return shortened(text(source, *path))


def move_row(obj: JsonObject) -> MoveRow:
    """The row of a VirtualMachineMigration."""
    name, status = name_of(obj), child(obj, "status")
    return MoveRow(
        str(name),
        name.namespace,
        vm=f"{name.namespace}/{_text_at(obj, 'spec', 'vmName')}",
        phase=_text_at(status, "phase") or PENDING,
        source=_text_at(status, "sourceNode"),
        target=_text_at(status, "targetNode"),
        reason=_text_at(obj, "metadata", "annotations", ANNOTATION_REASON),
        progress=_progress(child(status, "info", "ram")),
        started=text(obj, "metadata", "creationTimestamp"),
        wait=shortened(wait_of(obj), _EXPLANATION),
    )


def wait_of(migration: JsonObject) -> str:
    """The reason why a VirtualMachineMigration has not started; empty if it has.

    The controller stores the reason in a condition. Without a condition, it waits for the controller or a node.

    >>> wait_of({"status": {"phase": "Pending", "conditions": [{"message": "no node has room for 3 vCPU"}]}})
    'no node has room for 3 vCPU'
    """
    status = child(migration, "status")
    phase = text(status, "phase")
    if phase not in {"", PENDING}:
        return ""
    if reason := next(
        (message for condition in items(status, "conditions") if (message := text(condition, "message"))), ""
    ):
        return reason
    if not phase:
        return texts.NOT_PICKED_UP
    # With a target node it is about to start.
    return "" if text(status, "targetNode") else texts.NO_NODE


def _progress(ram: JsonObject) -> str:
    total, remaining = integer(ram, "total"), integer(ram, "remaining")
    return f"{100 - 100 * remaining // total} %" if total and integer(ram, "transferred") else ""


def group_row(kind: str, obj: JsonObject) -> GroupRow:
    """The row of a VirtualMachineGroup, Hvpa or Tortoise, from its status."""
    name, status = name_of(obj), child(obj, "status")
    conditions = items(status, "conditions")
    bad = [condition for condition in conditions if text(condition, "status") == "False" and text(condition, "message")]
    explanation = status.get("explanation")
    because = " ".join(line for line in explanation if isinstance(line, str)) if isinstance(explanation, list) else ""
    return GroupRow(
        f"{kind}/{name}",
        name.namespace,
        kind,
        str(name),
        replicas=_integer(status, "replicas"),
        desired=_integer(child(obj, "spec"), "replicas"),
        healthy=not bad,
        because=shortened(text(bad[0], "message") if bad else because, _EXPLANATION),
    )


def _integer(source: JsonObject, key: str) -> int:
    number = source.get(key)
    # A bool is an int.
    return number if isinstance(number, int) and not isinstance(number, bool) else UNKNOWN


def status_row(nodes: JsonObject | None) -> StatusRow:
    """The row from the scheduler's ``/nodes`` response, which is None if it did not respond."""
    if nodes is None:
        return StatusRow("scheduler", "")
    waiting, unreadable = _integer(nodes, "waitingPods"), items(nodes, "unreadable")
    return StatusRow(
        "scheduler",
        "",
        responding=True,
        ready=flag(nodes, "ready"),
        leader=text(nodes, "leader"),
        # `UNKNOWN` is -1.
        waiting=max(0, waiting),
        unreadable=len(unreadable),
        idle=text(nodes, "migrationsIdle"),
    )


def node_rows(nodes: JsonObject) -> list[NodeRow]:
    """The row of each node in the scheduler's ``/nodes`` response."""
    return [
        node_stated(
            NodeRow(
                text(node, "name"),
                "",
                total=pair_at(node, "total"),
                reserved=pair_at(node, "reserved"),
                free=pair_at(node, "free"),
                watermark=pair_at(node, "watermark"),
                excess=pair_at(node, "pressure", "excess"),
                denied=pair_at(node, "denied"),
                promised=pair_at(node, "promised"),
                open=flag(node, "open"),
                stuck=text(node, "stuck"),
                crowded=text(node, "noRoomToGrow"),
            )
        )
        for node in items(nodes, "nodes")
    ]


def node_stated(row: NodeRow) -> NodeRow:
    """Set the state of the row."""
    true_states = {
        states.CANNOT_DRAIN: row.stuck,
        states.OVER_WATERMARK: max(row.excess) > 0,
        states.CORDONED: not row.open,
    }
    return msgspec.structs.replace(row, state=states.worst(states.NODE_STATES, true_states) or states.CALM)


def vm_stated(row: VmRow) -> VmRow:
    """Set the state of the row."""
    true_states = {
        states.UNHEALTHY: row.problem or row.phase == states.FAILED,
        states.WAITING: row.waiting,
        states.DENIED: max(row.denied) > 0,
        states.AGENT_PROBLEM: row.trouble,
        states.MIGRATING: row.migrating or row.phase in _MIGRATING,
        states.WAKING: row.phase == WAKING,
        states.ASLEEP: row.phase == ASLEEP,
    }
    return msgspec.structs.replace(row, state=states.worst(states.VM_STATES, true_states) or states.CALM)
