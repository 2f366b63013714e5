"""The settings of the scheduler and of agents in a local cluster (pure)."""

from __future__ import annotations

from typing import Final

import yaml

from protocol.units import Seconds
from protocol.yaml_text import read_yaml

NODE_AGENT_NAMESPACE = "kube-system"
NODE_AGENT_ACCOUNT = "autoscaling-agent"
EXTENDER_TOKEN = "extender-token"  # noqa: S105 - the name of a file
"""The file, beside the scheduler's settings, with the token that the scheduling loop shows to the extender."""


MANY: Final = 200
"""With more simulated VMs than this on one machine, loads change more slowly and guests are polled less often."""


def agents_policy(vms: int) -> str:
    """The policy of agents that look after ``vms`` VMs on one machine; empty if the default applies."""
    if vms <= MANY:
        return ""
    # All agents together poll 200 times a second at most: one process answers for all guests, and agents that get no
    # answer in time reconnect, which costs that process more than an answer.
    scrape = vms / MANY
    # Figures count as stale only after three missed polls.
    timing = {"scrape": scrape, "stale": max(5.0, 3 * scrape)}
    return yaml.safe_dump({"timing": timing, "smoothing": {"maxGap": max(10.0, 3 * scrape)}})


def looks_at_guests(vms: int) -> Seconds:
    """The interval at which the kubelets look at each of this many guests.

    >>> looks_at_guests(5), looks_at_guests(2000)
    (2.0, 20.0)
    """
    return Seconds(2.0 * max(1.0, vms / MANY))


def scheduler_settings() -> str:
    """Settings of the scheduler for a new cluster. The file may be edited while the cluster runs."""
    return yaml.safe_dump(
        {
            # Small steps and a small reserve: guests here are small too.
            "nodeDefaults": {
                "computeUnit": {"vCPUs": "500m", "mem": "128Mi"},
                "cpu": {"watermark": 0.9, "system": "500m"},
                "memory": {"watermark": 0.9, "system": "512Mi"},
            },
            # Guests move soon, because people watch.
            "migration": {"settleSeconds": 3, "settleDeniedSeconds": 2, "cooldownSeconds": 60},
            "extender": {"tokenFile": EXTENDER_TOKEN},
            "agents": {"nodeAgents": [f"{NODE_AGENT_NAMESPACE}:{NODE_AGENT_ACCOUNT}"]},
        },
        sort_keys=False,
    )


def guarded_settings(settings: str) -> str:
    """Settings of an earlier version with the token that callers of the extender must show. Raises ``YamlError``."""
    parsed = read_yaml(settings)
    # The scheduler itself reports text that is not a mapping.
    if not isinstance(parsed, dict) or "extender" in parsed:
        return settings
    # Appended as text, so that the user's comments and order survive.
    return f"{settings.rstrip()}\nextender:\n  tokenFile: {EXTENDER_TOKEN}\n"
