"""The oracle's random runs, and proof that it detects each old bug when it is put back.

``AUTOSCALE_ORACLE_STEPS`` is how many steps are played in all, ``AUTOSCALE_ORACLE_SEED`` the first story's seed.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from protocol.units import Instant, Resources
from scheduler_plugin.ledger import permit_rule
from scheduler_plugin.ledger.accounts.claims import VmAccount
from scheduler_plugin.ledger.accounts.permit_account import PermitAccount
from scheduler_plugin.workers.permit_writer import PermitWriter, WriteResult
from tests.examples import EXPLORES
from tests.oracle.calm import calm
from tests.oracle.story import BrokenError, Story

STEPS: Final = int(os.environ.get("AUTOSCALE_ORACLE_STEPS", "10000000" if EXPLORES else "24000"))
LENGTH: Final = 3000
"""Steps of one story; short ones find what a start has to do with, long ones what piles up."""

GROUPS: Final = 8
FIRST: Final = int(os.environ.get("AUTOSCALE_ORACLE_SEED", str(random.randrange(10**9)) if EXPLORES else "0"))
"""Each ``make explore`` plays other stories; the first line of a failure names the seed and the step."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Refused writes are logged; a story has thousands."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


async def play(seed: int, steps: int) -> int:
    """Run one story. Returns the number of responses that agents received. Raises ``BrokenError``."""
    story = Story(seed)
    try:
        await story.start()
        for _ in range(steps):
            await story.step()
        await calm(story)
        return story.granted
    finally:
        await story.end()


async def play_many(seeds: int, steps: int) -> None:
    for seed in range(seeds):
        await play(seed, steps)


@pytest.mark.parametrize("group", range(GROUPS))
async def test_agents_never_exceed_the_node(group: int) -> None:
    granted = 0
    stories = max(1, STEPS // (GROUPS * LENGTH))
    for number in range(stories):
        granted += await play(FIRST + number * GROUPS + group, LENGTH)
    assert granted > stories * LENGTH / 100, "the stories were too quiet to prove anything"


async def test_same_seed_repeats_the_run() -> None:
    traces = []
    for _ in range(2):
        story = Story(7)
        await story.start()
        for _ in range(300):
            await story.step()
        traces.append(list(story.trace))
        await story.end()
    assert traces[0] == traces[1]


def grants_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A faulty rule: it grants requests within the stored reservation, regardless of who stored it."""
    by_room = permit_rule._size_by_room

    def within(state: Any, claim: Any, account: VmAccount, message: Any, now: Instant) -> tuple[Resources, Resources]:
        wanted, granted = by_room(state, claim, account, message, now)
        return wanted, wanted if wanted.within(account.reserved) else granted

    monkeypatch.setattr(permit_rule, "_size_by_room", within)


def believes_any_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that was answered has stored what was ordered."""
    monkeypatch.setattr(PermitWriter, "_check_stored", lambda _, __, facts: WriteResult("stored", facts=facts))


def compares_all_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A faulty rule: messages of two agents are compared as if they were one's."""
    monkeypatch.setattr(PermitAccount, "active_rival", lambda *_: None)
    monkeypatch.setattr(PermitAccount, "_is_same_agent", lambda account, message: account.last_pod == message.pod)


def frees_at_opt_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The room of a VM without an agent is free at once."""
    may_be_used = PermitAccount.max_usable.fget  # type: ignore[attr-defined]  # a property

    def following(account: PermitAccount) -> Resources:
        used: Resources = may_be_used(account) if account.has_agent else account.in_use
        return used

    monkeypatch.setattr(PermitAccount, "max_usable", property(following))


def gives_away_what_pods_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that starts does not wait for the agents of pods, though nothing says what they hold."""
    opened = PermitAccount.open

    def without_waiting(account: PermitAccount, *args: Any, **more: Any) -> None:
        opened(account, *args, **more)
        account.awaits_first_message = False

    monkeypatch.setattr(PermitAccount, "open", without_waiting)


@pytest.mark.parametrize(
    "fault",
    [
        *(grants_what_is_stored, believes_any_answer, compares_all_sequences, frees_at_opt_out),
        gives_away_what_pods_hold,
    ],
)
async def test_oracle_finds_an_old_fault(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: Any) -> None:
    fault(monkeypatch)
    with pytest.raises(BrokenError, match=r"^seed \d+, step \d+: "):
        await play_many(120, 800)
