"""What people and the programs of others do, whom no fence of ours may touch."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.resources import NODES, PODS, VIRTUAL_MACHINES
from tests.kubernetes.attacks.attempt import Attempt, patches, use
from tests.kubernetes.attacks.world import ADMIN, OPERATOR, pod

BY_OTHERS: Final = (
    *patches(VIRTUAL_MACHINES, "theirs", ADMIN, {
        "resizes a VM beyond its permit": (use(4, 4), ""),
        "changes its bounds and labels": (
            {"metadata": {"labels": {"a": "b"}, "annotations": {"autoscaling.neon.tech/bounds": None}}}, ""
        ),
    }),
    *patches(VIRTUAL_MACHINES, "theirs", OPERATOR, {"changes the maximum of a VM": (use(1, 2), "")}),
    *patches(NODES, "node-b", OPERATOR, {"labels a node": ({"metadata": {"labels": {"a": "b"}}}, "")}),
    Attempt(OPERATOR, "makes a pod", "", "create", PODS, "of-operator", pod("of-operator")),
    Attempt(OPERATOR, "deletes a pod", "", "delete", PODS, "web-2"),
    Attempt(ADMIN, "deletes a VM", "", "delete", VIRTUAL_MACHINES, "asleep"),
)  # fmt: skip
