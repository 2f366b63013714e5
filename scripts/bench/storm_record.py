"""A storm of sleeps: the order of its actions, which a seed decides, and the record by which it is judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

from protocol.kubernetes.objects import Json, flag, items, text
from protocol.units import Resources


class StormAction(StrEnum):
    """One thing that happens to a VM; the text is for people."""

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


# After a kill a VM boots, and can do nothing else for a minute.
_WEIGHTS: Final = {action: 1 if action.name.startswith("KILL") else 6 for action in StormAction}


@dataclass(frozen=True, slots=True)
class StormStep:
    """An action after ``pause`` seconds; its second half begins ``moment`` seconds after the first. Unless the VM's
    clients are ``quiet`` they work on, so that an order races with their queries.
    """

    action: StormAction
    pause: float
    moment: float
    quiet: bool


def steps(seed: str) -> Iterator[StormStep]:
    """The actions on one VM, without an end: always the same for the same seed."""
    draw = Random(seed)
    while True:
        (action,) = draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        yield StormStep(action, draw.uniform(0.0, 5.0), draw.uniform(0.0, 5.0), draw.random() < 0.8)


@dataclass(slots=True)
class StormRecord:
    """The storm as the clients of one VM saw it, which boots at first. Rows have the numbers from 1 to ``rows``; the
    database has ``confirmed`` some of them. Failures that a kill or the first boot explains are ``excused``; all others
    are ``faults``. ``ends`` has the actions, their seconds, and whether each came to what it is named for.
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
        """The VM's QEMU is killed: all that runs may fail, and new sessions until the first one is open."""
        self.kills += 1
        self.is_down = True

    def opened(self, kills: int) -> None:
        """A session is open whose opening began after that many ``kills``."""
        self.is_down = self.is_down and kills < self.kills

    def failed(self, what: str, kills: int) -> None:
        """``what`` failed, which only a kill after the first ``kills`` explains."""
        if self.kills > kills:
            self.excused += 1
        else:
            self.faults.append(what)

    def judge_rows(self, counts: Mapping[int, int]) -> None:
        """``counts`` has the rows at the end. One that was sent but not confirmed may be there or not."""
        wrong = {
            "confirmed rows are lost": self.confirmed - counts.keys(),
            "rows are there more than once": {row for row, count in counts.items() if count > 1},
            "rows were never sent": {row for row in counts if not 0 < row <= self.rows},
        }
        self.faults += [f"{len(rows)} {what}, such as {min(rows)}" for what, rows in wrong.items() if rows]


def overbooked(nodes: Json) -> set[str]:
    """The nodes that reserve more than they have, in the scheduler's account of them."""
    over = set()
    for node in items(nodes, "nodes"):
        total, reserved = (
            Resources.parse(text(node, part, "cpu"), text(node, part, "mem")) for part in ("total", "reserved")
        )
        # The total of a node that is not known yet is zero.
        if flag(node, "known") and not reserved.within(total):
            over.add(f"{text(node, 'name')} reserves {reserved} of {total}")
    return over


def storm_counts(records: Sequence[StormRecord]) -> list[str]:
    """The lines of a table of all that happened."""
    lines = [f"{'':32} times   done  longest"]
    for action in StormAction:
        ends = [(seconds, is_done) for vm in records for what, seconds, is_done in vm.ends if what is action]
        longest, done = max((seconds for seconds, _ in ends), default=0.0), sum(is_done for _, is_done in ends)
        lines.append(f"{action:32} {len(ends):5}  {done:5}  {longest:5.1f} s")
    clients = [f"{vm.vm}: {len(vm.confirmed)} rows, {vm.excused} failures for {vm.kills} kills" for vm in records]
    return [*lines, *clients]
