"""The policies of all kinds of groups."""

from __future__ import annotations

from scheduler_plugin.groups.policies.hvpa_policy import HvpaPolicy
from scheduler_plugin.groups.policies.policy import GroupPolicy


def every_policy() -> tuple[GroupPolicy, ...]:
    """One of each kind, new: what they remember of objects belongs to one process."""
    return (HvpaPolicy(),)
