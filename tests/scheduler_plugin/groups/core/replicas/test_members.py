"""A member's name shows its group and its role."""

from __future__ import annotations

import pytest

from scheduler_plugin.groups.core.replicas.members import Role, member_name, role_of


@pytest.mark.parametrize(("role", "ordinal"), [(Role.PRIMARY, 0), (Role.REPLICA, 0), (Role.REPLICA, 63)])
def test_member_name_tells_role(role: Role, ordinal: int) -> None:
    assert role_of("shop", member_name("shop", role, ordinal)) == (role, ordinal)


@pytest.mark.parametrize(
    "name", ["shop", "shop-replica-", "shop-replica-01", "shop-replica-1-replica-2", "other-primary"]
)
def test_other_names_are_no_members(name: str) -> None:
    assert role_of("shop", name) is None
