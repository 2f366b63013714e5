"""The family neon: requests, pressure, releases and restarts, against the real ledger.

The original counts a *startup buffer* after a restart. Here permits are persisted and there is none: such a case is
answered with its numbers less the buffer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from protocol.units import ZERO, Bytes, Instant, MilliCpu, QuantityError, Resources
from scheduler_plugin.ledger.accounts.node_account import Pressure
from scheduler_plugin.ledger.events import PodGone
from scheduler_plugin.ledger.facts import ResourcePolicy
from scheduler_plugin.placement.verdict import Room
from tests.vectors.case import Case
from tests.vectors.ledger_fixture import LedgerFixture
from tests.vectors.registry import Answer, Check, Declined, UnusedError, chosen

_COUNTS: Final = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_REPORTS: Final = re.compile(r"(?P<count>\w+) reports? use (?P<use>\d+)\b.*?\blast permit (?P<last>\d+)")
_DEFAULT_TOTAL: Final = 10
"""What the node of a restart has where the case does not say."""


def request(case: Case) -> object:
    """One request of one agent, on a node in a given state (S4.5, S4.7)."""
    given, wanted = case.input, case.input["requested"]
    node, pod = _without_buffer(given["node"], "total", "system"), _without_buffer(given["pod"])
    room = node["total"] - node.get("system", 0) - node["reserved"]
    factor = given.get("factor", 1)
    if 0 < room < wanted - pod["reserved"] and room % factor:
        raise Declined("a permit need not be a multiple of anything (S4.6)")
    ledger = _before(node, pod, is_proven="last_permit" not in given)
    if given.get("starting_migration"):
        ledger.migrate("vm")
    permit = ledger.ask("vm", wanted, given.get("last_permit"))
    return {
        "permit": permit,
        "pod": {"reserved": ledger.reserved("vm"), "pressure": ledger.pressure("vm")},
        "node": {"reserved": ledger.node_reserved, "pressure": ledger.node_pressure},
    }


def _before(
    node: Mapping[str, int], pod: Mapping[str, int], *, is_proven: bool, is_migrating: bool = False
) -> LedgerFixture:
    """The node as the case finds it: earlier pressure comes from an earlier denial, while others filled the node."""
    room = node["total"] - node.get("system", 0)
    others, own, pressure = node["reserved"] - pod["reserved"], pod["reserved"], pod.get("pressure", 0)
    ledger = LedgerFixture(node["total"], node.get("system", 0))
    ledger.add_vm("vm", own, own if is_proven else None)
    if elsewhere := node.get("pressure", 0) - pressure:
        ledger.add_vm("other", 1, 1)
        others -= 1
    if leaving := node.get("accounted", 0) - (own + pressure if is_migrating else 0):
        ledger.add_vm("leaving", leaving, leaving)
        others -= leaving
    full = room - own - leaving - (1 if elsewhere else 0)
    ledger.add_foreign(max(others, full) if pressure or elsewhere else others)
    ledger.rebuild()
    if pressure:
        ledger.ask("vm", own + pressure)
    if elsewhere:
        ledger.ask("other", 1 + elsewhere)
    ledger.add_foreign(others)
    if leaving:
        ledger.migrate("leaving")
    if is_migrating:
        ledger.migrate("vm")
    return ledger


def _request_expected(case: Case) -> Any:
    expected = case.expected
    return {"permit": expected["permit"], **{part: _after(case, part) for part in ("pod", "node")}}


def _after(case: Case, part: str, *others: str) -> dict[str, int]:
    """The expected amounts of the pod or the node; also of the buffer if the case has one."""
    expected = case.expected[part]
    if "buffer" in case.input[part]:
        _ = expected["buffer"]
    return _without_buffer(expected, *others)


_SAME_TOTAL: Final = {"expected.node.total": "what a node has does not change with a request"}
_SAME_NODE: Final = {**_SAME_TOTAL, "expected.node.system": "what a node keeps does not change with a request"}


def _without_buffer(amounts: Mapping[str, int], *others: str) -> dict[str, int]:
    """Reservations without the startup buffer, pressure, and ``others`` if given."""
    found = {"reserved": amounts["reserved"] - amounts.get("buffer", 0), "pressure": amounts["pressure"]}
    return found | {name: amounts[name] for name in others if name in amounts}


def watermark(case: Case) -> object:
    """Total, system reserve and fraction (S4.8)."""
    total, system = MilliCpu(case.input["total"]), MilliCpu(case.input["system"])
    try:
        level = ResourcePolicy(Fraction(str(case.input["watermark"])), system)
    except QuantityError:
        return "refused"
    return {"reservable": level.reservable(total).value, "watermark": level.watermark_of(total).value}


def _watermark_expected(case: Case) -> Any:
    return case.expected if isinstance(case.expected, Mapping) else case.expected and "refused"


def too_much_pressure(case: Case) -> object:
    """True if more VMs should be chosen to migrate (S4.8)."""
    cpu, mem = case.input["cpu"], case.input["mem"]
    reserved = _both(cpu, mem, lambda each: each["reserved"] - each.get("buffer", 0))
    level = _both(cpu, mem, lambda each: each["watermark"])
    full = Room("n1", reserved, reserved, ZERO, level, is_open=True)
    unmet, leaving = _both(cpu, mem, lambda each: each["pressure"]), _both(cpu, mem, lambda each: each["accounted"])
    found = Pressure.of(full, unmet, leaving).has_excess
    if found and reserved.within(level):
        raise Declined("capacity pressure counts below the watermark, too, once it exceeds the room there (S4.8)")
    return found


def _both(cpu: Mapping[str, int], mem: Mapping[str, int], part: Any) -> Resources:
    return Resources(MilliCpu(part(cpu)), Bytes(part(mem)))


def migration_accounting(case: Case) -> object:
    """The effect of a migration's start, and of a pod's end, on the totals."""
    given = case.input
    node, pod = _without_buffer(given["node"], "total", "accounted"), _without_buffer(given["pod"])
    pressure, is_migrating = pod.get("pressure", 0), bool(given.get("migrating"))
    room = max(node["reserved"], node.get("total", 0))
    ledger = _before({**node, "total": room}, pod, is_proven=True, is_migrating=is_migrating)
    found = {}
    if case.more["op"] == "start_migration":
        if pressure:
            raise Declined("what a leaving pod was denied stays pressure, and counts as leaving with it (S4.8)")
        ledger.migrate("vm")
        found["pod"] = {"reserved": ledger.reserved("vm"), "pressure": ledger.pressure("vm")}
    elif case.more["op"] == "delete":
        ledger.ledger.apply(PodGone("vm"), Instant(ledger.now))
    else:
        raise UnusedError(f"op {case.more['op']!r}")
    sums = {"reserved": ledger.node_reserved, "pressure": ledger.node_pressure, "accounted": ledger.node_migrating}
    return {"node": sums, **found}


def _accounting_expected(case: Case) -> Any:
    expected = {"node": _after(case, "node", "accounted")}
    return expected | ({"pod": _after(case, "pod")} if "pod" in case.expected else {})


def restart(case: Case) -> object:
    """The state of a restarted scheduler, and how much it may still grant."""
    given = case.input or {}
    if "vms" in given:
        return _after_restart(case)
    told = _REPORTS.search(case.text)
    if told is None:
        raise ValueError(f"expected text like 'two report use 1, last permit 1', got {case.text!r}")
    count, use, last = _COUNTS.get(told["count"], 0) or int(told["count"]), int(told["use"]), int(told["last"])
    ledger = LedgerFixture(given.get("total", _DEFAULT_TOTAL))
    names = [f"vm-{number}" for number in range(count)]
    for name in names:
        ledger.add_vm(name, use=use)
    ledger.add_foreign(given.get("node_reserved_others", 0))
    ledger.rebuild()
    permits = [ledger.ask(name, given.get("requested", use), given.get("last_permit", last)) for name in names]
    reserved = ledger.node_reserved
    facts = {
        "permit": permits[0],
        "reserved": reserved,
        "node_reserved": reserved,
        "buffer": 0,
        "over_total": reserved > ledger.total,
    }
    return chosen(case, facts, (), ("reserved", "buffer"), ("permit", "node_reserved", "over_total"))


def _after_restart(case: Case) -> object:
    """VMs as ``[use, most]``. The original reserves the most of each until it has reported."""
    ledger = LedgerFixture(case.input["total"])
    vms = [(use, most) for use, most in case.input["vms"]]
    if any(most > use for use, most in vms):
        raise Declined("permits are persisted, so a restart needs no buffer and admits new pods at once")
    for number, (use, _) in enumerate(vms):
        ledger.add_vm(f"vm-{number}", use)
    ledger.rebuild()
    reserved = ledger.node_reserved
    facts = {
        "reserved": reserved,
        "buffer": 0,
        "reserved_minus_buffer": reserved,
        "new_pods_admitted": reserved < ledger.total,
    }
    return chosen(case, facts, ("reserved", "buffer", "new_pods_admitted"))


GROUPS: Final[Mapping[str, Check | Answer]] = {
    "seed_plugin_request": Check(request, _request_expected, _SAME_NODE),
    "agent_request_2024": Check(request, _request_expected, _SAME_TOTAL),
    "seed_watermark": Check(watermark, _watermark_expected),
    "too_much_pressure": Check(
        too_much_pressure,
        lambda case: case.expected["too_much"],
        {"expected.seed_uint16_code_answered": "an overflow of the seed's code is not followed"},
    ),
    "migration_accounting_2023": Check(migration_accounting, _accounting_expected),
    "restart_recovery": Check(restart, needs=("expected",)),
}
