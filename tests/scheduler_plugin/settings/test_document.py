"""Settings are taken whole or refused with the path of every bad field (S4.6, S4.8)."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from protocol.ranking.config import RankingConfig, ScoreCurve
from protocol.runtime.followed_file import SettingsError
from protocol.units import Bytes, ComputeUnit, MilliCpu, Seconds
from scheduler_plugin.ledger.facts import NodePolicy, ResourcePolicy
from scheduler_plugin.ledger.wake_reserve import WakeReserve
from scheduler_plugin.planner.plan import MigrationPolicy
from scheduler_plugin.planner.victims import MoveDelays
from scheduler_plugin.settings.document import parse_settings

DEPLOYED = Path(__file__).parents[3] / "deploy/scheduler-deploy.yaml"
GIB = 1024**3

BASE = """
schedulerName: autoscale-scheduler
nodeDefaults:
  computeUnit: {vCPUs: "250m", mem: "1Gi"}
  cpu:    {watermark: 0.9, system: "500m"}
  memory: {watermark: 0.7, system: "1Gi"}
"""
POLICY = NodePolicy(
    ComputeUnit(MilliCpu(250), Bytes(GIB)),
    ResourcePolicy(Fraction(9, 10), MilliCpu(500)),
    ResourcePolicy(Fraction(7, 10), Bytes(GIB)),
)


def problems(text: str) -> list[str]:
    with pytest.raises(SettingsError) as refused:
        parse_settings(text)
    return refused.value.problems


def test_defaults_apply_to_every_node() -> None:
    settings = parse_settings(BASE)
    assert settings.policy_of("any") == POLICY
    assert (settings.scheduler_name, settings.node_agents) == ("autoscale-scheduler", frozenset())


def test_an_override_replaces_only_what_it_says() -> None:
    overrides = "nodeOverrides: [{nodes: [big], cpu: {watermark: 0.5}, computeUnit: {mem: 2Gi}}]"
    settings = parse_settings(BASE + overrides)
    unit = ComputeUnit(MilliCpu(250), Bytes(2 * GIB))
    assert settings.policy_of("big") == NodePolicy(unit, ResourcePolicy(Fraction(1, 2), MilliCpu(500)), POLICY.mem)
    assert settings.policy_of("small") == POLICY


def test_later_override_wins_per_field() -> None:
    overrides = (
        "nodeOverrides:\n- {nodes: [a], cpu: {watermark: 0.5, system: 1}}\n- {nodes: [a], cpu: {watermark: 0.6}}"
    )
    assert parse_settings(BASE + overrides).policy_of("a").cpu == ResourcePolicy(Fraction(3, 5), MilliCpu(1000))


@pytest.mark.parametrize(
    ("said", "most"), [("", 1), ("extender: {candidates: 5}", 5), ("extender: {candidates: all}", None)]
)
def test_filter_returns_best_node(said: str, most: int | None) -> None:
    assert parse_settings(BASE + said).candidates == most


@pytest.mark.parametrize("said", ["0", "1001", "true", "some", "2.5", "null"])
def test_candidates_setting_is_number_or_all(said: str) -> None:
    (problem,) = problems(BASE + f"extender: {{candidates: {said}}}")
    assert problem.startswith('extender.candidates: expected 1 to 1000, or "all", got ')


def test_empty_sections_are_ignored() -> None:
    assert parse_settings(BASE + "nodeOverrides:\nagents:\n") == parse_settings(BASE)


def test_shipped_manifest_settings_load() -> None:
    settings = parse_settings(DEPLOYED.read_text())
    assert settings.policy_of("n").compute_unit == ComputeUnit(MilliCpu(500), Bytes(GIB // 8))
    assert settings.node_agents == frozenset({"kube-system:autoscaling-agent"})


def test_every_problem_is_told_with_its_path() -> None:
    text = """
nodeDefaults:
  computeUnit: {vCPUs: 0, mem: abc}
  cpu: {watermark: 2, system: -1, watermak: 0.9}
