"""What people see of the ledger as JSON: every node as a bar, and why a VM has its size. Pure.

Amounts are written as Kubernetes quantities (``{"cpu": "250m", "mem": "1Gi"}``), spans in seconds.
"""

from __future__ import annotations

from protocol.messages import Metrics, ObjectName
from protocol.units import Instant, Resources
from scheduler_plugin.ledger import Explanation, Ledger, Pressure
from scheduler_plugin.ledger.claims import Claim
from scheduler_plugin.ledger.nodes import NodeBook

Json = dict[str, object]


def amount(resources: Resources) -> Json:
    """Both amounts as quantities."""
    return {"cpu": resources.cpu.quantity(), "mem": resources.mem.quantity()}


def nodes_view(ledger: Ledger) -> Json:
    """Every node with its pods, sorted by name."""
    return {
        "ready": ledger.is_ready,
        "waitingPods": ledger.waiting,
        "nodes": [_node(name, ledger.nodes[name]) for name in sorted(ledger.nodes)],
    }


def vm_view(ledger: Ledger, vm: ObjectName, now: Instant) -> Json | None:
    """Why the VM has its size, once for each pod that runs it (two while it migrates); None where none does."""
    uids = [uid for uid, claim in ledger.claims.items() if claim.pod.vm == vm]
    if not uids:
        return None
    return {"vm": str(vm), "pods": [_explained(ledger.explain(uid, now)) for uid in uids]}


def _node(name: str, book: NodeBook) -> Json:
    room = book.room
    return {
        "name": name,
        "open": room.is_open,
        "known": book.facts is not None,
        "computeUnit": None if book.policy is None else amount(book.policy.compute_unit),
        "total": amount(room.total),
        "reserved": amount(book.reserved),
        "free": amount(room.free),
        "watermark": amount(room.watermark),
        "pressure": _pressure(book.pressure),
        "pods": [_pod(claim) for claim in sorted(book.claims.values(), key=lambda claim: claim.pod.name)],
    }


def _pod(claim: Claim) -> Json:
    account = claim.vm
    facts = None if account is None else account.facts
    return {
        "pod": str(claim.pod.name),
        "vm": None if claim.pod.vm is None else str(claim.pod.vm),
        "state": claim.state.value,
        "reserved": amount(claim.reserved),
        "permit": None if account is None or account.permit is None else amount(account.permit),
        "use": None if facts is None else amount(facts.use),
        "actual": None if facts is None or facts.actual is None else amount(facts.actual),
        "denied": amount(claim.unmet),
        "migrating": claim.is_migrating,
    }


def _pressure(pressure: Pressure) -> Json:
    return {
        "logical": amount(pressure.logical),
        "capacity": amount(pressure.capacity),
        "migrating": amount(pressure.migrating),
        "excess": amount(pressure.excess),
    }


def _explained(found: Explanation) -> Json:
    return {
        "pod": str(found.pod),
        "node": found.node,
        "state": found.state.value,
        "reserved": amount(found.reserved),
        "reservedBecause": {source: amount(floor) for source, floor in found.floors.items()},
        "permit": None if found.permit is None else amount(found.permit),
        "permitStored": found.is_permit_stored,
        "denied": amount(found.denied),
        "deniedForSeconds": found.denied_for,
        "deniedBy": found.denied_by,
        "migrating": found.is_migrating,
        "metrics": None if found.metrics is None else _metrics(found.metrics),
        "nodeTotal": amount(found.node_total),
        "nodeReserved": amount(found.node_reserved),
        "nodePressure": _pressure(found.node_pressure),
    }


def _metrics(metrics: Metrics) -> Json:
    return {
        "load1": metrics.load1,
        "load5": metrics.load5,
        "memUsed": None if metrics.mem_used is None else metrics.mem_used.quantity(),
    }
