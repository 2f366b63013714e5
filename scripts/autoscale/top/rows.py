"""VMs and nodes as rows of a table, from their objects, their agents' accounts and the scheduler's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocol.kubernetes.objects import Json, child, items, name_of, text
from protocol.units import Bytes, Instant, QuantityError
from scripts.autoscale.demonstration.fleet import node_row
from scripts.autoscale.demonstration.moves import seen as seen_move
from scripts.autoscale.top.columns import UNKNOWN, Column, Row, printable

_NOTHING: Final = frozenset({"", "0"})


def vm_row(vm: Json, agent: Json, pod: Json, migration: Json | None) -> Row:
    """One VM. ``agent`` is what its agent says, ``pod`` what the scheduler does; both are empty until known."""
    status, metrics, goal = child(vm, "status"), child(agent, "metrics"), child(agent, "goal")
    permit = child(agent, "permit") or child(pod, "permit")
    name, node, state = name_of(vm), _where(text(status, "node"), migration), _state(vm, agent, pod, migration)
    cells = (
        str(name),
        state,
        node,
        text(status, "cpus"),
        _cores(metrics.get("cores_busy")),
        text(status, "memorySize"),
        _mib(text(metrics, "mem_used")),
        text(goal, "cpu"),
        _mib(text(goal, "mem")),
        text(permit, "cpu"),
        text(permit, "mem"),
        text(agent, "because"),
    )
    return Row(str(name), _shown(cells), name.namespace, node, state)


def node_line(node: Json) -> Row:
    """One node as the scheduler has it."""
    name, state = text(node, "name"), _node_state(node)
    _, cpu_bar, _, memory_bar, _, _ = node_row(node)
    excess, vms = child(node, "pressure", "excess"), sum(1 for each in items(node, "pods") if text(each, "vm"))
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
        text(node, "stuck"),
    )
    return Row(name, _shown(cells), node=name, state=state)


def as_fields(columns: tuple[Column, ...], row: Row) -> Json:
    """A row for scripts: each column by its key; what is unknown is null."""
    return {
        each.key: None if cell == UNKNOWN else cell
        for each, cell in zip(columns, row.cells, strict=True)
        if not each.key.endswith("Bar")
    }


def by_vm(node: Json) -> dict[str, Json]:
    """The scheduler's pods on one node by the VM that is theirs."""
    return {text(pod, "vm"): pod for pod in items(node, "pods") if text(pod, "vm")}


def _shown(cells: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(printable(each) or UNKNOWN for each in cells)


def _state(vm: Json, agent: Json, pod: Json, migration: Json | None) -> str:
    """What stands out first: it moves, is denied something, or its agent has trouble; else its phase."""
    denied = child(agent, "denied") or _some(child(pod, "denied"))
    found: Mapping[str, object] = {"moving": migration, "denied": denied, "trouble": items(agent, "troubles")}
    return next((word for word, is_so in found.items() if is_so), text(vm, "status", "phase") or "Pending")


def _node_state(node: Json) -> str:
    found = {
        "stuck": text(node, "stuck"),
        "pressure": _some(child(node, "pressure", "excess")),
        "closed": node.get("open") is False,
    }
    return next((word for word, is_so in found.items() if is_so), "open")


def _some(amounts: Json) -> bool:
    return any(text(amounts, key) not in _NOTHING for key in ("cpu", "mem"))


def _where(node: str, migration: Json | None) -> str:
    if migration is None:
        return node
    move = seen_move(None, migration, Instant(0.0), is_gone=False)
    return f"{node or '?'} ⇢ {move.target or '?'} {move.progress}".rstrip()


def _cores(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, (int, float)) else ""


def _mib(quantity: str) -> str:
    try:
        return f"{Bytes.parse(quantity).value >> 20}Mi" if quantity else ""
    except QuantityError:
        return quantity
