"""Samples become spans, decisions and migrations."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.kubernetes.objects import Json, child
from protocol.messages import ObjectName
from scheduler_plugin.dashboard.explanation import database_explanation
from scheduler_plugin.history.core.decoding import (
    ClusterSample,
    node_price_keys,
    node_samples,
    read_explanation,
    vm_statuses,
)
from scheduler_plugin.history.core.history_log import EXPLANATION_MAX_AGE, HistoryLog
from scheduler_plugin.history.core.samples import (
    NODE_COLUMN_INDEX,
    DecisionRecord,
    MoveRecord,
    NodeRecord,
    Size,
    VmRecord,
    size_at,
)
from scheduler_plugin.history.core.spans import sample_span
from tests.scheduler_plugin.history.fleet_pictures import BEGAN, DB, account, look, node, pod, vm

GIB = 1024**2
FACTS = VmRecord(DB, "n1", "", Size(250, GIB), Size(8000, 16 * GIB), uid="db")
TWO = (2000, 4 * GIB, None, None, 2000, 4 * GIB, 2000, 4 * GIB, None, None)


def test_growth_is_two_spans_and_decision() -> None:
    log = HistoryLog(10_000)
    log.take(look(0, vm(), nodes=[node(pod())]), {})
    batch = log.take(look(10, vm(cpu="3", version="2"), nodes=[node(pod(cpu="3"))]), {})
    assert batch.vms == [(FACTS, sample_span(BEGAN, BEGAN + 10_000, TWO))]
    said = ("It permits 3 cpu, 4Gi.",)
    assert batch.decisions == [DecisionRecord(BEGAN + 10_000, DB, "scheduler", said, Size(3000, 4 * GIB))]
    log.take(look(20, vm(cpu="3", version="2"), nodes=[node(pod(cpu="3"))]), {})
    three = (3000, 4 * GIB, None, None, 3000, 4 * GIB, 3000, 4 * GIB, None, None)
    assert log.end().vms == [(FACTS, sample_span(BEGAN + 10_000, BEGAN + 20_000, three))]


def test_sleeper_has_nothing() -> None:
    """Its spec has the size that it wakes with; what is still reserved until its permit is lowered is billed."""
    log = HistoryLog(10_000)
    asleep = vm()
    asleep["status"] = {**child(asleep, "status"), "phase": "Asleep", "cpus": None, "memorySize": None}
    log.take(look(0, asleep, nodes=[node(pod(cpu="0", reserved={"cpu": "0", "mem": "0"}))]), {})
    log.take(look(10, asleep, nodes=[node(pod(cpu="0", reserved={"cpu": "0", "mem": "0"}))]), {})
    ((facts, span),) = log.end().vms
    assert (facts, span.peaks[:2]) == (msgspec.structs.replace(FACTS, asleep=True), (0, 0))


def test_what_the_scheduler_denies_is_said() -> None:
    log = HistoryLog(10_000)
    log.take(look(0, vm(), nodes=[node(pod())]), {})
    batch = log.take(look(10, vm(), nodes=[node(pod(denied="1", migrating=True))]), {})
    assert batch.decisions[0].sentences == ("It denies 1 cpu, 0.", "The VM is being migrated.")
    assert batch.decisions[0].denied
    batch = log.take(look(20, vm(), nodes=[node(pod())]), {})
    assert batch.decisions[0].sentences == ("It denies nothing more.", "The VM is not being migrated any more.")


def test_reservation_change_is_not_decision() -> None:
    log = HistoryLog(10_000)
    log.take(look(0, vm(), nodes=[node(pod())]), {})
    batch = log.take(look(10, vm(), nodes=[node(pod(reserved={"cpu": "3", "mem": "4Gi"}))]), {})
    assert batch.decisions == []
    asked = log.vms_to_query(look(20, vm("a"), vm()), 1)
    assert [each["metadata"]["name"] for each in asked if isinstance(each["metadata"], dict)] == ["db"]


def test_agent_account_expires() -> None:
    log = HistoryLog(10_000)
    batch = log.take(look(0, vm(), nodes=[node(pod())]), {DB: account()})
    assert batch.decisions == [
        DecisionRecord(BEGAN, DB, "agent", ("idle", "cpu needs 1: 0.50 busy"), Size(2000, 4 * GIB))
    ]
    later = EXPLANATION_MAX_AGE // 1000 + 10
    batch = log.take(look(10, vm(cpu="3", version="2"), nodes=[node(pod())]), {})
    assert batch.vms[0][1].sums[2:4] == (1000 * 10_000, 2 * GIB * 10_000)
    assert batch.vms[0][1].sums[8:] == (500 * 10_000, GIB * 10_000)
    log.take(look(later, vm(), nodes=None), {})
    batch = log.take(look(later + 10, vm(cpu="5", version="3"), nodes=None), {})
    assert batch.vms[0][1].known_times == (10_000, 10_000, *[0] * 8)


def test_decision_is_recorded_on_change() -> None:
    log = HistoryLog(10_000)
    told = [
        account("it needs 1.5"),
        account("it needs 1.7"),
        account("it shrinks"),
        {},
        account("x", denied={"by": "s"}),
    ]
    batches = [log.take(look(10 * at, vm()), {DB: each}) for at, each in enumerate(told)]
    assert [[each.sentences[0] for each in batch.decisions] for batch in batches] == [
        ["it needs 1.5"],
        [],
        ["it shrinks"],
        [],
        ["x"],
    ]
    assert batches[-1].decisions[0].denied


def test_what_cannot_be_read_is_left_out() -> None:
    log = HistoryLog(10_000)
    broken: Json = {"metadata": {"namespace": "default", "name": "odd"}, "spec": {"guest": "none"}}
    odd_pods: list[Json] = [{"vm": "default/db"}, {"reserved": {"cpu": "1", "mem": "1"}}]
    first = log.take(look(0, vm(), broken, nodes=[node(*odd_pods), {"name": "bare"}]), {})
    assert len(first) == 0
    assert [facts for facts, _ in node_samples(look(0, nodes=[node(*odd_pods), {}]))] == [NodeRecord("n1", "m5.large")]
    odd = read_explanation(0, {"metrics": {"cores_busy": -1, "mem_used": "much"}, "goal": {"cpu": "x"}})
    assert (odd.used_cpu, odd.used_mem, odd.need, odd.sentences, odd.decision_key[-1]) == (None, None, None, (), "")
    assert read_explanation(0, {"metrics": {"cores_busy": True}, "shrink_guard": "g", "because": "b"}).sentences == (
        "b",
        "Policy: g",
    )
    assert size_at({}, "nothing") is None
    assert vm_statuses(None) == {}


@pytest.mark.parametrize(("age", "need", "used"), [(299.0, Size(250, 1024), 250), (301.0, None, None)])
def test_old_metrics_are_not_recorded(age: float, need: Size | None, used: int | None) -> None:
    """An agent still answers while its guest hangs."""
    metrics = {"cores_busy": 0.25, "mem_used": "1Mi", "age_seconds": age}
    found = read_explanation(0, {"metrics": metrics, "goal": {"cpu": "250m", "mem": "1Mi"}})
    assert (found.need, found.used_cpu, found.used_mem) == (need, used, used and 1024)


def test_recorded_needs_are_rounded() -> None:
    """``explain --since`` says them as ``explain`` does, not in ten digits of bytes."""
    needs: list[Json] = [{"name": "memory used", "need": "1234567890", "because": "1.00 GiB in use"}]
    answer = account(parts=needs)
    assert read_explanation(0, answer).sentences == ("idle", "memory used needs 1177Mi: 1.00 GiB in use")
    assert "  - memory used needs 1177Mi: 1.00 GiB in use" in database_explanation(
        {"metadata": {"name": "db"}}, answer, None
    )


def test_labels_that_are_asked_for_are_kept() -> None:
    log = HistoryLog(10_000, ["team", "tier"])
    labelled = vm(labels={"team": "a", "other": "b", "autoscaling.neon.tech/group": "shop"})
    log.take(look(0, labelled), {})
    ((facts, _),) = [*log.take(look(10, labelled), {}).vms, *log.end().vms]
    assert (facts.labels, facts.group) == ((("team", "a"),), "shop")


def test_migrating_vm_reserves_on_both_nodes() -> None:
    coming = pod(permit=None)
    both = vm_statuses({"nodes": [node(pod()), node(coming, name="n2")]})["default/db"]
    assert (both.reserved, both.permit, both.migrating) == (Size(4000, 8 * GIB), Size(2000, 4 * GIB), True)


def test_node_sample_sums_its_vms() -> None:
    bare = {key: value for key, value in node(pod(), pod("b")).items() if key != "watermark"}
    amounts = (16000, 64 * GIB, 2000, 4 * GIB, 4000, 8 * GIB)
    facts = NodeRecord("n1", "m5.large")
    assert list(node_samples(look(0, nodes=[node(pod(), pod("b")), bare]))) == [
        (facts, (*amounts, 14000, 56 * GIB)),
        (facts, (*amounts, None, None)),
    ]
    log = HistoryLog(10_000)
    log.take(look(0, nodes=[node()]), {})
    batch = log.take(look(10, nodes=[node(reserved="3")]), {})
    at = NODE_COLUMN_INDEX["reserved_cpu"]
    assert [(facts.node, span.sums[at] / span.known_times[at]) for facts, span in batch.nodes] == [("n1", 2000.0)]
    assert node_price_keys([{"metadata": {"name": "n2"}}]) == {}


def migration(phase: str, **status: Any) -> Json:
    metadata = {"namespace": "default", "name": "m", "creationTimestamp": "2025-12-31T23:59:50Z"}
    annotations = {"autoscaling.neon.tech/reason": "n1 is full", "autoscaling.neon.tech/target-node": "n2"}
    return {
        "metadata": {**metadata, "annotations": annotations},
        "spec": {"vmName": "db"},
        "status": {"phase": phase, "sourceNode": "n1", **status},
    }


def test_a_migration_is_kept_until_it_has_ended() -> None:
    log = HistoryLog(10_000)
    seen = [migration("Running"), *[migration("Succeeded", targetNode="n3", info={"downtimeMs": 120})] * 2]
    batches = [log.take(look(10 * at, migrations=(each,)), {}) for at, each in enumerate(seen)]
    name = ObjectName("default", "m")
    began = BEGAN - 10_000
    assert [batch.moves for batch in batches] == [
        [MoveRecord(name, DB, "n1", "n2", "Running", began, BEGAN, "n1 is full")],
        [MoveRecord(name, DB, "n1", "n3", "Succeeded", began, BEGAN + 10_000, "n1 is full", 120)],
        [],
    ]


def test_late_recorder_knows_migration_end() -> None:
    ended = "2026-01-01T00:00:20Z"
    conditions = [
        {"type": "a", "lastTransitionTime": "2026-01-01T00:00:10Z"},
        {"type": "b", "lastTransitionTime": ended},
    ]
    late = HistoryLog(10_000).take(look(7200, migrations=(migration("Failed", conditions=conditions),)), {})
    early = HistoryLog(10_000).take(look(15, migrations=(migration("Failed", conditions=conditions),)), {})
    odd = [{"type": "a", "lastTransitionTime": "soon"}]
    unknown = HistoryLog(10_000).take(look(30, migrations=(migration("Failed", conditions=odd),)), {})
    assert [batch.moves[0].until - BEGAN for batch in (late, early, unknown)] == [20_000, 15_000, 30_000]


def test_no_migration_can_make_the_history_long() -> None:
    long = "x" * 1_000_000
    notes = {"autoscaling.neon.tech/reason": long, "autoscaling.neon.tech/target-node": long}
    each = {**migration(long), "spec": {"vmName": long}}
    each["metadata"] = {**child(each, "metadata"), "annotations": notes}
    placed = {**vm(), "status": {"node": long}}
    log = HistoryLog(10_000)
    batch = log.take(look(0, placed, migrations=(each,)), {})
    log.take(look(10, placed), {})
    assert len(msgspec.json.encode((batch.moves, log.end().vms))) < 3000


def test_recreated_migration_is_distinct() -> None:
    log, one = HistoryLog(10_000), migration("Succeeded")
    begun = {"uid": "other", "creationTimestamp": "2026-01-01T00:00:00Z"}
    other = {**one, "metadata": {**child(one, "metadata"), **begun}}
    log.take(look(0, migrations=(one,)), {})
    (move,) = log.take(look(10, migrations=(other,)), {}).moves
    assert (move.since, move.until) == (BEGAN, BEGAN + 10_000)


def test_clock_set_back_restarts() -> None:
    log = HistoryLog(10_000)
    log.take(look(1000, vm()), {DB: account()})
    log.rewind()
    log.take(look(0, vm()), {})
    assert [span for _, span in log.take(look(10, vm(cpu="3", version="2")), {}).vms] == [
        sample_span(BEGAN, BEGAN + 10_000, (2000, 4 * GIB, *[None] * 8))
    ]


def test_a_vm_that_is_gone_leaves_nothing_behind() -> None:
    log = HistoryLog(10_000)
    log.take(look(0, vm(), nodes=[node(pod())]), {DB: account()})
    log.take(look(10, vm(), nodes=[node(pod())]), {})
    assert len(log.take(look(60, nodes=[node()]), {}).vms) == 1
    assert not log._explanations
    assert not log._statuses


def test_agents_are_asked_in_turn() -> None:
    log = HistoryLog(10_000)
    fleet = [vm(name) for name in "abc"]
    turns = []
    for at in range(3):
        seen = look(10 * at, *fleet)
        turns.append(
            [each["metadata"]["name"] for each in log.vms_to_query(seen, 2) if isinstance(each["metadata"], dict)]
        )
    assert turns == [["a", "b"], ["c", "a"], ["b", "a"]]


@pytest.mark.parametrize("claimed", [10**400, -(10**400), float("inf"), float("nan"), 1e300], ids="abcde")
def test_hostile_numbers_do_not_stop_recorder(claimed: float) -> None:
    answer: Json = {
        "because": "idle",
        "metrics": {"cores_busy": claimed, "age_seconds": claimed, "cpu_stall": claimed},
        "denied": {"by": "scheduler", "since_seconds": claimed},
    }
    assert read_explanation(0, answer).used_cpu is None
    told = "\n".join(database_explanation({"metadata": {"namespace": "shop", "name": "db"}}, answer, None))
    assert "an unknown time ago: ? vCPU busy" in told


def test_node_keeps_the_price_keys_of_its_labels() -> None:
    seen = ClusterSample(BEGAN, (), {"nodes": [node()]}, {"n1": ("spot-pool", "m5/spot", "m5")})
    ((facts, _),) = node_samples(seen)
    assert facts == NodeRecord("n1", "m5", ("spot-pool", "m5/spot"))
    assert facts.price_keys == ("n1", "spot-pool", "m5/spot", "m5")
