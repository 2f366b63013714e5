"""Policies that were written for the original agent mean the same to ours (B.11)."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from agent.config import PolicyError, read_policy
from agent.core.policy import Policy

SHIPPED = """
{
  "refereshStateIntervalSeconds": 5,
  "scaling": {
    "computeUnit": { "vCPUs": 0.25, "mem": "1Gi" },
    "defaultConfig": {
      "loadAverageFractionTarget": 0.9,
      "memoryUsageFractionTarget": 0.75,
      "memoryTotalFractionTarget": 0.9,
      "enableLFCMetrics": false,
      "lfcUseLargestWindow": false,
      "lfcToMemoryRatio": 0.75,
      "lfcWindowSizeMinutes": 5,
      "lfcMinWaitBeforeDownscaleMinutes": 5,
      "cpuStableZoneRatio": 0,
      "cpuMixedZoneRatio": 0
    }
  },
  "metrics": { "system": { "port": 9100, "requestTimeoutSeconds": 2, "secondsBetweenRequests": 5 } },
  "scheduler": { "schedulerName": "autoscale-scheduler", "requestPort": 10299 },
  "dumpState": { "port": 10300, "timeoutSeconds": 5 }
}
"""
"""The part of the ``config.json`` of v0.49.1 that says something to an agent."""


def with_targets(cpu: float | None = None, memory: float | None = None) -> Policy:
    base = Policy()
    return replace(
        base,
        cpu=base.cpu if cpu is None else msgspec.structs.replace(base.cpu, target=cpu),
        memory=base.memory if memory is None else msgspec.structs.replace(base.memory, target=memory),
    )


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        (SHIPPED, with_targets(0.9, 0.75)),
        ('{"loadAverageFractionTarget": 0.7}', with_targets(cpu=0.7)),
        ('{"memoryUsageFractionTarget": 0.5, "enableLFCMetrics": true}', with_targets(memory=0.5)),
        ('{"loadAverageFractionTarget": 2}', with_targets(cpu=1.0)),
        ('{"cpuStableZoneRatio": 0.25, "cpuMixedZoneRatio": 0.25}', with_targets()),
    ],
)
def test_its_targets_are_ours(text: str, policy: Policy) -> None:
    assert read_policy(text, Policy()) == policy


@pytest.mark.parametrize(
    ("text", "policy", "told"),
    [
        (
            '{"loadAverageFractionTarget": 0, "memoryUsageFractionTarget": 0.5}',
            with_targets(memory=0.5),
            "loadAverageFractionTarget: ignored: expected a share above 0, got 0",
        ),
        (
            '{"loadAverageFractionTarget": 0.7, "memoryUsageFractionTarget": 0.0}',
            with_targets(cpu=0.7),
            "memoryUsageFractionTarget: ignored: expected a share above 0, got 0",
        ),
        (
            '{"loadAverageFractionTarget": 0.7, "speed": 3}',
            with_targets(cpu=0.7),
            "'speed': ignored: not a field of the original policy",
        ),
    ],
)
def test_unknown_settings_are_skipped_and_reported(text: str, policy: Policy, told: str) -> None:
    assert read_policy(text, Policy()) == replace(policy, ignored=(told,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"loadAverageFractionTarget": -1}', "cpu.target: "),
        ('{"memoryUsageFractionTarget": "much"}', "memory.target: "),
        ("loadAverageFractionTarget: .nan", "cpu.target: "),
        ('{"loadAverageFractionTarget": 0.7, "cpu": {"target": 0.5}}', "document: "),
        ('{"speed": 3}', "document: "),
        ('{"scaling": {"computeUnit": {}}}', "document: "),
    ],
)
def test_invalid_original_config_is_refused(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy(text, Policy())
    assert str(caught.value).startswith(message)
