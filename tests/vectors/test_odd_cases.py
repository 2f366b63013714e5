"""Cases at the edges of their form: keys left out, lists that are empty or longer than others, values out of range."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vectors.one_case import run

DELAY = {"current": 1000, "now": 700, "window_start": 0, "delay_s": 600}


@pytest.mark.parametrize(
    ("family", "group", "given", "expected"),
    [
        ("smoothing", "delay_scale_down_window", {**DELAY, "observations": [[0, 800], [650, 900]]}, ["down", 900]),
        ("smoothing", "delay_scale_down_window", {**DELAY, "observations": []}, ["hold", 1000]),
        ("smoothing", "percentile_smoothing", {"observations": [], "current": None}, ["insufficient", None]),
        ("smoothing", "percentile_smoothing", {"observations": [5], "current": None}, ["set", 5]),
        ("smoothing", "quantize_up", {"value": 16.003, "segments": [{"at": 0, "every": 4}]}, 20),
        ("smoothing", "quantize_up", {"value": 2**30 + 1, "step": 2**30}, 2**31),
        ("ranking", "pod_price", {"cpu": 0, "storage_gb": 75, "storage_price": 0.02}, 0.03),
        ("ranking", "pod_price", {"cpu": 0, "storage_gb": 50}, 0.01),
        ("hvpa", "hpa_resource_replicas", {"cur": 2, "levels": [600], "reqs": [1000] * 2, "target": 100}, [2, 60]),
        (
            "hvpa",
            "hpa_resource_replicas",
            {"cur": 4, "levels": [4000, 9500, 3000, 7000, 3200, 2000], "reqs": [1000] * 4, "target": 100},
            [24, 587],
        ),
        (
            "neon",
            "vm_cpu_mem_mapping",
            {"use_milli": 1250, "slot": 2**30, "slots": {"min": 1, "use": 3, "max": 8}},
            {
                "cpus_plugged": 2,
                "quota_milli": 1250,
                "virtio_mem_bytes": 2 * 2**30,
                "boot_bytes": 2**30,
                "max_bytes": 8 * 2**30,
            },
        ),
        ("neon", "vm_cpu_mem_mapping", {"slot": 2**23}, "accepted"),
        ("tortoise", "slot_count", {"range_hours": 1, "period": "monthly"}, "invalid"),
        ("tortoise", "slot_count", {"range_hours": 1.5, "period": "daily"}, "invalid"),
        ("tortoise", "slot_count", {"range_hours": 12, "period": "weekly"}, 14),
    ],
)
def test_odd_case_follows_its_rule(family: str, group: str, given: Any, expected: Any) -> None:
    outcome = run(family, group, given, expected)
    assert (outcome.failure, outcome.declined) == (None, None)


def test_original_runners_cgroup_is_declined() -> None:
    outcome = run("neon", "vm_cpu_mem_mapping", {"use_milli": 250}, {"plugged": 1, "cgroup_limit_milli": 1000})
    assert outcome.declined == (
        "four times the quota is the cgroup of the original's runner: our guests have one quota, inside"
    )


APPROVED = "never patch the VM below what the monitor approved"


@pytest.mark.parametrize(
    ("text", "declined"),
    [
        (APPROVED, None),
        ("no request within the retry wait (monitor 3 s); denied shrink 5 s", None),
        (
            f"{APPROVED}; without a monitor never shrink",
            "a VM without a monitor shrinks to what its metrics prove to be enough; with one this holds (B.8)",
        ),
        (
            "the monitor is asked for at most one CU less",
            "a monitor is asked for all that may go at once, and for half of what it refuses (B.8)",
        ),
    ],
)
def test_monitor_rules_are_checked_or_declined(text: str, declined: str | None) -> None:
    outcome = run("neon", "ordering_invariants", None, None, text)
    assert (outcome.failure, outcome.declined) == (None, declined)
