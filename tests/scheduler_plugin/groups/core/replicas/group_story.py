"""Members of a group called ``shop`` in the states that tests need."""

from __future__ import annotations

from dataclasses import replace

from protocol.guest.database import DatabaseState
from protocol.units import Seconds
from scheduler_plugin.groups.core.replicas.group_plan import GroupPlan
from scheduler_plugin.groups.core.replicas.members import GroupSpec, Member, Role, member_name

SHOP = GroupSpec("shop", replicas=2, max_lag=Seconds(10.0), grace=Seconds(30.0), drain_timeout=Seconds(600.0))
PRIMARY_ADDRESS = "10.100.128.0"
STANDBY = DatabaseState(is_standby=True, streaming=True, lag=Seconds(0.0))
PRIMARY = Member(
    "shop-primary", "u-p", Role.PRIMARY, 0, "2026-01-01T00:00:00Z", address=PRIMARY_ADDRESS, available=True
)


def replica(ordinal: int, **changes: object) -> Member:
    """A replica that serves, the newer the higher its number."""
    serving = Member(
        name=member_name("shop", Role.REPLICA, ordinal),
        uid=f"u-{ordinal}",
        role=Role.REPLICA,
        ordinal=ordinal,
        created=f"2026-01-01T00:{ordinal:02}:00Z",
        source=PRIMARY_ADDRESS,
        address=f"10.100.128.{ordinal + 1}",
        available=True,
        listed=True,
        database=STANDBY,
    )
    return replace(serving, **changes)  # type: ignore[arg-type]  # fields of a member


def summary(plan: GroupPlan) -> dict[str, list[str]]:
    """A summary of a plan by names, without empty parts."""
    found = {
        "create": [each.name for each in plan.create],
        "stay": [each.name for each in plan.undrain],
        "drain": [each.member.name for each in plan.drain],
        "serving": [each.name for each in plan.serving],
        "delete": [each.member.name for each in plan.delete],
    }
    return {part: [name.removeprefix("shop-") for name in names] for part, names in found.items() if names}
