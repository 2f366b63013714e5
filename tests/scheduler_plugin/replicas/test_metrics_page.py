"""Metrics that only the leader knows are only on the leader's page, also after a failover (B.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fake_clock import FakeClock
from tests.scheduler_plugin.fake_cluster import VMS
from tests.scheduler_plugin.migration.moving_cluster import full_cluster
from tests.scheduler_plugin.objects import vm
from tests.scheduler_plugin.replicas.pair import Process, Replicas, replicas
from tests.scheduler_plugin.running import following_settings

OF_EACH_REPLICA = {
    "build_info",
    "leading",
    "lease_held",
    "node_claims",
    "node_denied",
    "node_for_waking",
    "node_forced",
    "node_offered",
    "node_pressure_capacity",
    "node_pressure_excess",
    "node_pressure_logical",
    "node_promised",
    "node_reservable",
    "node_reserved",
    "node_watermark",
    "ready",
    "settings_generation",
    "settings_refused",
    "sleeping_vms",
    "takeover_seconds",
    "unreadable_objects",
    "waiting_pods",
    "waking_vms",
    "watch_age_seconds",
    "watch_missing",
}
"""Gauges that a standby tells of itself, or from the ledger that it keeps; a deposed leader goes on to do so."""

STUCK = {
    "scaled_vms heard": 0.0,
    "scaled_vms silent": 1.0,
    "unattended_wakes": 0.0,
    "migrations_active pending": 0.0,
    "migrations_active running": 0.0,
    "migrations_stalled": 0.0,
    "migrations_enabled": 1.0,
    "migration_stuck_nodes": 1.0,
    "unrelieved_denial_seconds": 0.0,
    "migration_refused_targets": 0.0,
    "pod_requests_followed": 1.0,
    "pod_requests_short": 0.0,
}


@pytest.fixture
async def pair() -> AsyncIterator[Replicas]:
    """Two replicas, over a node that has been above its watermark for long enough, and whose VM must stay."""
    clock, cluster = FakeClock(), full_cluster()
    stays = vm("db", 2, 8)
    stays["metadata"]["labels"]["autoscaling.neon.tech/auto-migration-enabled"] = "false"
    cluster.put(VMS, stays)
    async with replicas(cluster, clock, settings=following_settings()) as made:
        await clock.advance(150)
        yield made


async def gauges(process: Process) -> dict[str, float]:
    """Every gauge of the scheduler on the page, by its name and its labels' values."""
    page = (await process.client.get("http://probes/metrics")).text
    return {
        _written(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if family.type == "gauge" and sample.name.startswith("autoscale_") and not sample.name.endswith("_created")
    }


def _written(name: str, labels: dict[str, str]) -> str:
    return " ".join((name.removeprefix("autoscale_").removeprefix("scheduler_"), *labels.values()))


async def of_leader(process: Process) -> dict[str, float]:
    """Metrics of the page that a standby does not export."""
    return {name: value for name, value in (await gauges(process)).items() if name.split()[0] not in OF_EACH_REPLICA}


async def test_standby_exposes_no_leader_metrics(pair: Replicas) -> None:
    leader, standby = pair.running
    assert (await of_leader(leader), await of_leader(standby)) == (STUCK, {})


async def test_deposed_leader_metrics_stop(pair: Replicas) -> None:
    old, new = pair.running
    old.way.is_cut = True
    await pair.clock.advance(30)
    old.way.is_cut = False
    await pair.clock.advance(150)
    assert pair.leader is new
    assert (await of_leader(old), await of_leader(new)) == ({}, STUCK)


async def test_new_term_starts_clean(pair: Replicas) -> None:
    old, new = pair.running
    old.way.is_cut = True
    await pair.clock.advance(30)
    old.way.is_cut = False
    pair.cluster.put(VMS, vm("db", 2, 8))  # it may move now
    new.way.is_cut = True
    while not old.leads:
        await pair.clock.advance(0.1)
    assert await of_leader(old) == dict.fromkeys(STUCK, 0.0) | {"pod_requests_followed": 1.0, "scaled_vms silent": 1.0}
