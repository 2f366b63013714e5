"""The fixed addresses and ports of a guest's two networks (pure).

Every VM has one address on the flat network, which decides its MAC, and a private link to its pod.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Final

FLAT_PREFIX: Final = 16
LINK_GUEST: Final = "10.255.255.254"
"""Where a pod reaches the node_exporter and the daemon of its guest (S4.3)."""
LINK_POD: Final = "10.255.255.253"
LINK_POD_MAC: Final = "02:00:0a:ff:ff:fd"
"""The same in every pod, so that a guest's neighbour table stays valid when the guest moves."""
RETURNED_MAC: Final = "02:00:0a:ff:ff:fc"
"""No machine has it: it is the source of the frames that a guest's old place returns to the network."""
LINK_PREFIX: Final = 30
DAEMON_PORT: Final = 25183
RUNNER_PORT: Final = 25183
"""Where a runner pod's own API is, at the pod's address."""
QMP_PORT: Final = 20183
GUEST_DAEMON_PORT: Final = 25184
"""Where programs in a runner pod, and only they, reach the daemon in its guest."""
THAW_PORT: Final = 25185
"""A guest that wakes takes the time and the order to go on at this port; in a runner pod, that of 127.0.0.1."""
MIGRATION_PORT: Final = 20187
"""Where the target of a migration between two pods receives its guest."""
METRICS_PORT: Final = 9100
LINK_PORTS: Final = (METRICS_PORT, DAEMON_PORT, THAW_PORT)
"""What a pod reaches of its guest over a private link that forwards ports."""
MONITOR_PORT: Final = 10301
"""Where the vm-monitor of a guest listens, ours and NeonVM's."""
# A network that shares the machine's ports moves one of these if another program has taken it.
USUAL_PORTS: Final = (METRICS_PORT, 9101, DAEMON_PORT, THAW_PORT, 6443, 10294, 10297, 10298, 10299)
"""What programs of a cluster listen on: guests, agents, API server, groups and scheduler."""


def flat_mac(address: str) -> str:
    """The MAC of the VM with this flat address: the same wherever it runs, and no other VM's."""
    # 52:54:00 is QEMU's usual prefix. A cluster's flat addresses differ in the last three octets only.
    return "52:54:00:" + ":".join(f"{octet:02x}" for octet in IPv4Address(address).packed[1:])
