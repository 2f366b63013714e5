"""The only entry to the scheduler's state: facts, requests and outcomes go in, decisions and effects come out.

Rules that hold here:

- One writer calls these methods, one at a time; each leaves the accounts consistent, so an effect that is never carried
  out only delays. Nothing here reads a clock: ``now`` is an argument and never goes back.
- Everything about the API may arrive late, twice or never. What matters is the newest fact, and nothing is freed twice.
- A process that begins to decide, after a start or a fail-over, does so with a new ``Ledger`` and fresh lists: one that
  only watched does not know what the one before it has answered.
"""

from __future__ import annotations

from scheduler_plugin.ledger.parts.agent_permits import AgentPermits
from scheduler_plugin.ledger.parts.cluster_facts import ClusterFacts
from scheduler_plugin.ledger.parts.migration_orders import MigrationOrders
from scheduler_plugin.ledger.parts.request_orders import RequestOrders
from scheduler_plugin.ledger.parts.scheduling import Scheduling
from scheduler_plugin.ledger.parts.views import LedgerViews


# One class of many parts: each caller sees its own verbs, and all share one state.
class Ledger(ClusterFacts, MigrationOrders, Scheduling, AgentPermits, RequestOrders, LedgerViews):
    """The ledger: reservations on every node, and every VM's permit."""
