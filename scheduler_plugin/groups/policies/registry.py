"""The policies of all kinds of groups."""

from __future__ import annotations

from collections.abc import Callable

from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.policies.hvpa_policy import HvpaPolicy
from scheduler_plugin.groups.policies.policy import GroupPolicy
from scheduler_plugin.groups.policies.tortoise_policy import TortoisePolicy


def every_policy(configuration: Callable[[], Configuration]) -> tuple[GroupPolicy, ...]:
    """One of each kind, new: what they remember of objects belongs to one process.

    ``configuration`` gives the Tortoises' global configuration in force.
    """
    return (HvpaPolicy(), TortoisePolicy(configuration))
