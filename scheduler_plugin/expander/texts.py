"""All texts of ``autoscale-expander``: reasons of choices, and log lines. Pure.

Some texts are templates for ``str.format``, whose fields mypy checks.
"""

from __future__ import annotations

from typing import Final

# Why node groups are returned

LOWEST: Final = "{note}rank {rank.value:.4g} is the lowest of {ranks}{estimated}"
ESTIMATED: Final = " (estimated from CPU and memory: none of the groups is in the price table)"
ALL_FAILED: Final = "every group has failed recently, "
NONE_RANKED: Final = "{note}none of {options} groups can be ranked ({reasons})"
NO_REQUEST: Final = "the request did not arrive in time"
NOTHING_OFFERED: Final = "the call has no options"
EXPANDER_FAILED: Final = "internal error; see the expander's log"

# Why a group has no rank, or a lower one

NOT_A_NUMBER: Final = "its rank is not a number"
NO_NODE_SENT: Final = "the call has no node of this group"
NO_CPU: Final = "its node has no CPU"
NO_NODES: Final = "it would add no nodes"
POD_UNREADABLE: Final = "cannot decode a pod: {error}"
NODE_UNREADABLE: Final = "cannot decode its node: {error}"
ONE_FAILED: Final = "one of {groups} got no nodes; they are now tried one at a time"
FAILED_AGAIN: Final = "{group} got no nodes {failures} times in a row; it comes last for {span:g} s"

# Log lines

ANSWERED: Final = "chose node groups"
FAILED_CHOICE: Final = "a chosen node group got no nodes"
NOT_RANKED: Final = "cannot rank a group"
MALFORMED: Final = "malformed request; the autoscaler keeps all options"
CANNOT_DECIDE: Final = "internal error; returning all options"
NOT_IN_CLUSTER: Final = "not running in a cluster; nodes are not counted"
NOT_COUNTED: Final = "cannot count the cluster's nodes; keeping the last count"
