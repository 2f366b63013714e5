"""The policy file of an agent process, looked at again and again, because a ConfigMap may change under it.

Rules that hold here:

- The file is read when it has changed. A bad or missing file is said once and changes nothing; the last good policy
  stays, which at the start is the default.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, Protocol

from agent.config import PolicyError, read_policy
from agent.core.policy import Policy
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds

LOOK_EVERY: Final = Seconds(5.0)


class PolicyTaker(Protocol):
    """Who wants to know."""

    def use_policy(self, policy: Policy) -> None:
        """Another policy is in force."""

    def refuse_policy(self, reason: str) -> None:
        """What the file says cannot be used."""


class PolicyFile:
    """One file, and what it said last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text: str | None = None
        self._complaint: str | None = None

    def look(self, taker: PolicyTaker) -> None:
        """Reads the file and tells ``taker`` what is new."""
        try:
            text = self._path.read_text()
            if text == self._text and self._complaint is None:
                return
            self._text = text
            policy = read_policy(text, Policy())
        except (OSError, UnicodeDecodeError) as error:
            self._refuse(taker, f"{self._path}: cannot be read: {error}")
        except PolicyError as error:
            self._refuse(taker, f"{self._path}: {error}")
        else:
            self._complaint = None
            taker.use_policy(policy)

    async def follow(self, taker: PolicyTaker, clock: Clock) -> None:
        """Looks every ``LOOK_EVERY`` seconds until it is cancelled."""
        never = asyncio.Event()
        while True:
            await clock.wait(never, Instant(clock.now() + LOOK_EVERY))
            self.look(taker)

    def _refuse(self, taker: PolicyTaker, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            taker.refuse_policy(complaint)
