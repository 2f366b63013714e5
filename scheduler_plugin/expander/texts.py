"""All texts of ``autoscale-expander``: reasons of choices, and log lines. Pure.

Texts with fields are templates for ``str.format``; mypy checks the fields.
"""

from __future__ import annotations

from typing import Final

# Why node groups are passed on

LOWEST: Final = "{note}rank {rank.value:.4g} is the lowest of {ranks}{estimated}"
ESTIMATED: Final = " (from the price of its parts: the price table has no price for any of them)"
ALL_FAILED: Final = "every group has failed lately, "
NONE_JUDGED: Final = "{note}none of {options} can be judged ({reasons})"
NOTHING_OFFERED: Final = "nothing was offered"
EXPANDER_FAILED: Final = "the expander failed: see its log"

# Why a group has no rank, or a lower one

NOT_A_NUMBER: Final = "its rank is not a number"
NO_NODE_SENT: Final = "no node of this group was sent"
NO_CPU: Final = "its node has no cpu"
NO_NODES: Final = "it would add no nodes"
POD_UNREADABLE: Final = "a pod cannot be read: {error}"
NODE_UNREADABLE: Final = "its node cannot be read: {error}"
ONE_FAILED: Final = "one of {groups} brought no nodes: they are tried one at a time now"
FAILED_AGAIN: Final = "{group} brought no nodes {failures} times in a row: it comes last for {span:g} s"

# Log lines

ANSWERED: Final = "answered"
FAILED_CHOICE: Final = "failed choice"
NOT_JUDGED: Final = "group cannot be judged"
MALFORMED: Final = "question refused, the autoscaler passes on every option"
CANNOT_DECIDE: Final = "cannot decide, passing on all options"
NOT_IN_CLUSTER: Final = "not in a cluster: its nodes are not counted"
NOT_COUNTED: Final = "cannot count the cluster's nodes, keeping the last count"
