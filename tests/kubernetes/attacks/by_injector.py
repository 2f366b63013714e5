"""What the injector tries, which fills the Secrets with certificates and tells the API server whom to trust."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.resources import LEASES, VIRTUAL_MACHINES
from tests.kubernetes.attacks.attempt import RBAC, Attempt, patches, use
from tests.kubernetes.attacks.world import INJECTOR, SECRETS, SYSTEM, WEBHOOKS, named

_TEXT: Final = {"data": {"tls.crt": "eA=="}}
BY_INJECTOR: Final = (
    *patches(
        SECRETS, "autoscaling-certificates-scheduler", INJECTOR, {"renews a certificate": (_TEXT, "")}, namespace=SYSTEM
    ),
    *patches(SECRETS, "bank", INJECTOR, {"writes another Secret": (_TEXT, RBAC)}, namespace=SYSTEM),
    Attempt(INJECTOR, "reads another Secret", RBAC, "get", SECRETS, "bank", namespace=SYSTEM),
    Attempt(INJECTOR, "lists Secrets", RBAC, "get", SECRETS, "", namespace=SYSTEM),
    *patches(WEBHOOKS, "theirs", INJECTOR, {"changes another webhook": ({"webhooks": []}, RBAC)}),
    *patches(VIRTUAL_MACHINES, "mine", INJECTOR, {"resizes a VM": (use(1, 1), RBAC)}),
    Attempt(
        INJECTOR,
        "makes the Lease of another program",
        "policy autoscaling-leases",
        "create",
        LEASES,
        "neonvm-controller",
        named(LEASES, "neonvm-controller", SYSTEM, {}),
        namespace=SYSTEM,
    ),
)
