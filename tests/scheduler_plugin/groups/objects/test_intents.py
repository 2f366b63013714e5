"""A scaling in the status: what remains of it, what is outdated, and encoding and decoding."""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import Json
from protocol.units import Bytes, MilliCpu
from scheduler_plugin.groups.core.workload import ResourceList, SizedContainer, Workload, WorkloadDecision
from scheduler_plugin.groups.objects.writes import (
    Intent,
    IntentProgress,
    intent_of,
    progress,
    read_intent,
    write_intent,
)

AT = "2026-01-01T00:00:00Z"


def app(cpu: int | None, memory: int | None = None) -> SizedContainer:
    cores, size = None if cpu is None else MilliCpu(cpu), None if memory is None else Bytes(memory)
    return SizedContainer("app", ResourceList(cores, size))


def workload(replicas: int = 3, cpu: int = 500) -> Workload:
    return Workload(replicas, containers=(app(cpu, 7),))


BOTH = Intent(AT, (3, 5), (app(500),), (app(900),), {"minReplicas": 2})


def test_only_changes_become_intents() -> None:
    assert intent_of(WorkloadDecision(5, (app(900),)), workload(), AT, {"minReplicas": 2}) == BOTH
    assert intent_of(WorkloadDecision(3, (app(500),)), workload(), AT, {}) is None
    assert (
        intent_of(
            WorkloadDecision(containers=(SizedContainer("other", ResourceList(MilliCpu(1))),)), workload(), AT, {}
        )
        is None
    )
    assert intent_of(WorkloadDecision(), workload(), AT, {"metrics": []}) == Intent(AT, hpa={"metrics": []})


@pytest.mark.parametrize(
    ("now", "left"),
    [
        (workload(), IntentProgress(5, (app(900),))),
        (workload(5), IntentProgress(None, (app(900),))),
        (workload(3, 900), IntentProgress(5)),
        (workload(5, 900), IntentProgress()),
        (workload(4), IntentProgress(is_overtaken=True)),
        (workload(3, 700), IntentProgress(is_overtaken=True)),
        (Workload(3), IntentProgress(is_overtaken=True)),
    ],
)
def test_done_or_overtaken_intent_ends(now: Workload, left: IntentProgress) -> None:
    assert progress(BOTH, now) == left


@pytest.mark.parametrize("intent", [BOTH, Intent(AT, (1, 2)), Intent(AT, None, (app(None),), (app(1, 2),))])
def test_it_reads_as_it_was_written(intent: Intent) -> None:
    assert read_intent({"intent": write_intent(intent)}) == intent


@pytest.mark.parametrize(
    "status",
    [{}, {"intent": 7}, {"intent": {"containers": [{"to": {"resources": {"requests": {"cpu": "much"}}}}]}}],
)
def test_one_that_cannot_be_read_is_none(status: Json) -> None:
    assert read_intent(status) is None


def test_it_says_in_words_what_changes() -> None:
    assert str(BOTH) == "replicas 3 → 5; app: requests cpu 500m → 900m; HPA minReplicas 2"
    assert str(Intent(AT, None, (app(None),), (app(1000),))) == "app: requests cpu none → 1"
    assert str(Intent(AT, hpa={"metrics": []})) == "HPA metrics"
    assert (BOTH.grows, Intent(AT, None, (app(2),), (app(1),)).grows) == (True, False)
