"""Inputs of the page and the recorder: responses of programs that may lie, and objects that anyone may write."""

from __future__ import annotations

from typing import Final

import msgspec

from protocol.kubernetes.objects import Json, JsonObject, name_of
from protocol.kubernetes.pages import read_object
from scheduler_plugin.dashboard.core.reports import scheduler_reports, with_report
from scheduler_plugin.dashboard.core.rows import group_row, move_row, node_rows, status_row, vm_row
from scheduler_plugin.dashboard.explanation import database_explanation
from scheduler_plugin.history.core.decoding import ClusterSample
from scheduler_plugin.history.core.history_log import Batch, HistoryLog
from scheduler_plugin.history.core.samples import SECOND
from tests.fuzz import samples

_SIZE: Final = {"cpu": "2", "mem": "4Gi"}

ACCOUNT: Final[Json] = {
    "vm": "default/db",
    "because": "2 vCPU, because the load is 1.5",
    "parts": [{"name": "cpu", "need": "1500m", "because": "the load"}],
    "goal": _SIZE,
    "compute_unit": _SIZE,
    "permit": _SIZE,
    "size": {"ordered": _SIZE},
    "metrics": {"age_seconds": 1.5, "cores_busy": 0.5, "load1": 1.5, "mem_used": "1Gi", "cpu_stall": 0.01},
    "denied": {"by": "scheduler", "wanted": _SIZE, "granted": _SIZE, "since_seconds": 3.5, "times": 2},
    "troubles": [{"with": "the API", "since_seconds": 5, "reason": "it is away"}],
    "smoothing": [{"resource": "cpu", "stage": "hold", "before": "1", "after": "2", "reason": "held"}],
    "monitor": {"refused": "1Gi", "refused_because": "no", "right_reports": 3, "false_reports": 1},
}
_POD: Final = {"pod": "default/db-1", "vm": "default/db", "reserved": _SIZE, "denied": _SIZE, "permit": _SIZE}
_SUMS: Final = {"total": _SIZE, "reserved": _SIZE, "free": _SIZE, "watermark": _SIZE, "pressure": {"excess": _SIZE}}
NODES: Final[Json] = {"ready": True, "leader": "a", "nodes": [{"name": "n1", "open": True, "pods": [_POD], **_SUMS}]}


def account(body: bytes) -> object:
    """An agent's response at ``/explain``, shown to users and recorded."""
    found = read_object(body)
    return [*database_explanation(samples.whole_vm(), found, found)], _recorded([samples.whole_vm()], None, found)


def nodes(body: bytes) -> object:
    """The scheduler's answer at ``/nodes``."""
    found = read_object(body)
    said = scheduler_reports(found)
    rows = [
        status_row(found),
        *node_rows(found),
        *(with_report(vm_row(samples.whole_vm()), each) for each in said.values()),
    ]
    return msgspec.json.encode(rows), _recorded([samples.whole_vm()], found, None)


def rows(found: Json) -> object:
    """Any object as a row of the page, and in a history."""
    seen = [vm_row(found), move_row(found), group_row("Hvpa", found)]
    return msgspec.json.encode(seen), [*database_explanation(found, None, None)], _recorded([found], None, None)


def _recorded(vms: list[JsonObject], said: JsonObject | None, answer: JsonObject | None) -> Batch:
    log, batch = HistoryLog(10 * SECOND, ["team"]), Batch()
    for at in (SECOND, 11 * SECOND, 200 * SECOND):
        look = ClusterSample(at, vms, said, {}, vms)
        asked = log.vms_to_query(look, 10)
        batch = log.take(look, {} if answer is None else {name_of(vm): answer for vm in asked})
    return batch
