"""Rows of databases and nodes, from their objects, their agents' explanations and the scheduler's."""

from __future__ import annotations

from typing import Final

from protocol.guest.sleep import ASLEEP, WAKING
from protocol.kubernetes.objects import Json, child, items, text
from protocol.pod_database import parse_pod_database
from protocol.units import Bytes, Instant, QuantityError
from protocol.virtual_machine import InvalidObjectError
from scheduler_plugin.dashboard.core import states
from scheduler_plugin.dashboard.core.rows import PENDING, wait_of
from scheduler_plugin.dashboard.core.rows import vm_row as page_row
from scheduler_plugin.dashboard.core.scarcity import freed_room_sentence, node_waiting_sentence, waiting_sentence
from scheduler_plugin.databases import database_name, database_node, is_pod
from scripts.autoscale.demonstration.fleet import reserved_bars
from scripts.autoscale.demonstration.moves import observe_move
from scripts.autoscale.terminal.visible import visible
from scripts.autoscale.top.columns import UNKNOWN, Column, TableRow

_NOTHING: Final = frozenset({"", "0"})


def vm_row(vm: Json, agent: Json, pod: Json, migration: Json | None, *, is_waiting: bool = False) -> TableRow:
    """The row of a database, a VM or a pod that opted in.

    ``agent`` is its agent's explanation and ``pod`` the scheduler's, both empty until known; ``is_waiting`` is true if
    the database has been pending for long.
    """
    (cpu, memory), metrics, goal = _size(vm), child(agent, "metrics"), child(agent, "goal")
    # The agent's permit, or else the scheduler's.
    permit = child(agent, "permit") or child(pod, "permit")
    name, node = database_name(vm), _node_cell(database_node(vm), migration)
    wait, row = "" if migration is None else wait_of(migration), page_row(vm)
    state = _state(vm, agent, pod, migration, is_waiting=is_waiting, problem=row.problem)
    cells = (
        str(name),
        state,
        node,
        cpu,
        _cores(metrics.get("cores_busy")),
        memory,
        _mib(text(metrics, "mem_used")),
        text(goal, "cpu"),
        _mib(text(goal, "mem")),
        text(permit, "cpu"),
        text(permit, "mem"),
        "; ".join(filter(None, (row.problem, *_decisions(name.namespace, agent, pod, wait, row.sleep)))),
    )
    return TableRow(str(name), _visible_cells(cells), name.namespace, node, state)


def _size(vm: Json) -> tuple[str, str]:
    """The database's vCPUs and memory, as in its object."""
    if not is_pod(vm):
        return text(vm, "status", "cpus"), text(vm, "status", "memorySize")
    try:
        actual = parse_pod_database(vm).actual
    except InvalidObjectError:
        return "", ""
    return ("", "") if actual is None else (str(actual.cpu), str(actual.mem))


def _decisions(namespace: str, agent: Json, pod: Json, wait: str, asleep: str) -> tuple[str, ...]:
    """Sentences about the last decisions, the most important first; some may be empty."""
    decided = f"migration: {wait}" if wait else text(agent, "because")
    return waiting_sentence(pod), asleep or decided, freed_room_sentence(pod, namespace)


def node_line(node: Json) -> TableRow:
    """The row of a node from the scheduler's ``/nodes`` (``NodeModel`` of ``scheduler_plugin.web.models``)."""
    name, state = text(node, "name"), _node_state(node)
    cpu_bar, memory_bar = reserved_bars(node)
    excess, vms = child(node, "pressure", "excess"), sum(1 for pod in items(node, "pods") if text(pod, "vm"))
    cells = (
        name,
        state,
        str(vms),
        cpu_bar,
        text(node, "reserved", "cpu"),
        text(node, "watermark", "cpu"),
        text(node, "total", "cpu"),
        memory_bar,
        _mib(text(node, "reserved", "mem")),
        _mib(text(node, "watermark", "mem")),
        _mib(text(node, "total", "mem")),
        text(excess, "cpu"),
        _mib(text(excess, "mem")),
        node_waiting_sentence(node),
        text(node, "stuck"),
    )
    return TableRow(name, _visible_cells(cells), node=name, state=state)


def as_fields(columns: tuple[Column, ...], row: TableRow) -> Json:
    """A row for scripts, by the columns' keys; unknown cells are null."""
    return {
        column.key: None if cell == UNKNOWN else cell
        for column, cell in zip(columns, row.cells, strict=True)
        # Other columns contain the numbers of bars.
        if not column.key.endswith("Bar")
    }


def by_vm(node: Json) -> dict[str, Json]:
    """The scheduler's pods on a node, by VM."""
    return {text(pod, "vm"): pod for pod in items(node, "pods") if text(pod, "vm")}


def _visible_cells(cells: tuple[str, ...]) -> tuple[str, ...]:
    # A tab would misalign the columns.
    return tuple(visible(cell.replace("\t", " ")) or UNKNOWN for cell in cells)


def phase_of(vm: Json) -> str:
    """The database's phase; pending if it has none yet, or if a pod's postgres is not running."""
    return page_row(vm).phase if is_pod(vm) else text(vm, "status", "phase") or PENDING


def _state(  # noqa: PLR0913 - the inputs of a state
    vm: Json, agent: Json, pod: Json, migration: Json | None, *, is_waiting: bool, problem: str
) -> str:
    """The worst state by the page's table, or else the phase."""
    phase = phase_of(vm)
    conditions = {
        states.UNHEALTHY: phase == states.FAILED or problem,
        states.WAITING: is_waiting,
        states.DENIED: child(agent, "denied") or _some(child(pod, "denied")),
        states.AGENT_PROBLEM: items(agent, "troubles"),
        states.MIGRATING: migration,
        states.WAKING: phase == WAKING,
        states.ASLEEP: phase == ASLEEP,
    }
    return states.worst(states.VM_STATES, conditions) or phase


def _node_state(node: Json) -> str:
    conditions = {
        states.CANNOT_DRAIN: text(node, "stuck"),
        states.OVER_WATERMARK: _some(child(node, "pressure", "excess")),
        states.CORDONED: node.get("open") is False,
    }
    return states.worst(states.NODE_STATES, conditions) or "open"


def _some(amounts: Json) -> bool:
    return any(text(amounts, key) not in _NOTHING for key in ("cpu", "mem"))


def _node_cell(node: str, migration: Json | None) -> str:
    if migration is None:
        return node
    move = observe_move(None, migration, Instant(0.0), is_gone=False)
    target = move.target or ("waiting" if wait_of(migration) else "?")  # the column of the last decision says for what
    return f"{node or '?'} ⇢ {target} {move.progress}".rstrip()


def _cores(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, (int, float)) else ""


def _mib(quantity: str) -> str:
    try:
        return f"{Bytes.parse(quantity).value >> 20}Mi" if quantity else ""
    except QuantityError:
        return quantity