nodeOverrides: [{nodes: [], memory: {watermark: "x"}}]
agents: {nodeAgents: [no-namespace]}
schedulername: typo
"""
    assert problems(text) == [
        "nodeDefaults.computeUnit.vCPUs: expected more than zero",
        'nodeDefaults.computeUnit.mem: expected a quantity such as 2, "250m" or "1Gi", got \'abc\'',
        "nodeDefaults.cpu.watermark: expected a fraction above 0 and at most 1, got 2",
        "nodeDefaults.cpu.system: expected a quantity of zero or more, got -1",
        "nodeDefaults.cpu.watermak: unknown setting",
        "nodeOverrides[0].nodes: expected at least one",
        "nodeOverrides[0].memory.watermark: expected a fraction above 0 and at most 1, got 'x'",
        "agents.nodeAgents[0]: String should match pattern '^[a-z0-9.-]+:[a-z0-9.-]+$'",
        "schedulername: unknown setting",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected settings with nodeDefaults, got None"),
        ("[]", "expected settings with nodeDefaults, got []"),
        ("{}", "nodeDefaults: expected a value, the field is missing"),
        ("nodeDefaults: 3", "nodeDefaults: expected a mapping"),
        ("kind: ConfigMap\ndata: {other: x}", "nodeDefaults: expected a value, the field is missing"),
        ("a: 1\n---\nb: 2", "expected settings with nodeDefaults, got None"),
    ],
)
def test_what_is_no_settings_at_all_is_refused(text: str, said: str) -> None:
    assert problems(text)[0] == said


def test_what_nodes_cost_and_how_they_are_scored() -> None:
    assert parse_settings(BASE).ranking == parse_settings(BASE + "ranking:").ranking == RankingConfig()
    text = "ranking: {nodePrices: {m5.xlarge: 0.192}, score: {peak: 0.9}}"
    expected = RankingConfig(node_prices={"m5.xlarge": 0.192}, score=ScoreCurve(peak=0.9))
    assert parse_settings(BASE + text).ranking == expected


@pytest.mark.parametrize(
    ("ranking", "problem"),
    [
        ("{prices: {cpu: dear}}", "ranking.prices.cpu: expected float, got str"),
        ("{nodePrices: {m5.xlarge: -1}}", "ranking: expected nodePrices from 0 to 1e12"),
        ("{prise: {}}", "ranking: object contains unknown field prise"),
        ("[]", "ranking: expected object, got array"),
    ],
)
def test_a_bad_ranking_is_refused_with_its_path(ranking: str, problem: str) -> None:
    assert problems(f"{BASE}ranking: {ranking}") == [problem]


def test_what_is_no_yaml_is_refused() -> None:
    assert problems("a: [")[0].startswith("invalid YAML: ")


def test_reserve_for_waking_is_set_by_node() -> None:
    text = (
        BASE + "nodeOverrides: [{nodes: [big], wakeReserve: {sleepers: 0}}, {nodes: [big], wakeReserve: {share: 0.5}}]"
    )
    settings = parse_settings(text)
    assert settings.policy_of("any").wake_reserve == WakeReserve(1, Fraction(1, 4))
    assert settings.policy_of("big").wake_reserve == WakeReserve(0, Fraction(1, 2))


@pytest.mark.parametrize("sleepers", ["-1", "1.5", "true", "1001"])
def test_reserve_for_waking_counts_sleepers(sleepers: str) -> None:
    text = BASE + f"nodeOverrides: [{{nodes: [big], wakeReserve: {{sleepers: {sleepers}}}}}]"
    assert problems(text)[0].startswith("nodeOverrides[0].wakeReserve.sleepers: ")


def test_wakes_at_once_is_set_by_node() -> None:
    text = BASE + "nodeOverrides: [{nodes: [big], wakesAtOnce: 40}, {nodes: [big, slow], cpu: {watermark: 0.5}}]"
    settings = parse_settings(text)
    assert [settings.policy_of(of).wakes_at_once for of in ("any", "big", "slow")] == [None, 40, None]


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "true", "10001"])
def test_number_that_wakes_at_once_is_positive(number: str) -> None:
    assert problems(BASE + f"nodeOverrides: [{{nodes: [big], wakesAtOnce: {number}}}]")[0].startswith(
        "nodeOverrides[0].wakesAtOnce: "
    )


@pytest.mark.parametrize("watermark", [".nan", ".inf", "0", "true", "-0.1", "1.01"])
def test_watermark_bounds(watermark: str) -> None:
    text = BASE.replace("0.9", watermark)
    assert problems(text)[0].startswith("nodeDefaults.cpu.watermark: expected a fraction above 0 and at most 1, got ")


def test_migration_settings_and_defaults() -> None:
    plain = parse_settings(BASE)
    assert (plain.migration, plain.migration_bandwidth) == (MigrationPolicy(), Bytes(GIB))
    assert parse_settings(BASE + "migration:").migration == MigrationPolicy()
    text = """
