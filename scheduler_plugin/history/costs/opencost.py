"""A bill in the format of OpenCost's allocation API."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from protocol.pod_database import pod_of
from scheduler_plugin.databases import database_in
from scheduler_plugin.history.core.samples import HOUR, Millis
from scheduler_plugin.history.costs.bills import LABEL, NONE, Bill, BilledCost, Line
from scheduler_plugin.history.costs.rendering import ranked, rounded

_GIB: Final = 1024**3
_ZEROS: Final = (
    *("cpuCostAdjustment", "cpuCostIdle", "ramCostAdjustment", "ramCostIdle"),
    *("gpuRequestAverage", "gpuUsageAverage"),
    *("gpuCount", "gpuHours", "gpuCost", "gpuCostAdjustment", "gpuCostIdle", "gpuEfficiency"),
    *("networkTransferBytes", "networkReceiveBytes", "networkCost", "networkCrossZoneCost"),
    *("networkCrossRegionCost", "networkInternetCost", "networkCostAdjustment"),
    *("loadBalancerCost", "loadBalancerCostAdjustment"),
    *("pvBytes", "pvByteHours", "pvCost", "pvCostAdjustment", "externalCost", "sharedCost"),
)

_CONTROLLERS: Final = MappingProxyType({"vm": "virtualmachine", "group": "virtualmachinegroup"})
_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")
UNALLOCATED: Final = "__unallocated__"
_NOTHING_OF: Final = ("pvs", "lbAllocations", "gpuAllocation")


def allocations(bill: Bill, by: str, cluster: str) -> dict[str, object]:
    """The response of ``/allocation`` for one window, aggregated by ``by``."""
    window = {"start": _time(bill.period.since), "end": _time(bill.period.until)}
    named = ((UNALLOCATED if name == NONE else name, line) for name, line in ranked(bill))
    return {"code": 200, "data": [{name: _allocation(name, line, by, cluster, bill, window) for name, line in named}]}


def _allocation(  # noqa: PLR0913, PLR0917 - the parts of one record
    name: str, line: Line, by: str, cluster: str, bill: Bill, window: dict[str, str]
) -> dict[str, object]:
    # As in OpenCost, averages are over the time in which there were samples.
    since, until = max(line.since, bill.period.since), min(line.until, bill.period.until)
    hours = Fraction(max(0, until - since), HOUR)
    # Weighted by cost, as in OpenCost.
    efficiency = _efficiency(line, _cpu) * line.reserved.cpu_money + _efficiency(line, _ram) * line.reserved.mem_money
    return {
        "name": name,
        "properties": _properties(name, by, cluster),
        "window": window,
        "start": _time(since) if hours else window["start"],
        "end": _time(until) if hours else window["end"],
        "minutes": rounded(hours * 60),
        **_fields("cpu", "Core", _cpu, line.reserved.cpu_money, line, hours),
        **_fields("ram", "Byte", _ram, line.reserved.mem_money, line, hours),
        # Not recorded, but tools expect these fields.
        **dict.fromkeys(_ZEROS, 0),
        **dict.fromkeys(_NOTHING_OF),
        # Reservations are charged like OpenCost's requests; use affects only the efficiency.
        "totalCost": rounded(line.reserved.money),
        "totalEfficiency": rounded(_share(efficiency, line.reserved.money)),
    }


Hours = Callable[[BilledCost], Fraction]
"""Returns the hours of one resource in a cost."""


def _cpu(cost: BilledCost) -> Fraction:
    return cost.cpu_hours


def _ram(cost: BilledCost) -> Fraction:
    return cost.gib_hours * _GIB


def _fields(  # noqa: PLR0913, PLR0917 - one resource, by OpenCost's names
    kind: str, unit: str, of: Hours, money: Fraction, line: Line, hours: Fraction
) -> dict[str, float]:
    reserved, efficiency = _mean(of(line.reserved), hours), _efficiency(line, of)
    return {
        f"{kind}{unit}s": reserved,
        f"{kind}{unit}RequestAverage": reserved,
        f"{kind}{unit}LimitAverage": _mean(of(line.at_most), hours),
        f"{kind}{unit}UsageAverage": _mean(of(line.reserved) * efficiency, hours),
        f"{kind}{unit}Hours": rounded(of(line.reserved)),
        f"{kind}Cost": rounded(money),
        f"{kind}Efficiency": rounded(efficiency),
    }


def _efficiency(line: Line, of: Hours) -> Fraction:
    return _share(of(line.used), of(line.in_use))


def _properties(name: str, by: str, cluster: str) -> dict[str, object]:
    properties: dict[str, object] = {"cluster": cluster}
    if name == UNALLOCATED:
        return properties
    if by in _CONTROLLERS:
        named = database_in(name)
        if by == "vm" and (pod := pod_of(named)) is not None:
            return properties | {"namespace": pod.namespace, "pod": pod.name}
        return properties | {
            "namespace": named.namespace,
            "controllerKind": _CONTROLLERS[by],
            "controller": named.name,
        }
    if by.startswith(LABEL):
        # Label names as in Prometheus.
        return properties | {"labels": {_NO_NAME.sub("_", by.removeprefix(LABEL)): name}}
    return properties | {by: name}


def _mean(amount: Fraction, hours: Fraction) -> float:
    return rounded(amount / hours) if hours else 0.0


def _share(part: Fraction, total: Fraction) -> Fraction:
    return part / total if total else Fraction(0)


def _time(at: Millis) -> str:
    return datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
