"""What is tried at our own ports and at the API server's door, and what refuses it: the second half of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TOKEN: Final = "TokenReview (401)"
WHOSE: Final = "the scheduler: the token is another pod's (403)"
UNKNOWN: Final = "the scheduler: no such pod (404)"
TLS: Final = "TLS: no certificate of a known authority"


@dataclass(frozen=True, slots=True)
class Door:
    """One caller at one port."""

    port: str
    who: str
    refused_by: str


AGENTS: Final = "agents' port"
API: Final = "API server"
EXTENDER: Final = "extender's port"

OWN_POD: Final = Door(AGENTS, "an agent for its own VM", "")
OWN_NODE: Final = Door(AGENTS, "a node's agent for a VM of its node", "")
OTHER_POD: Final = Door(AGENTS, "an agent for another VM", WHOSE)
OTHER_NODE: Final = Door(AGENTS, "a node's agent for a VM of another node", WHOSE)
OTHER_ACCOUNT: Final = Door(AGENTS, "a pod of another account on the VM's node", WHOSE)
NO_TOKEN: Final = Door(AGENTS, "a word that is no token", TOKEN)
OTHER_AUDIENCE: Final = Door(AGENTS, "an agent with its token for the API server", TOKEN)
UNBOUND: Final = Door(AGENTS, "a token of the agents' account that is bound to no pod", TOKEN)
GONE: Final = Door(AGENTS, "the agent of a pod that was deleted", UNKNOWN)
ANONYMOUS: Final = Door(API, "no token: reads VMs", "RBAC")
FOR_SCHEDULER: Final = Door(API, "an agent with its token for the scheduler", TOKEN)
GONE_AT_API: Final = Door(API, "the agent of a pod that was deleted", TOKEN)
CERTIFIED: Final = Door(EXTENDER, "kube-scheduler with its certificate", "")
UNCERTIFIED: Final = Door(EXTENDER, "no client certificate", TLS)
STRANGER: Final = Door(EXTENDER, "a certificate of another authority", TLS)
WITH_TOKEN: Final = Door(EXTENDER, "an agent with its token and no certificate", TLS)

DOORS: Final = (
    *(OWN_POD, OWN_NODE, OTHER_POD, OTHER_NODE, OTHER_ACCOUNT, NO_TOKEN, OTHER_AUDIENCE, UNBOUND, GONE),
    *(ANONYMOUS, FOR_SCHEDULER, GONE_AT_API),
    *(CERTIFIED, UNCERTIFIED, STRANGER, WITH_TOKEN),
)
