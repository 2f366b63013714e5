"""A simulated guest's answers about the database that it does not have (pure).

One with a primary on its kernel command line is a standby that streams and is never behind. Tests and
demonstrations set other answers.
"""

from __future__ import annotations

import msgspec

from protocol.names import KERNEL_PRIMARY


class SimulatedDatabase(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The answer of the daemon in a real guest to ``GET /database``."""

    standby: bool
    streaming: bool = False
    lag_seconds: float | None = 0.0
    sessions: int = 0
    oldest_transaction_seconds: float | None = None

    @classmethod
    def told(cls, kernel_arguments: str) -> SimulatedDatabase:
        """The database of a guest with these words on its kernel command line."""
        standby = any(word.startswith(f"{KERNEL_PRIMARY}=") for word in kernel_arguments.split())
        return cls(standby, streaming=standby)
