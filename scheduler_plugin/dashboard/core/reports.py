"""Merges reports of the scheduler and of agents into the rows of VMs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from protocol.kubernetes.objects import JsonObject, flag, items, text
from scheduler_plugin.dashboard.core.rows import NOTHING, ZERO, Pair, VmRow, pair_at, row_scope


class SchedulerReport(msgspec.Struct, frozen=True):
    """The scheduler's report of one VM. ``silent`` is True if the scheduler has not heard from its agent."""

    reserved: Pair
    denied: Pair
    migrating: bool
    silent: bool = False
    promised: Pair = ZERO
    permit: Pair = NOTHING


def scheduler_reports(nodes: JsonObject) -> dict[str, SchedulerReport]:
    """The scheduler's report of each VM. A migrating VM has two pods, of which the larger amounts count."""
    reports: dict[str, SchedulerReport] = {}
    for node in items(nodes, "nodes"):
        for pod in items(node, "pods"):
            vm = text(pod, "vm")
            if vm:
                report = SchedulerReport(
                    pair_at(pod, "reserved"),
                    pair_at(pod, "denied"),
                    flag(pod, "migrating"),
                    flag(pod, "agentSilent"),
                    pair_at(pod, "promised"),
                    pair_at(pod, "permit"),
                )
                reports[vm] = _merged(reports[vm], report) if vm in reports else report
    return reports


def problems_in(explanation: JsonObject) -> list[str]:
    """Problems in an agent's explanation: component and reason.

    >>> problems_in({"troubles": [{"with_": "guest", "reason": "no response"}]})
    ['guest: no response']
    """
    return [
        f"{text(trouble, 'with_') or text(trouble, 'with')}: {text(trouble, 'reason')}"
        for trouble in items(explanation, "troubles")
    ]


def changed_vms(before: Mapping[str, SchedulerReport], now: Mapping[str, SchedulerReport]) -> list[str]:
    """The VMs whose reports differ."""
    return [vm for vm in before.keys() | now.keys() if before.get(vm) != now.get(vm)]


def _merged(one: SchedulerReport, other: SchedulerReport) -> SchedulerReport:
    return SchedulerReport(
        _larger(one.reserved, other.reserved),
        _larger(one.denied, other.denied),
        one.migrating or other.migrating,
        one.silent or other.silent,
        _larger(one.promised, other.promised),
        _larger(one.permit, other.permit),
    )


def _larger(*pairs: Pair) -> Pair:
    return max(cpu for cpu, _ in pairs), max(mem for _, mem in pairs)


def with_report(row: VmRow, report: SchedulerReport | None) -> VmRow:
    """Merge the scheduler's report into the row; None if the scheduler does not know the VM."""
    new = SchedulerReport(NOTHING, ZERO, False) if report is None else report
    # The object of a pod has no permit.
    permit = new.permit if row_scope(row.key, row.namespace).of_pods else row.permit
    # The object's permit may be newer than the report, and everything permitted or used is reserved.
    reserved = NOTHING if report is None else _larger(report.reserved, permit, row.use)
    amounts = {"permit": permit, "reserved": reserved, "denied": new.denied, "promised": new.promised}
    return msgspec.structs.replace(row, **amounts, migrating=new.migrating)
