"""Refusals, endings and log lines of ``neonvm-runner``. Pure."""

from __future__ import annotations

from typing import Final

# Endings of the pod, in its termination message

MOVED_AWAY: Final = "the guest has moved to another pod"
"""The controller reads it: the guest was given away."""
TOLD_TO_END: Final = "the pod was told to end"
GUEST_ENDED: Final = "the guest has ended: {why}"
NO_FILE: Final = "there is no {file}"
NO_POD_NAME: Final = "the environment does not name the pod (K8S_POD_NAME)"
NOTHING_TO_RUN: Final = "the pod's arguments do not say what to run ({flag})"
PORT_RESERVED: Final = "spec.guest.ports: {port} is a port of the runner"
NO_SOCKET: Final = "there is no socket"
NO_TAP: Final = "no tap from the node's network program within {seconds:g} s ({reason}); see its log on this node"
TAP_UNUSABLE: Final = "the tap cannot be taken over: {error}"
HUNG_UP: Final = "the node's network program hung up"
OTHER_ADDRESS: Final = "the node's network program has {has} for this VM, which is to have {wanted}"
EMULATION_WANTED: Final = "software emulation: the VM asks for it"

# Refusals of requests

CONTROLLER_ONLY: Final = "this is for the controller, which shows its certificate\n"
NO_PATH: Final = "there is no {method} {path}\n"
GUEST_BOOTS: Final = "the guest boots\n"
NO_IDENTITY: Final = "this pod was given no identity\n"
IDENTITY_UNREADABLE: Final = "the pod's token cannot be read: {error}\n"
CERTIFICATE_UNREADABLE: Final = "the certificate cannot be read: {error}"
OTHER_KEY: Final = "the certificate is not for this pod's key"
AUTHORITIES_UNREADABLE: Final = "the authorities cannot be read: {reason}"

# Refusals of QEMU's commands

NO_COMMAND: Final = "this is no command"
NOT_OFFERED: Final = "{command} is not offered by this pod"
NOT_WITH_THESE: Final = "{command} is not offered by this pod with these arguments"
ELSEWHERE: Final = "the guest was given away and never runs here again"
UNDECIDED: Final = "a move has begun, and nothing is decided about it"
NO_MOVE: Final = "no move has begun here for which there is a certificate"
RUNS_HERE: Final = "the guest runs here and was not given away"

# Log lines

STARTED: Final = "the guest is started"
OPEN_PORTS: Final = "the ports of this pod are open to every pod: its controller has named no authority"
POD_ENDS: Final = "the pod ends"
