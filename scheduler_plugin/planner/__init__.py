"""Planning of moves: nodes that fill up shed VMs before anyone is denied (S4.8, S4.9). Pure."""

from scheduler_plugin.ledger import Move
from scheduler_plugin.planner.beneficiaries import room_being_made, waiting_for_room
from scheduler_plugin.planner.cost import Freedom, HasPlace, Selection, cost_of, in_order, least_cost
from scheduler_plugin.planner.nearest import no_room
from scheduler_plugin.planner.plan import Cancel, MigrationPolicy, MovePlan, Stuck
from scheduler_plugin.planner.planner import Look, Planner, completed
from scheduler_plugin.planner.refused_orders import RefusedOrders
from scheduler_plugin.planner.refused_targets import RefusedTargets, TargetRefusal
from scheduler_plugin.planner.victims import Now, Rest, Victim, stays_because

__all__ = [
    "Cancel",
    "Freedom",
    "HasPlace",
    "Look",
    "MigrationPolicy",
    "Move",
    "MovePlan",
    "Now",
    "Planner",
    "RefusedOrders",
    "RefusedTargets",
    "Rest",
    "Selection",
    "Stuck",
    "TargetRefusal",
    "Victim",
    "completed",
    "cost_of",
    "in_order",
    "least_cost",
    "no_room",
    "room_being_made",
    "stays_because",
    "waiting_for_room",
]
