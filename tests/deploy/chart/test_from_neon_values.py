"""The values in ``docs/from-neon.md`` are values of the chart, and take effect (B.11)."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import Any

import pytest

from agent.settings import AgentSettings, read_settings
from protocol.units import Bytes, ComputeUnit, MilliCpu
from protocol.versions import ProtocolVersion
from scheduler_plugin.ledger.facts import NodePolicy, ResourcePolicy
from scheduler_plugin.settings.document import parse_settings
from tests import plain_yaml
from tests.deploy.chart.test_values import SCHEMA, unknown
from tests.deploy.manifests import ROOT

ENFORCER, FIRST, AGENTS_FIRST = (
    plain_yaml.load(block)
    for block in re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/from-neon.md").read_text(), re.DOTALL)
)


@pytest.mark.parametrize("values", [FIRST, AGENTS_FIRST])
def test_the_chart_has_them(values: dict[str, Any]) -> None:
    assert unknown(SCHEMA, values) == []


def test_scheduler_admits_original_agents_and_moves_nothing() -> None:
    told = FIRST["scheduler"]["settings"] | {"nodeDefaults": {"computeUnit": {"vCPUs": "250m", "mem": "1Gi"}}}
    settings = parse_settings(json.dumps(told))
    assert settings.tokenless is not None
    assert (settings.tokenless.namespaces, settings.tokenless.labels) == (
        frozenset({"kube-system"}),
        {"name": "autoscaler-agent"},
    )
    assert settings.migration.opt_in
    assert FIRST["scheduler"]["podLabels"] == {"name": settings.scheduler_name}, "agents look for this label"


def test_original_scheduler_settings_keep_their_meaning() -> None:
    settings = parse_settings(json.dumps(ENFORCER))
    level = ResourcePolicy(Fraction(9, 10), MilliCpu(0))
    assert settings.defaults == NodePolicy(
        ComputeUnit.parse("250m", "1Gi"), level, ResourcePolicy(level.watermark, Bytes(0))
    )
    assert (settings.scheduler_name, settings.migration.opt_in) == ("autoscale-scheduler", True)
    curve = settings.ranking.score
    assert (curve.empty, curve.peak, curve.full) == (0.5, 0.8, 0.0)


def agent_settings(values: dict[str, Any]) -> AgentSettings:
    variables = {each["name"]: each["value"] for each in values["agent"]["node"].get("env", [])}
    return read_settings([], {"AGENT_MODE": "node", "NODE_NAME": "n1", **variables})


@pytest.mark.parametrize("values", [FIRST, AGENTS_FIRST])
def test_agents_speak_with_original_guest_monitors(values: dict[str, Any]) -> None:
    """Without that, a guest's database would keep a file cache for memory that its VM has no more."""
    assert agent_settings(values).monitor_url == "ws://{pod_ip}:10301/monitor"


def test_agent_speaks_original_schedulers_version() -> None:
    found = agent_settings(AGENTS_FIRST)
    assert (found.protocol, found.scheduler_token) == (ProtocolVersion.V5_0, None)
    assert not AGENTS_FIRST["scheduler"]["enabled"], "two schedulers would serve the same pods"
