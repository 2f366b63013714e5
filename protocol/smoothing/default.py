"""The default policies, in the format of a policy file (see docs/policies.md).

docs/decisions/0007-default-policy.md explains the choice, and the alternatives.
"""

from __future__ import annotations

from typing import Final

from protocol.smoothing.policy import SmoothingPolicy, parse_policy

CPU_SEGMENTS: Final[tuple[dict[str, str], ...]] = (
    {"at": "0", "every": "250m"},
    {"at": "1500m", "every": "500m"},
    {"at": "3", "every": "1"},
    {"at": "6", "every": "2"},
    {"at": "12", "every": "4"},
    {"at": "24", "every": "8"},
)
"""Steps of a quarter vCPU for small VMs, and of a sixth to a third of the size for larger ones."""

DEFAULT_CPU_STAGES: Final[tuple[dict[str, object], ...]] = (
    {"sustain": {"over": 2.25}},
    {"surge": {"factor": 1.2, "window": 5}},
    {"hold": {"window": 210, "keep": 0.5, "extra": "100m"}},
    {"hold": {"window": 20}},
    {"quantize": {"segments": CPU_SEGMENTS}},
    {"hysteresis": {"ratio": 0.3, "patience": "30m"}},
)
"""CPU in vCPUs."""

DEFAULT_MEMORY_STAGES: Final[tuple[dict[str, object], ...]] = (
    {"hold": {"window": "5m"}},
    {"hysteresis": {"ratio": 0.1, "patience": "30m"}},
)
"""Memory in bytes: grows immediately, and shrinks only after five minutes without a larger need."""

DEFAULT_CPU: Final[SmoothingPolicy] = parse_policy(DEFAULT_CPU_STAGES, "cpu")
"""The policy for CPU if none is configured."""

DEFAULT_MEMORY: Final[SmoothingPolicy] = parse_policy(DEFAULT_MEMORY_STAGES, "memory")
"""The policy for memory if none is configured."""
