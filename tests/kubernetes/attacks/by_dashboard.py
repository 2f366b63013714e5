"""Attempts of the dashboard, which has many users and shows each only what that user may see."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.resources import (
    MIGRATIONS,
    PODS,
    SERVICE_ACCOUNTS,
    SUBJECT_ACCESS_REVIEWS,
    VIRTUAL_MACHINES,
    VM_GROUPS,
)
from tests.kubernetes.attacks.attempt import RBAC, Attempt, noted, patches, use
from tests.kubernetes.attacks.world import DASHBOARD, HOME, SECRETS, SYSTEM, Obj, move

_MAY_LIST: Final[Obj] = {
    "kind": SUBJECT_ACCESS_REVIEWS.kind,
    "apiVersion": SUBJECT_ACCESS_REVIEWS.api_version,
    "spec": {
        "user": "clerk",
        "resourceAttributes": {
            "verb": "list",
            "group": VIRTUAL_MACHINES.group,
            "resource": VIRTUAL_MACHINES.plural,
            "namespace": HOME,
        },
    },
}
_TOKEN: Final[Obj] = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}}
BY_DASHBOARD: Final = (
    Attempt(DASHBOARD, "reviews what a user may list", "", "create", SUBJECT_ACCESS_REVIEWS, "", _MAY_LIST),
    *patches(VIRTUAL_MACHINES, "theirs", DASHBOARD, {
        "resizes a VM": (use(1, 1), RBAC),
        "writes a permit": (noted("autoscaling.neon.tech/permit"), RBAC),
    }),
    Attempt(DASHBOARD, "creates a migration", RBAC, "create", MIGRATIONS, "x", move("x")),
    Attempt(DASHBOARD, "deletes a migration", RBAC, "delete", MIGRATIONS, "by-hand"),
    Attempt(DASHBOARD, "deletes a group", RBAC, "delete", VM_GROUPS, "shop"),
    Attempt(
        DASHBOARD, "requests a token of the scheduler's account", RBAC, "create", SERVICE_ACCOUNTS,
        "autoscaling-scheduler", _TOKEN, namespace=SYSTEM, subresource="token",
    ),
    Attempt(DASHBOARD, "reads pods", RBAC, "get", PODS, ""),
    Attempt(DASHBOARD, "reads secrets", RBAC, "get", SECRETS, ""),
)  # fmt: skip
