"""The pure heart of the scheduler: who has reserved what, and what each VM may use (S4.5-S4.8, S4.10).

State: ``facts``, ``accounts``, ``moves``, ``state``. Rules over it: ``permit_rule``, ``believed``, ``binding``,
``migration_reservations``, ``request_orders``, ``listing``. The door: ``events``, ``outcomes``, ``ledger``.
"""

from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.accounts.node_account import Pressure
from scheduler_plugin.ledger.explain import ClaimExplanation
from scheduler_plugin.ledger.facts import (
    MigrationFacts,
    MigrationPhase,
    NodeFacts,
    NodePolicy,
    PodFacts,
    ResourcePolicy,
    RunnerRequests,
    VmFacts,
)
from scheduler_plugin.ledger.invariants import VmTruth, World, overcommitted, violations, violations_on
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.moves import Creation, Migration, Move, MoveCause
from scheduler_plugin.ledger.outcomes import (
    CreateMigration,
    Effect,
    Effects,
    LedgerError,
    MoveReservation,
    NotReadyError,
    OtherAgentError,
    PermitDecision,
    PersistPermit,
    ReadMigration,
    ReadPod,
    RequestsSeen,
    Reservation,
    ResizeDecision,
    ResizePod,
    RoomFreed,
    UnknownPodError,
)

__all__ = [
    "ClaimExplanation",
    "ClaimState",
    "CreateMigration",
    "Creation",
    "Effect",
    "Effects",
    "Ledger",
    "LedgerError",
    "Migration",
    "MigrationFacts",
    "MigrationPhase",
    "Move",
    "MoveCause",
    "MoveReservation",
    "NodeFacts",
    "NodePolicy",
    "NotReadyError",
    "OtherAgentError",
    "PermitDecision",
    "PersistPermit",
    "PodFacts",
    "Pressure",
    "ReadMigration",
    "ReadPod",
    "RequestsSeen",
    "Reservation",
    "ResizeDecision",
    "ResizePod",
    "ResourcePolicy",
    "RoomFreed",
    "RunnerRequests",
    "UnknownPodError",
    "VmFacts",
    "VmTruth",
    "World",
    "overcommitted",
    "violations",
    "violations_on",
]
