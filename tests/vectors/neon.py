"""The family neon: the original system's cases that our protocol, ledger and agent answer, and those they decline.

A table per area stands beside this file (``neon_wire``, ``neon_ledger``, ...) and is merged here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.vectors import neon_agent, neon_ledger, neon_placement, neon_service, neon_wire
from tests.vectors.registry import Answer, Check, Family

GROUPS: Final[Mapping[str, Check | Answer]] = {
    **neon_wire.GROUPS,
    **neon_ledger.GROUPS,
    **neon_placement.GROUPS,
    **neon_agent.GROUPS,
    **neon_service.GROUPS,
}

DECLINED: Final[Mapping[str, str]] = {
    "seed_agent_goal": "doubles and halves by load average: CPU need comes from utilisation and PSI here (S4.3)",
    "goal_cpu": "blends two load averages and rounds to nearest: CPU need comes from utilisation and PSI here (S4.3)",
    "working_set": "needs the original's postgres extension: memory in use and memory PSI speak for any guest (S4.3)",
    "desired_resources": "rounds CPU to nearest and shrinks at once: here CPU is rounded up and a window proves (S4.6)",
    "action_scenarios": "steps of the original's monitor handshake with fixed waits: ours back off with jitter (S4.5)",
    "vm_stuck": "counts health checks of the original's monitor: ours tells each trouble with its cause and since when",
    "startup_buffer_reserve": "a restart needs no buffer: permits are persisted before they are answered",
    "reserve_reconcile_final": "weighs pods by overcommit factors and forgets denials: these are pressure here (S4.8)",
    "migration_queue_seed": "only the VM that asks may be chosen to migrate: here every VM of the node may (S4.8)",
    "migration_selection_final": "takes the oldest VM first: the seed document says the least loaded first (S4.8)",
    "score_randomize": "kube-scheduler picks at random among equal scores; unequal ones stay as they are (S2.8b)",
    "billing_minimum": "bills from samples every 4 s: costs come from recorded sizes here (B.6)",
}

FAMILY: Final = Family("neon", groups=GROUPS, declined=DECLINED)
