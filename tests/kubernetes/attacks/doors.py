"""Attempts on our own ports and on the API server, and their results: the second half of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TOKEN: Final = "TokenReview (401)"
WHOSE: Final = "the scheduler: the token is another pod's (403)"
UNKNOWN: Final = "the scheduler: no such pod (404)"
SIGN_IN: Final = "the page: sign in first (401)"
NOT_OWN: Final = "the page: not a request of its own (403)"
NOT_THEIRS: Final = "the page: there is no such object (404)"
TLS: Final = "TLS: no certificate of a known authority"
NOT_FOR_IT: Final = "the scheduler: not kube-scheduler's certificate (403)"

NOT_CONTROLLER: Final = "the runner: not the controller's certificate"
GATE: Final = "the gate: the guest runs here and was not migrated away"
NOT_PROVEN: Final = "the controller: TokenReview says another pod, or none"


@dataclass(frozen=True, slots=True)
class Door:
    """One caller at one port."""

    port: str
    who: str
    refused_by: str


AGENTS: Final = "agents' port"
API: Final = "API server"
EXTENDER: Final = "extender's port"
PAGE: Final = "page"

OWN_POD: Final = Door(AGENTS, "an agent for its own VM", "")
OWN_NODE: Final = Door(AGENTS, "a per-node agent for a VM of its node", "")
OTHER_POD: Final = Door(AGENTS, "an agent for another VM", WHOSE)
OTHER_NODE: Final = Door(AGENTS, "a per-node agent for a VM of another node", WHOSE)
OTHER_ACCOUNT: Final = Door(AGENTS, "a pod of another account on the VM's node", WHOSE)
NO_TOKEN: Final = Door(AGENTS, "an invalid token", TOKEN)
OTHER_AUDIENCE: Final = Door(AGENTS, "an agent with its token for the API server", TOKEN)
UNBOUND: Final = Door(AGENTS, "a token of the agents' account that is not bound to a pod", TOKEN)
GONE: Final = Door(AGENTS, "the agent of a pod that was deleted", UNKNOWN)
ANONYMOUS: Final = Door(API, "no token: reads VMs", "RBAC")
FOR_SCHEDULER: Final = Door(API, "an agent with its token for the scheduler", TOKEN)
GONE_AT_API: Final = Door(API, "the agent of a pod that was deleted", TOKEN)
CERTIFIED: Final = Door(EXTENDER, "kube-scheduler with its certificate", "")
UNCERTIFIED: Final = Door(EXTENDER, "no client certificate", TLS)
STRANGER: Final = Door(EXTENDER, "a certificate of another authority", TLS)
OTHER_CLIENT: Final = Door(EXTENDER, "another client of the same authority", NOT_FOR_IT)
WITH_TOKEN: Final = Door(EXTENDER, "an agent with its token and no certificate", TLS)
NO_SESSION: Final = Door(PAGE, "no session: reads a VM", SIGN_IN)
NO_TOKEN_THERE: Final = Door(PAGE, "an invalid token: signs in", TOKEN)
AGENT_THERE: Final = Door(PAGE, "an agent with its token for the scheduler: signs in", TOKEN)
NOBODY: Final = Door(PAGE, "an account that may list no VMs: signs in", "SubjectAccessReview (401)")
OTHER_SITE: Final = Door(PAGE, "another site: signs a browser in", NOT_OWN)
CLERK: Final = Door(PAGE, "an account that may list the VMs of one namespace: reads a VM there", "")
CURIOUS: Final = Door(PAGE, "the same: reads a VM of another namespace", NOT_THEIRS)
RUNNER: Final = "runner's port"
MONITOR: Final = "QEMU's monitor"
AT_ADDRESS: Final = "controller, at a pod's address"
CONTROLLER_AT_RUNNER: Final = Door(RUNNER, "the controller with its certificate: resizes a VM", "")
PLAIN_AT_RUNNER: Final = Door(RUNNER, "any pod, without TLS: resizes a VM", TLS)
NOBODY_AT_RUNNER: Final = Door(RUNNER, "any pod, without a certificate: resizes a VM", NOT_CONTROLLER)
STRANGER_AT_RUNNER: Final = Door(RUNNER, "the controller's name, of another authority: resizes a VM", TLS)
AGENTS_AT_RUNNER: Final = Door(RUNNER, "a per-node agent with its certificate: resizes a VM", NOT_CONTROLLER)
CONTROLLER_AT_MONITOR: Final = Door(MONITOR, "the controller with its certificate: queries the guest's state", "")
ENDS_A_GUEST: Final = Door(MONITOR, "the controller: ends a guest that runs", GATE)
NOBODY_AT_MONITOR: Final = Door(MONITOR, "any pod, without a certificate: ends the guest", NOT_CONTROLLER)
AGENT_AT_MONITOR: Final = Door(MONITOR, "a per-node agent with its certificate: ends the guest", NOT_CONTROLLER)
OWN_RUNNER: Final = Door(AT_ADDRESS, "the pod's runner with its token: receives commands", "")
OTHER_RUNNER: Final = Door(AT_ADDRESS, "another pod with its own token: receives commands", NOT_PROVEN)
API_TOKEN: Final = Door(AT_ADDRESS, "the pod's token for the API server: receives commands", NOT_PROVEN)
NO_RUNNER: Final = Door(AT_ADDRESS, "an invalid token: receives commands", NOT_PROVEN)

DOORS: Final = (
    *(OWN_POD, OWN_NODE, OTHER_POD, OTHER_NODE, OTHER_ACCOUNT, NO_TOKEN, OTHER_AUDIENCE, UNBOUND, GONE),
    *(ANONYMOUS, FOR_SCHEDULER, GONE_AT_API),
    *(CERTIFIED, UNCERTIFIED, STRANGER, OTHER_CLIENT, WITH_TOKEN),
    *(NO_SESSION, NO_TOKEN_THERE, AGENT_THERE, NOBODY, OTHER_SITE, CLERK, CURIOUS),
    *(CONTROLLER_AT_RUNNER, PLAIN_AT_RUNNER, NOBODY_AT_RUNNER, STRANGER_AT_RUNNER, AGENTS_AT_RUNNER),
    *(CONTROLLER_AT_MONITOR, ENDS_A_GUEST, NOBODY_AT_MONITOR, AGENT_AT_MONITOR),
    *(OWN_RUNNER, OTHER_RUNNER, API_TOKEN, NO_RUNNER),
)
