"""The policies of all kinds of groups."""

from __future__ import annotations

from typing import Final

from scheduler_plugin.groups.policies.hvpa_policy import HvpaPolicy
from scheduler_plugin.groups.policies.policy import GroupPolicy

POLICIES: Final[tuple[GroupPolicy, ...]] = (HvpaPolicy(),)
