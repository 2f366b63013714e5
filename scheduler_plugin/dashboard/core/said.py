"""What the scheduler and agents say of VMs, laid over the rows that their objects make. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from protocol.kubernetes.objects import JsonObject, flag, items, shortened, text
from scheduler_plugin.dashboard.core.rows import NOTHING, ZERO, Pair, VmRow, pair_at


class SchedulerReport(msgspec.Struct, frozen=True):
    """The scheduler's report of one VM; ``silent``: it has not heard from its agent lately."""

    reserved: Pair
    denied: Pair
    migrating: bool
    silent: bool = False


def words(nodes: JsonObject) -> dict[str, SchedulerReport]:
    """The scheduler's report of each VM. While a VM migrates it has two pods: the larger amounts count."""
    found: dict[str, SchedulerReport] = {}
    for node in items(nodes, "nodes"):
        for pod in items(node, "pods"):
            vm = text(pod, "vm")
            if vm:
                word = SchedulerReport(
                    pair_at(pod, "reserved"), pair_at(pod, "denied"), flag(pod, "migrating"), flag(pod, "agentSilent")
                )
                found[vm] = _together((found[vm], word)) if vm in found else word
    return found


def trouble_in(account: JsonObject) -> str:
    """The failure that an agent reports; empty if it reports none.

    >>> trouble_in({"troubles": [{"with": "metrics", "reason": "no answer", "since_seconds": 7.0}]})
    'its agent has trouble with metrics: no answer'
    """
    said = troubles_in(account)
    return shortened(f"its agent has trouble with {'; '.join(said)}") if said else ""


def troubles_in(account: JsonObject) -> list[str]:
    """Each thing that an agent says is wrong: with what, and why.

    >>> troubles_in({"troubles": [{"with_": "guest", "reason": "no answer"}]})
    ['guest: no answer']
    """
    return [
        f"{text(each, 'with_') or text(each, 'with')}: {text(each, 'reason')}" for each in items(account, "troubles")
    ]


def differing(before: Mapping[str, SchedulerReport], now: Mapping[str, SchedulerReport]) -> list[str]:
    """The VMs of which the scheduler says something else than ``before``."""
    return [vm for vm in before.keys() | now.keys() if before.get(vm) != now.get(vm)]


def _together(said: Sequence[SchedulerReport]) -> SchedulerReport:
    reserved, denied = ([getattr(each, name) for each in said] for name in ("reserved", "denied"))
    return SchedulerReport(
        _larger(reserved), _larger(denied), any(each.migrating for each in said), any(each.silent for each in said)
    )


def _larger(pairs: Sequence[Pair]) -> Pair:
    return max(each[0] for each in pairs), max(each[1] for each in pairs)


def said_of(row: VmRow, word: SchedulerReport | None) -> VmRow:
    """The row with what the scheduler says of it; a VM that the scheduler does not know keeps what its object says.

    Permits come sooner than the scheduler's next word, and what is permitted or used is reserved: no smaller
    reservation is shown.
    """
    if word is None:
        return msgspec.structs.replace(row, reserved=NOTHING, denied=ZERO, migrating=False)
    reserved = _larger((word.reserved, row.permit, row.use))
    return msgspec.structs.replace(row, reserved=reserved, denied=word.denied, migrating=word.migrating)
