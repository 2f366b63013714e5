"""The default policies, as the lists of stages that a policy file would hold (see docs/policies.md).

How they were chosen, and what else was tried, is in docs/decisions/0007-default-policy.md.
"""

from __future__ import annotations

from typing import Final

from protocol.smoothing.policy import Policy, parse_policy

DEFAULT_CPU_STAGES: Final[tuple[dict[str, object], ...]] = (
    {"sustain": {"over": 2.4}},
    {"histogram": {"percentile": 0.76, "margin": 1.0, "halfLife": "30m", "use": "floor"}},
    {"surge": {"factor": 1.2, "window": 34}},
    {"hold": {"window": 95, "keep": 0.67}},
    {"hold": {"window": 20, "keep": 0.93}},
    {
        "quantize": {
            "segments": [{"every": 0.25}, {"at": 1.5, "every": 0.5}, {"at": 3, "every": 1}, {"at": 6, "every": 2}]
        }
    },
    {"hysteresis": {"ratio": 0.17}},
)
"""CPU in vCPUs."""

DEFAULT_MEMORY_STAGES: Final[tuple[dict[str, object], ...]] = (
    {"hold": {"window": "5m"}},
    {"hysteresis": {"ratio": 0.1}},
)
"""Memory in bytes: what is needed at once, and back only after five minutes without a greater need."""

DEFAULT_CPU: Final[Policy] = parse_policy(DEFAULT_CPU_STAGES, "cpu")
"""The policy for CPU where none is configured."""

DEFAULT_MEMORY: Final[Policy] = parse_policy(DEFAULT_MEMORY_STAGES, "memory")
"""The policy for memory where none is configured."""
