"""Fixed addresses and ports of a guest's two networks (pure).

A VM has an address on the flat network, from which its MAC is derived, and a private link to its pod.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Final

FLAT_PREFIX: Final = 16
LINK_GUEST: Final = "10.255.255.254"
"""The guest's address on the private link, at which the pod reaches its node_exporter and daemon (S4.3)."""
LINK_POD: Final = "10.255.255.253"
LINK_POD_MAC: Final = "02:00:0a:ff:ff:fd"
"""The same in every pod, so that the guest's neighbour table stays valid when it is migrated."""
RETURNED_MAC: Final = "02:00:0a:ff:ff:fc"
"""Source MAC of frames that a migration's source pod returns to the network. No machine has it."""
LINK_PREFIX: Final = 30
DAEMON_PORT: Final = 25183
RUNNER_PORT: Final = 25183
"""The runner's API, at the pod's address."""
QMP_PORT: Final = 20183
GUEST_DAEMON_PORT: Final = 25184
"""Port of 127.0.0.1 in a runner pod that is forwarded to the guest's daemon."""
THAW_PORT: Final = 25185
"""The guest's port for setting its clock and thawing its database; also a forwarded port of 127.0.0.1 in the pod."""
MIGRATION_PORT: Final = 20187
"""Port at which the target pod of a migration receives the guest."""
METRICS_PORT: Final = 9100
LINK_PORTS: Final = (METRICS_PORT, DAEMON_PORT, THAW_PORT)
"""The guest's ports that a private link of the kind ``forward`` forwards."""
MONITOR_PORT: Final = 10301
"""Port of the vm-monitor in a guest, ours or NeonVM's."""
# A network that shares the host's ports replaces those that another program uses.
USUAL_PORTS: Final = (METRICS_PORT, 9101, DAEMON_PORT, THAW_PORT, 6443, 10294, 10297, 10298, 10299)
"""Ports of a local cluster's programs: guests, agents, API server, groups and scheduler."""


def flat_mac(address: str) -> str:
    """The MAC of the VM with this flat-network address: unique, and the same on every node."""
    # 52:54:00 is QEMU's prefix. A cluster's flat-network addresses differ only in the last three octets.
    return "52:54:00:" + ":".join(f"{octet:02x}" for octet in IPv4Address(address).packed[1:])
