"""Termination messages, refusals and log lines of ``neonvm-runner``. Pure."""

from __future__ import annotations

from typing import Final

# Termination messages of the pod

MIGRATED_AWAY: Final = "the guest has moved to another pod"
"""The controller recognizes a handed-over guest by this text."""
POD_STOPPED: Final = "the pod was stopped"
GUEST_ENDED: Final = "the guest has ended: {why}"
NO_FILE: Final = "{file} not found"
NO_POD_NAME: Final = "K8S_POD_NAME is not set"
NOTHING_TO_RUN: Final = "nothing to run: argument {flag} is missing"
PORT_RESERVED: Final = "spec.guest.ports: port {port} is reserved for the runner"
NO_SOCKET: Final = "no socket"
NO_TAP: Final = "no tap from the node's network program within {seconds:g} s ({reason}); see its log on this node"
TAP_UNUSABLE: Final = "cannot use the tap: {error}"
CONNECTION_CLOSED: Final = "neonvm-network closed the connection"
OTHER_ADDRESS: Final = "neonvm-network has address {has} for this VM; expected {wanted}"
EMULATION_REQUESTED: Final = "software emulation, as the VM requests"

# Refusals of requests

CONTROLLER_ONLY: Final = "only the controller may call this, with its client certificate\n"
NO_PATH: Final = "not found: {method} {path}\n"
GUEST_BOOTS: Final = "the guest is booting\n"
OUT_OF_SPACE: Final = "the node's disk is full: the guest is paused until there is space"
NO_IDENTITY: Final = "this pod has no identity\n"
IDENTITY_UNREADABLE: Final = "cannot read the pod's token: {error}\n"
CERTIFICATE_UNREADABLE: Final = "invalid certificate: {error}"
OTHER_KEY: Final = "the certificate is for a different key"
AUTHORITIES_UNREADABLE: Final = "invalid CA certificates: {reason}"

# Refusals because of sleep

SLEEPS: Final = "the guest is asleep; wake it first"
NOT_ASLEEP: Final = "the guest is not asleep"
ANOTHER_SLEEP: Final = "stale order: the guest has been asleep again since"
NOT_WAKEABLE: Final = "the guest has no flat-network address, so no client could wake it"
NOT_RUNNING: Final = "the guest must be Running to fall asleep, and is {phase}"
MIGRATION_UNDER_WAY: Final = "the guest is being migrated"
SUPERSEDED: Final = "superseded by a newer request"

# Failures of migrating a sleeping guest

DISK_FIRST: Final = "the disk has not been sent to the target yet"
DISK_NOT_SENT: Final = "cannot send the disk: {error}"
DISK_NOT_RECEIVED: Final = "cannot receive the disk: {error}"
DISK_REJECTED: Final = "the target rejected the disk"
DISK_STALLED: Final = "the target has not read from the disk's connection for {seconds:g} s"
OTHER_DISK: Final = "the disk belongs to a different machine"

# Refusals of QEMU's commands

NOT_QMP: Final = "not a QMP command"
COMMAND_REFUSED: Final = "{command} is not allowed in this pod"
ARGUMENTS_REFUSED: Final = "{command} is not allowed in this pod with these arguments"
MIGRATED_FOR_GOOD: Final = "the guest was migrated away and never runs here again"
UNDECIDED: Final = "a migration is under way, and its outcome is not decided yet"
NO_MIGRATION: Final = "no migration with a certificate has begun here"
GUEST_RUNS_HERE: Final = "the guest runs here and was not migrated away"

# Refusals of orders to sleep

CANNOT_SLEEP: Final = "this guest runtime does not support sleep"
MIGRATION_PENDING: Final = "the guest is about to be migrated"

# Log lines

STARTED: Final = "guest started"
OPEN_PORTS: Final = "the ports of this pod are not authenticated: its controller configured no CA"
POD_ENDS: Final = "stopping"
