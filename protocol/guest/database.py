"""The status of a guest's postgres, as its daemon reports it and the agent passes it on (S4.3)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from protocol.units import Seconds

NotNegative = Annotated[Seconds, msgspec.Meta(ge=0.0)]


class DatabaseState(msgspec.Struct, frozen=True):
    """State of a database.

    ``streaming``: it receives changes from its primary. ``lag`` is its replay lag; None if unknown. ``sessions`` counts
    clients; ``oldest_transaction`` is the age of their oldest open transaction, None if none.

    >>> msgspec.json.decode('{"standby": true, "lagSeconds": 0.5}', type=DatabaseState).lag
    0.5
    """

    is_standby: bool = msgspec.field(name="standby")
    streaming: bool = False
    lag: NotNegative | None = msgspec.field(default=None, name="lagSeconds")
    sessions: Annotated[int, msgspec.Meta(ge=0)] = 0
    oldest_transaction: NotNegative | None = msgspec.field(default=None, name="oldestTransactionSeconds")
