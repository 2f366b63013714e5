"""The family neon: requests, pressure, releases and restarts, against the real ledger.

Where a case counts a *startup buffer* we count none: permits are persisted, so a restarted scheduler knows what was
granted. Such a case is answered with what remains of its numbers without the buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from protocol.units import ZERO, Bytes, MilliCpu, Resources
from scheduler_plugin.ledger import Level, Pressure
from scheduler_plugin.placement import Room
from tests.vectors.bench import Bench
from tests.vectors.case import Case
from tests.vectors.registry import Answer, Check, Declined


def request(case: Case) -> object:
    """One request of one agent, on a node in a given state (S4.5, S4.7)."""
    given = case.input
    if given.get("factor", 1) != 1:
        raise Declined("a permit need not be a multiple of anything (S4.6)")
    node, pod = _without_buffer(given["node"]), _without_buffer(given["pod"])
    bench = _before(node, pod, is_proven="last_permit" not in given)
    if given.get("starting_migration"):
        bench.migrate("vm")
    permit = bench.ask("vm", given["requested"], given.get("last_permit"))
    return {
        "permit": permit,
        "pod": {"reserved": bench.reserved("vm"), "pressure": bench.pressure("vm")},
        "node": {"reserved": bench.node_reserved, "pressure": bench.node_pressure},
    }


def _before(node: Mapping[str, int], pod: Mapping[str, int], *, is_proven: bool) -> Bench:
    """The node as the case finds it: earlier pressure comes from an earlier denial, while others filled the node."""
    room = node["total"] - node.get("system", 0)
    others, own, pressure = node["reserved"] - pod["reserved"], pod["reserved"], pod.get("pressure", 0)
    bench = Bench(node["total"], node.get("system", 0))
    bench.add_vm("vm", own, own if is_proven else None)
    elsewhere = node.get("pressure", 0) - pressure
    if elsewhere:
        bench.add_vm("other", 1, 1)
        others -= 1
    bench.add_foreign(max(others, room - own - (1 if elsewhere else 0)) if pressure or elsewhere else others)
    bench.rebuild()
    if pressure:
        bench.ask("vm", own + pressure)
    if elsewhere:
        bench.ask("other", 1 + elsewhere)
    bench.add_foreign(others)
    return bench


def _request_expected(case: Case) -> Any:
    expected = case.expected
    node, pod = _without_buffer(expected["node"]), _without_buffer(expected["pod"])
    return {
        "permit": expected["permit"],
        "pod": {"reserved": pod["reserved"], "pressure": pod.get("pressure", 0)},
        "node": {"reserved": node["reserved"], "pressure": node.get("pressure", 0)},
    }


def _without_buffer(amounts: Mapping[str, int]) -> dict[str, int]:
    return {**amounts, "reserved": amounts["reserved"] - amounts.get("buffer", 0)}


def watermark(case: Case) -> object:
    """Total, system reserve and fraction (S4.8)."""
    level = Level(Fraction(str(case.input["watermark"])), MilliCpu(case.input["system"]))
    total = MilliCpu(case.input["total"])
    return {"reservable": level.reservable(total).value, "watermark": level.watermark_of(total).value}


def too_much_pressure(case: Case) -> object:
    """Whether more VMs should be chosen to migrate (S4.8)."""
    cpu, mem = case.input["cpu"], case.input["mem"]
    reserved = _both(cpu, mem, lambda each: each["reserved"] - each.get("buffer", 0))
    level = _both(cpu, mem, lambda each: each["watermark"])
    full = Room("n1", reserved, reserved, ZERO, level, is_open=True)
    unmet, leaving = _both(cpu, mem, lambda each: each["pressure"]), _both(cpu, mem, lambda each: each["accounted"])
    found = Pressure.of(full, unmet, leaving).too_much
    quiet = cpu["reserved"] <= cpu["watermark"] and mem["reserved"] < mem["watermark"]
    if found and quiet and not case.expected["too_much"]:
        raise Declined("capacity pressure counts below the watermark, too, once it exceeds the room there (S4.8)")
    return found


def _both(cpu: Mapping[str, int], mem: Mapping[str, int], part: Any) -> Resources:
    return Resources(MilliCpu(part(cpu)), Bytes(part(mem)))


def migration_accounting(case: Case) -> object:
    """What starting a migration, and the end of a pod, do to the sums."""
    node, pod = _without_buffer(case.input["node"]), _without_buffer(case.input["pod"])
    bench = _before({"total": node["reserved"], **node}, pod, is_proven=True)
    if case.raw["op"] == "start_migration":
        if pod.get("pressure"):
            raise Declined("what a leaving pod was denied stays pressure, and counts as leaving with it (S4.8)")
        bench.migrate("vm")
        return {
            "node": {
                "reserved": bench.node_reserved,
                "pressure": bench.node_pressure,
                "accounted": bench.node_migrating,
            },
            "pod": {"reserved": bench.reserved("vm"), "pressure": bench.pressure("vm")},
        }
    if case.input.get("migrating"):
        bench.migrate("vm")
    bench.ledger.lose_pod("vm")
    return {
        "node": {"reserved": bench.node_reserved, "pressure": bench.node_pressure, "accounted": bench.node_migrating}
    }


def _accounting_expected(case: Case) -> Any:
    return {
        part: {key: value for key, value in _without_buffer(amounts).items() if key != "buffer"}
        for part, amounts in case.expected.items()
    }


def restart(case: Case) -> object:
    """What a restarted scheduler believes, and what it may still grant."""
    if "buffer era" in str(case.raw.get("desc")):
        raise Declined("permits are persisted, so a restart needs no buffer and admits new pods at once")
    bench = Bench(total=10)
    if case.input is None:
        for name in ("a", "b", "c"):
            bench.add_vm(name, use=1)
        bench.rebuild()
        for name in ("a", "b", "c"):
            bench.ask(name, 1, last_permit=1)
        return {"reserved": bench.node_reserved, "buffer": 0}
    bench.add_vm("vm", use=1)
    bench.add_foreign(case.input["node_reserved_others"])
    bench.rebuild()
    permit = bench.ask("vm", case.input["requested"], case.input["last_permit"])
    return {"permit": permit, "node_reserved": bench.node_reserved, "over_total": bench.node_reserved > bench.total}


GROUPS: Final[Mapping[str, Check | Answer]] = {
    "seed_plugin_request": Check(request, _request_expected),
    "agent_request_2024": Check(request, _request_expected),
    "seed_watermark": watermark,
    "too_much_pressure": Check(too_much_pressure, lambda case: case.expected["too_much"]),
    "migration_accounting_2023": Check(migration_accounting, _accounting_expected),
    "restart_recovery": restart,
}