migration:
  enabled: false
  settleSeconds: 5
  settleDeniedSeconds: 1.5
  makeRoomToGrow: false
  cooldownSeconds: 60
  backoffSeconds: 30
  backoffMostSeconds: 600
  maxPerNode: {out: 2, in: 3}
  maxPerCluster: 20
  timeoutSeconds: 120
  maxBandwidth: 64Mi
  drainCordoned: false
"""
    share = parse_settings(BASE + text.replace("maxPerCluster: 20", "maxPerCluster: 15%"))
    assert share.migration.per_cluster == Fraction(15, 100)
    settings = parse_settings(BASE + text)
    expected = MigrationPolicy(
        enabled=False,
        settle=Seconds(5),
        settle_denied=Seconds(1.5),
        makes_room_to_grow=False,
        delays=MoveDelays(Seconds(60), Seconds(30), Seconds(600)),
        out_per_node=2,
        in_per_node=3,
        per_cluster=20,
        timeout=Seconds(120),
        drain_cordoned=False,
    )
    assert (settings.migration, settings.migration_bandwidth) == (expected, Bytes(64 * 1024**2))


@pytest.mark.parametrize(
    ("migration", "problem"),
    [
        ("{enabld: true}", "migration.enabld: unknown setting"),
        ("{settleSeconds: -1}", "migration.settleSeconds: Input should be greater than or equal to 0"),
        ("{maxPerNode: {into: 2}}", "migration.maxPerNode.into: unknown setting"),
        ("{maxPerNode: {in: 0}}", "migration.maxPerNode.in: Input should be greater than or equal to 1"),
        (
            "{maxPerCluster: 0}",
            'migration.maxPerCluster: expected 1 to 1000, or a percentage of all nodes like "20%", got 0',
        ),
        (
            "{maxPerCluster: 101%}",
            "migration.maxPerCluster: expected 1 to 1000, or a percentage of all nodes like \"20%\", got '101%'",
        ),
        ("{timeoutSeconds: 0}", "migration.timeoutSeconds: Input should be greater than or equal to 1"),
        ("{maxBandwidth: 0}", "migration.maxBandwidth: expected more than zero"),
        (
            "{backoffSeconds: 60, backoffMostSeconds: 30}",
            "migration.backoffMostSeconds: expected at least backoffSeconds (60), got 30",
        ),
    ],
)
def test_bad_migration_settings_name_path(migration: str, problem: str) -> None:
    assert problems(f"{BASE}migration: {migration}") == [problem]


def test_the_deployed_settings_show_the_defaults_of_migrations() -> None:
    text = DEPLOYED.read_text()
    assert "    migration: " in text
    assert parse_settings(text).migration == MigrationPolicy()


def test_cpu_limits_follow_requests() -> None:
    assert not parse_settings(f"{BASE}permits: {{asPodRequests: true}}").limits_cpu
    assert parse_settings(f"{BASE}permits: {{asPodRequests: true, asCpuLimits: true}}").limits_cpu
    with pytest.raises(SettingsError, match="asCpuLimits: expected asPodRequests with it"):
        parse_settings(f"{BASE}permits: {{asCpuLimits: true}}")
