"""Attempts and the layer that rejects each: one table for tests on a real API server, quick tests, and the document.

A row whose ``refused_by`` is empty is what the identity is there for, and passes.
"""

from __future__ import annotations

from typing import Final

from tests.kubernetes.attacks.by_agents import BY_AGENTS
from tests.kubernetes.attacks.by_controller import BY_CONTROLLER
from tests.kubernetes.attacks.by_dashboard import BY_DASHBOARD
from tests.kubernetes.attacks.by_groups import BY_GROUPS
from tests.kubernetes.attacks.by_injector import BY_INJECTOR
from tests.kubernetes.attacks.by_others import BY_OTHERS
from tests.kubernetes.attacks.by_scheduler import BY_SCHEDULER

ATTEMPTS: Final = (*BY_AGENTS, *BY_SCHEDULER, *BY_GROUPS, *BY_CONTROLLER, *BY_INJECTOR, *BY_DASHBOARD, *BY_OTHERS)
"""In the order in which they are made: what passes changes the cluster for what follows."""
