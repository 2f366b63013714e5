"""Settings of the scheduler and the agents of a local cluster (pure)."""

from __future__ import annotations

from typing import Final

import yaml

from protocol.units import Seconds
from protocol.yaml_text import read_yaml

NODE_AGENT_NAMESPACE = "kube-system"
NODE_AGENT_ACCOUNT = "autoscaling-agent"
EXTENDER_TOKEN = "extender-token"  # noqa: S105 - the name of a file
"""Name of the file with the extender's bearer token, in the folder of the scheduler's settings."""

LARGE_FLEET: Final = 200
"""With more simulated VMs than this, loads change more slowly and guests are polled less often."""


def agents_policy(vms: int) -> str:
    """Policy of the agents of ``vms`` VMs on one machine; empty for the default policy."""
    if vms <= LARGE_FLEET:
        return ""
    # At most 200 scrapes per second in total: one process serves all guests, and a timed-out scrape costs it a
    # reconnect, which is more expensive than a response.
    scrape = vms / LARGE_FLEET
    # Metrics are stale after three missed scrapes.
    timing = {"scrape": scrape, "stale": max(5.0, 3 * scrape)}
    return yaml.safe_dump({"timing": timing, "smoothing": {"maxGap": max(10.0, 3 * scrape)}})


def guest_poll_interval(vms: int) -> Seconds:
    """Interval at which the kubelets poll each of ``vms`` guests, in seconds.

    >>> guest_poll_interval(5), guest_poll_interval(2000)
    (2.0, 20.0)
    """
    return Seconds(2.0 * max(1.0, vms / LARGE_FLEET))


def scheduler_settings() -> str:
    """Scheduler settings of a new cluster; the file can be edited while the cluster runs."""
    return yaml.safe_dump(
        {
            # Small steps and a small reserve, because guests are small too.
            "nodeDefaults": {
                "computeUnit": {"vCPUs": "500m", "mem": "128Mi"},
                "cpu": {"watermark": 0.9, "system": "500m"},
                "memory": {"watermark": 0.9, "system": "512Mi"},
            },
            # Short delays, for demonstrations.
            "migration": {"settleSeconds": 3, "settleDeniedSeconds": 2, "cooldownSeconds": 60},
            # Ignore how far VMs may grow: a demonstration of a full node needs neighbours on it.
            "ranking": {"score": {"growth": 0}},
            "extender": {"tokenFile": EXTENDER_TOKEN},
            "agents": {"nodeAgents": [f"{NODE_AGENT_NAMESPACE}:{NODE_AGENT_ACCOUNT}"]},
        },
        sort_keys=False,
    )


def with_extender_token(settings: str) -> str:
    """``settings``, perhaps from an earlier version, with the extender's token. Raises ``YamlError``."""
    parsed = read_yaml(settings)
    # The scheduler reports YAML that is not a mapping.
    if not isinstance(parsed, dict) or "extender" in parsed:
        return settings
    # Appended as text, to keep the user's comments.
    return f"{settings.rstrip()}\nextender:\n  tokenFile: {EXTENDER_TOKEN}\n"
