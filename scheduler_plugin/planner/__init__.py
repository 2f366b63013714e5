"""Who moves, where to, and when to stop: nodes that fill up shed VMs before anyone is denied (S4.8, S4.9). Pure."""

from scheduler_plugin.ledger import Move
from scheduler_plugin.planner.plan import Cancel, MigrationPolicy, Now, Plan, Stuck
from scheduler_plugin.planner.planner import Look, Planner, completed
from scheduler_plugin.planner.refused_targets import Refusal, RefusedTargets
from scheduler_plugin.planner.victims import Order, Rest, Victim, least_loaded_first, stays_because

__all__ = [
    "Cancel",
    "Look",
    "MigrationPolicy",
    "Move",
    "Now",
    "Order",
    "Plan",
    "Planner",
    "Refusal",
    "RefusedTargets",
    "Rest",
    "Stuck",
    "Victim",
    "completed",
    "least_loaded_first",
    "stays_because",
]
