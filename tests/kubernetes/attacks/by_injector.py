"""Attempts of the injector, which writes certificates into Secrets and CAs into the webhook."""

from __future__ import annotations

from base64 import b64encode
from typing import Final

from protocol.kubernetes.resources import CONFIG_MAPS, LEASES, PODS, VIRTUAL_MACHINES
from tests.kubernetes.attacks.attempt import RBAC, Attempt, noted, patches, resources, use
from tests.kubernetes.attacks.world import INJECTOR, MORE, PG, SECRETS, SYSTEM, WEBHOOKS, hook, named
from tests.scheduler_plugin.certificates import pair

_TEXT: Final = {"data": {"tls.crt": "eA=="}}
_AUTHORITY: Final = b64encode(pair("authority")[0]).decode()
_POLICY: Final = "policy autoscaling-injector"
BY_INJECTOR: Final = (
    *patches(
        SECRETS, "autoscaling-certificates-scheduler", INJECTOR, {"renews a certificate": (_TEXT, "")}, namespace=SYSTEM
    ),
    *patches(SECRETS, "bank", INJECTOR, {"writes another Secret": (_TEXT, RBAC)}, namespace=SYSTEM),
    Attempt(INJECTOR, "reads another Secret", RBAC, "get", SECRETS, "bank", namespace=SYSTEM),
    Attempt(INJECTOR, "lists Secrets", RBAC, "get", SECRETS, "", namespace=SYSTEM),
    *patches(
        WEBHOOKS,
        "autoscaling-injector",
        INJECTOR,
        {
            "updates its webhook's CA": ({"webhooks": [hook(authority=_AUTHORITY)]}, ""),
            "registers its webhook for Secrets": ({"webhooks": [hook("secrets")]}, _POLICY),
        },
    ),
    *patches(
        CONFIG_MAPS,
        "autoscaling-ca",
        INJECTOR,
        {
            "updates the agents' CA": ({"data": {"ca.crt": "x"}}, ""),
            "writes other data next to it": ({"data": {"mine": "y"}}, _POLICY),
        },
    ),
    *patches(WEBHOOKS, "theirs", INJECTOR, {"changes another webhook": ({"webhooks": []}, RBAC)}),
    *patches(VIRTUAL_MACHINES, "mine", INJECTOR, {"resizes a VM": (use(1, 1), RBAC)}),
    *patches(
        PODS,
        "pg-1",
        INJECTOR,
        {"resizes a pod": (resources(PG, "postgres", requests=MORE), RBAC)},
        subresource="resize",
    ),
    *patches(PODS, "pg-1", INJECTOR, {"annotates an existing pod": (noted("autoscaling.neon.tech/floor"), RBAC)}),
    Attempt(
        INJECTOR,
        "creates the Lease of another program",
        "policy autoscaling-leases",
        "create",
        LEASES,
        "neonvm-controller",
        named(LEASES, "neonvm-controller", SYSTEM, {}),
        namespace=SYSTEM,
    ),
)
