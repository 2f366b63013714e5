"""The API server's non-deterministic inputs: time, unique ids and randomness."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Environment:
    """``now`` is UTC; ``new_uid`` is unique; ``choose`` picks a character of a text at random."""

    now: Callable[[], datetime]
    new_uid: Callable[[], str]
    choose: Callable[[str], str]


def system_environment() -> Environment:
    """The machine's clock and random source."""
    return Environment(lambda: datetime.now(UTC), lambda: str(uuid.uuid4()), random.choice)
