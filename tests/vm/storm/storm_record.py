"""A storm of sleeps: the random sequence of actions, and the record of their outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

from protocol.kubernetes.objects import Json, flag, items, text
from protocol.units import Resources


class StormAction(StrEnum):
    """One action on a VM; the value is for people."""

    IDLE_SESSION = "asleep, idle session asks"
    NEW_SESSION = "asleep, new session asks"
    ORDER_REMOVED = "asleep, order removed"
    MIGRATION_ASLEEP = "asleep, migration"
    AT_ONCE = "asleep, all of these at once"
    MIGRATION = "migration"
    ORDER_MOVING = "migration, then order to sleep"
    KILL = "QEMU killed"
    KILL_ORDERED = "order to sleep, then QEMU killed"
    KILL_MOVING = "migration, then QEMU killed"


# Kills are rare: afterwards the VM boots for a minute.
_WEIGHTS: Final = {action: 1 if action.name.startswith("KILL") else 6 for action in StormAction}


@dataclass(frozen=True, slots=True)
class StormStep:
    """An action after ``pause`` seconds; its second part starts ``moment`` seconds after the first.

    ``quiet``: the VM's clients are paused during the action.
    """

    action: StormAction
    pause: float
    moment: float
    quiet: bool


def steps(seed: str) -> Iterator[StormStep]:
    """An endless sequence of actions on one VM, determined by ``seed``."""
    draw = Random(seed)
    while True:
        (action,) = draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        yield StormStep(action, draw.uniform(0.0, 5.0), draw.uniform(0.0, 5.0), draw.random() < 0.8)


@dataclass(slots=True)
class StormRecord:
    """The storm as seen by the clients of one VM, which is booting at first.

    Rows 1 to ``rows`` were sent, ``confirmed`` are those that were committed. Failures explained by a kill or the first
    boot are ``excused``, all others ``faults``. ``ends`` are the actions, their seconds, and if they succeeded.
    """

    vm: str
    rows: int = 0
    confirmed: set[int] = field(default_factory=set)
    kills: int = 0
    is_down: bool = True
    excused: int = 0
    faults: list[str] = field(default_factory=list)
    ends: list[tuple[StormAction, float, bool]] = field(default_factory=list)

    def killed(self) -> None:
        """Record a kill: sessions may fail until the first new session is open."""
        self.kills += 1
        self.is_down = True

    def opened(self, kills: int) -> None:
        """Record an open session; ``kills`` is the number of kills when it started to open."""
        self.is_down = self.is_down and kills < self.kills

    def failed(self, what: str, kills: int) -> None:
        """Record a failure; it is excused if there were more kills than ``kills``."""
        if self.kills > kills:
            self.excused += 1
        else:
            self.faults.append(what)

    def judge_rows(self, counts: Mapping[int, int]) -> None:
        """Check the ``counts`` of each row at the end. Rows that were sent but not confirmed may be missing."""
        wrong = {
            "confirmed rows are lost": self.confirmed - counts.keys(),
            "rows are duplicated": {row for row, count in counts.items() if count > 1},
            "rows were never sent": {row for row in counts if not 0 < row <= self.rows},
        }
        self.faults += [f"{len(rows)} {what}, such as {min(rows)}" for what, rows in wrong.items() if rows]


def overbooked(nodes: Json) -> set[str]:
    """Over-committed nodes in the scheduler's ``/nodes``."""
    over = set()
    for node in items(nodes, "nodes"):
        total, reserved = (
            Resources.parse(text(node, part, "cpu"), text(node, part, "mem")) for part in ("total", "reserved")
        )
        # The total of an unknown node is zero.
        if flag(node, "known") and not reserved.within(total):
            over.add(f"{text(node, 'name')} reserves {reserved} of {total}")
    return over


def storm_counts(records: Sequence[StormRecord]) -> list[str]:
    """The lines of a table of all actions and clients."""
    lines = [f"{'':32} times   done  longest"]
    for action in StormAction:
        ends = [(seconds, is_done) for vm in records for what, seconds, is_done in vm.ends if what is action]
        longest, done = max((seconds for seconds, _ in ends), default=0.0), sum(is_done for _, is_done in ends)
        lines.append(f"{action:32} {len(ends):5}  {done:5}  {longest:5.1f} s")
    clients = [f"{vm.vm}: {len(vm.confirmed)} rows, {vm.excused} failures for {vm.kills} kills" for vm in records]
    return [*lines, *clients]
