"""Other cases of the same form are understood: by their keys and phrases, not by the given files' numbers and texts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vectors.one_case import run

CURVE = {"base_m": 100, "slope_m": 10, "segments": [{"at": 0, "every": 1}, {"at": 16, "every": 4}]}
OPTION = {"cpu": 2, "count": 1, "pods": ["p1"]}
FULL = {"total": 10, "reserved": 9, "pressure": 0}
EXAMPLE = [{"w": 100, "s": 1, "l": 1}, {"w": 60, "s": 2, "l": 4}, {"w": 0, "s": 5, "l": 10}]
BOTH = {"recommended_over_limit": False, "x": 3, "y": 200, "preference": "hpa"}
TABLE = {"hpa_desired": 3, "scaling_limited": True, "vpa_mem_M": 250, "vpa_cpu_m": 350, "weight": 90}
REQUESTS_ONLY = {
    **TABLE,
    "replicas": 3,
    "request_mem_M": 500,
    "limit_mem_M": 600,
    "request_cpu_m": 0,
    "vpa_mem_M": 800,
    "vpa_cpu_m": 500,
    "controlled_values": "RequestsOnly",
}
EMPTY_BUFFER = {"reserved": 3, "pressure": 0, "accounted": 0}


def options(*groups: str, **given: Any) -> dict[str, Any]:
    return {
        "options": dict.fromkeys(groups, OPTION),
        "preferred_cpu": 2,
        "pod_prices": {"p1": 0.04},
        "node_prices": dict.fromkeys(groups, 0.08),
        **given,
    }


@pytest.mark.parametrize(
    ("family", "group", "given", "expected"),
    [
        (
            "smoothing",
            "hysteresis_offset",
            {"current_m": 300, "input": 15, "offset": 2, **CURVE},
            {"target": 250, "threshold": 300, "action": "hold", "new": 300},
        ),
        (
            "smoothing",
            "hysteresis_offset",
            {"current_m": 301, "input": 15, "offset": 2, **CURVE},
            {"target": 250, "threshold": 300, "action": "down", "new": 250},
        ),
        (
            "smoothing",
            "hysteresis_offset",
            {"current_m": None, "input": 15, "offset": 2, "base_m": 0, "slope_m": 10, "max_m": 120},
            {"target": 120, "threshold": 120, "action": "set", "new": 120},
        ),
        ("smoothing", "linear", {"base": 200, "slope": 10, "input": 50, "max": 400}, 400),
        ("smoothing", "segment_linear", {"input": 18, "per": 2, **CURVE}, {"rounded": 20, "milli": 200}),
        (
            "smoothing",
            "percentile_smoothing",
            {"observations": [5, 6, 7, 8], "current": 1, "target": 0.5, "min_observations": 5},
            ["insufficient", 1],
        ),
        ("smoothing", "percentile_smoothing", {"observations": [5, 6, 7, 8], "current": 1, "target": 0.5}, ["up", 7]),
        ("smoothing", "quantize_up", {"value": 17, "segments": [{"at": 16, "every": 4}]}, 20),
        (
            "smoothing",
            "delay_scale_down_window",
            {
                "current": 1000,
                "now": 1000,
                "window_start": 0,
                "observations": [[0, 800], [700, 900]],
                "delay_s": 600,
                "last_scale_down": 399,
            },
            ["down", 900],
        ),
        (
            "ranking",
            "rank_options",
            options("plain", "gpu", options={"plain": OPTION, "gpu": {**OPTION, "gpu": 1}}),
            {"winner": "plain", "scores": {"plain": 1.6807595, "gpu": 1680.75954}},
        ),
        (
            "ranking",
            "rank_options",
            options("a", "b", node_prices={"a": 0.08}),
            {"winner": "a", "scores": {"a": 1.6807595}},
        ),
        ("ranking", "rank_options", options("a", pod_prices={}), {"winner": None, "scores": {}}),
        ("ranking", "pod_price", {"cpu": 1, "mem_gib": 0, "gpu": 2, "gpu_price": 0.5, "cpu_price": 1}, 2.0),
        (
            "neon",
            "seed_plugin_request",
            {"node": {**FULL, "system": 2, "pressure": 3}, "pod": {"reserved": 2, "pressure": 1}, "requested": 2},
            {
                "permit": 2,
                "pod": {"reserved": 2, "pressure": 0},
                "node": {"reserved": 9, "pressure": 2, "total": 10, "system": 2},
            },
        ),
        (
            "neon",
            "agent_request_2024",
            {
                "node": {**FULL, "total": 13},
                "pod": {"reserved": 2, "pressure": 0},
                "requested": 6,
                "last_permit": 2,
                "factor": 2,
            },
            {"permit": 6, "pod": {"reserved": 6, "pressure": 0}, "node": {"reserved": 13, "pressure": 0, "total": 13}},
        ),
        (
            "neon",
            "wire_quantities",
            "999999999999999999999Gi",
            "error",
        ),
        ("hvpa", "vpa_weight_percent", {"intervals": EXAMPLE, "current": 1, "desired": 2, "max": 10}, 60),
        ("hvpa", "vpa_weight_percent", {"intervals": [{"w": 30, "l": 2}], "current": 9, "desired": 9, "max": 10}, 30),
        ("hvpa", "vpa_weight_percent", {"intervals": [], "current": 2, "desired": 2, "max": 10}, 0),
        ("hvpa", "effective_vpa_weight_percent", {"intervals": EXAMPLE, "current": 10, "max": 10, "vpa": "up"}, 100),
        ("hvpa", "effective_vpa_weight_percent", {"intervals": EXAMPLE, "current": 3, "max": 10, "vpa": "up"}, 60),
        ("hvpa", "weighted_request", {"current": 101, "target": 200, "vpa_weight": 0.5}, 150.5),
        ("hvpa", "min_change_threshold", {"current": 50, "value": None, "percentage": 10, "default": 200}, 5),
        ("hvpa", "scaled_limit", {"original_limit": 900, "original_request": 300, "weighted_request": 200}, 600),
        ("hvpa", "maintenance_window_contains", {"begin": [22, 30], "end": [5], "time": [5, 0, 0]}, True),
        ("hvpa", "maintenance_window_parse", {"value": "053000-0600"}, "11:30:00 UTC"),
        ("hvpa", "maintenance_window_parse", {"value": "25:00"}, "error"),
        (
            "hvpa",
            "mode_choice",
            {"mode": "HpaPreferred", "current": 1, "max": 9, "hpa_desired": 0, "vpa": "down"},
            "vpa-down",
        ),
        ("hvpa", "mode_choice", {"mode": "VpaBiased", "current": 1, "max": 9, "hpa_desired": 1, "vpa": None}, "none"),
        ("hvpa", "mode_mixed", {**BOTH, "delta_replicas": -4, "delta_request": -201}, "hpa"),
        ("hvpa", "mode_mixed", {**BOTH, "delta_replicas": 0, "delta_request": 0}, "none"),
        ("hvpa", "stabilization_allows_up", {"last": 0, "now": 10, "delay": 120, "oom": False}, False),
        ("hvpa", "stabilization_allows_up", {"last": 0, "now": 119.5, "delay": 120}, False),
        (
            "hvpa",
            "scale_down_boundary_total_cpu",
            {"replicas": 3, "previous_interval_max": 2, "overlap_percent": 30},
            1.4,
        ),
        ("hvpa", "hpa_resource_replicas", {"cur": 2, "levels": [], "reqs": [1000], "target": 50, "missing": 1}, None),
        ("hvpa", "upstream_table", TABLE, {"desired": 3, "blocked": ["MinChange"], "resource_change": False}),
        (
            "hvpa",
            "upstream_table",
            {**TABLE, "mode": "Off"},
            {
                "desired": 2,
                "blocked": ["UpdatePolicy"],
                "resource_change": False,
                "scaling_off": True,
                "scale_out_limited": True,
            },
        ),
        (
            "hvpa",
            "upstream_table",
            {**REQUESTS_ONLY, "weight": 100},
            {
                "desired": 3,
                "mem_request_M": 600,
                "mem_limit_M": 600,
                "cpu_request_m": 500,
                "blocked": [],
                "resource_change": True,
            },
        ),
        ("neon", "version_range", {"a": [1, 2], "b": [3, 5]}, None),
        (
            "neon",
            "node_score",
            {
                "min_usage_score": 0.2,
                "max_usage_score": 0.1,
                "peak": 0.5,
                "cpu_with_pod": {"reserved": 5, "total": 10, "max_seen": 10},
                "mem_with_pod": {"reserved": 10, "total": 10, "max_seen": 10},
            },
            {"score": 10, "mem_fraction": 0.1, "cpu_fraction": 1.0, "over_budget": False},
        ),
        ("tortoise", "slot_count", {"range_hours": 12, "period": "weekly"}, 14),
        (
            "tortoise",
            "slot_for_time",
            {"utc": "2026-03-29T01:30:00Z", "time_zone": "Europe/Berlin", "range_hours": 3, "period": "daily"},
            {"from": 3, "to": 6},
        ),
        (
            "tortoise",
            "min_max_replicas",
            {
                "replicas": 4,
                "old_min": 9,
                "old_max": 40,
                "hours_since_slot_update": 23,
                "minimum_min": 2,
                "min_multiplier": 0.25,
                "max_multiplier": 3,
                "decay": 0.9,
            },
            {"min": 8, "max": 36},
        ),
        (
            "tortoise",
            "min_max_replicas",
            {"slots": [[0, 12], [12, 24]], "hour": 12, "weekday": "Monday"},
            {"from": 12, "to": 24},
        ),
        ("tortoise", "target_utilization", {"replicas": 9, "maximum_max_replicas": 10}, "change"),
        ("tortoise", "target_step_limit", {"current": 80, "recommended": 70, "max_increase": 5}, 70),
        ("tortoise", "replica_caps", {"recommended_max": 500, "cluster_max": 200}, 200),
        (
            "tortoise",
            "replica_caps",
            {"recommended_min": 9, "recommended_max": 50, "cluster_max_min": 5, "cluster_max": 40},
            {"min": 5, "max": 40},
        ),
        ("tortoise", "container_size", {"policy": "Horizontal", "rec": 70, "req": 90.5, "replicas": 3, "mn": 50}, 70),
        (
            "tortoise",
            "phase",
            {"phase": "Working", "mode": "Auto", "has_horizontal": True, "hpa_metrics_failed_s": 60, "grace_s": 60},
            "Emergency",
        ),
    ],
)
def test_case_depends_on_its_input(family: str, group: str, given: Any, expected: Any) -> None:
    outcome = run(family, group, given, expected)
    assert (outcome.failure, outcome.declined) == (None, None)


def test_deletion_keeps_room_given_back() -> None:
    given = {
        "node": {"reserved": 9, "pressure": 0, "accounted": 5},
        "pod": {"reserved": 3, "pressure": 0},
        "migrating": True,
    }
    expected = {"node": {"reserved": 6, "pressure": 0, "accounted": 2}}
    outcome = run("neon", "migration_accounting_2023", given, expected, op="delete")
    assert (outcome.failure, outcome.declined) == (None, None)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("protocol version too old", 400),
        ("the body is not JSON", 400),
        ("GET instead of POST", 405),
        ("zero in the compute unit", 400),
        ("nil metrics before v1.1", 400),
        ("fractional CPU before v2.0", 400),
        ("no such pod", 404),
        ("pod without a VM", 400),
        ("no token at all", 401),
        ("the token of another pod", 403),
        ("unchanged resources during a migration", 200),
        ("an ordinary request", 200),
    ],
)
def test_request_is_recognized_by_phrases(text: str, status: int) -> None:
    assert run("neon", "http_status", None, status, text).failure is None


@pytest.mark.parametrize(
    "text",
    [
        "never patch beyond what the permit says",
        "an agent never asks for less than the VM uses",
        "the sum of permits stays below the total of a node",
        "a request at least every tick (5 s)",
        "the scheduler is asked again only after its retry wait (scheduler 2 s, VM API 5 s)",
    ],
)
def test_ordering_rule_is_recognized_by_phrases(text: str) -> None:
    outcome = run("neon", "ordering_invariants", None, None, text)
    assert (outcome.failure, outcome.declined) == (None, None)


def test_ordering_rule_with_other_numbers_fails() -> None:
    told = "no request within its retry wait after a failure (scheduler 4 s)"
    assert (
        run("neon", "ordering_invariants", None, None, told).failure
        == "expected None, got scheduler is asked again after 3 s"
    )


@pytest.mark.parametrize(
    ("group", "text", "failure"),
    [
        ("http_status", "the moon is full", "raised ValueError: no request for the text: the moon is full"),
        ("ordering_invariants", "all is well", "raised ValueError: no check for the text: all is well"),
    ],
)
def test_unknown_text_fails(group: str, text: str, failure: str) -> None:
    assert run("neon", group, None, None, text).failure == failure


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("all two report use 3, last permit 3", None, {"reserved": 6, "buffer": 0}),
        ("4 report use 1, last permit 1", {"total": 8}, {"reserved": 4, "buffer": 0}),
        ("no buffer", {"vms": [[2, 2], [3, 3]], "total": 6}, {"reserved": 5, "buffer": 0, "new_pods_admitted": True}),
    ],
)
def test_restart_is_recognized_by_counts(text: str, given: Any, expected: Any) -> None:
    outcome = run("neon", "restart_recovery", given, expected, text)
    assert (outcome.failure, outcome.declined) == (None, None)


@pytest.mark.parametrize(
    ("steps", "failure"),
    [
        (["filter(X,700)=ok", "bind(X)=ok", "filter(Y,301)=node rejected", "filter(Z,300)=ok"], None),
        (["bind(Q,n2): API conflict, pod.spec.nodeName==n2 -> ok; ==n1 -> error, move the reservation to it"], None),
        (["unbind(X)=ok"], "raised ValueError: no step: unbind(X)=ok"),
    ],
)
def test_bind_steps_run_as_written(steps: list[str], failure: str | None) -> None:
    assert run("neon", "extender_bind_proposal", {"free_cpu": 1000}, None, steps=steps).failure in (
        failure,
        "the case does not use input.free_cpu",
    )


def test_pod_seen_elsewhere_moves_its_reservation() -> None:
    steps = ["reserve(q,n1)", "pod_event(q,node=n2)"]
    expected = {"reserved_on": "n2", "reserved_once": True, "tentative": False}
    assert run("neon", "tentative_reserve", None, expected, steps=steps).failure is None


@pytest.mark.parametrize(
    ("family", "group", "given", "expected"),
    [
        ("smoothing", "segment_round", {"input": 11, "segments": [{"at": 0, "every": 10}, {"at": 12, "every": 1}]}, 20),
        ("smoothing", "quantize_up", {"value": 230, "base": 100}, 230),
        ("ranking", "preferred_memory_mib", {"cluster_nodes": 70}, 60000),
        ("hvpa", "upstream_table", {**TABLE, "scaling_limited": False}, {"blocked": ["UpdatePolicy"]}),
        ("tortoise", "phase", {"phase": "BackToNormal", "mode": "Emergency", "has_horizontal": True}, "BackToNormal"),
        ("tortoise", "phase", {"phase": "Emergency", "hpa_metrics_failed_s": 999, "grace_s": 300}, "BackToNormal"),
    ],
)
def test_original_only_rules_are_declined(family: str, group: str, given: Any, expected: Any) -> None:
    assert run(family, group, given, expected, semantics="upstream").declined
