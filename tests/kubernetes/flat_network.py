"""A client's place on the flat network of the VMs, in a network namespace of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kubernetes.real_kubernetes import RealKubernetes
from tests.kubernetes.test_node_failures import pid_of


@contextmanager
def flat_client(cluster: RealKubernetes) -> Iterator[str]:
    """The namespace of a client on the first node's part of the flat network."""
    node, client = _namespace_of(cluster, "node-1"), f"autoscale-client-{os.getpid()}"
    made = [
        ["ip", "netns", "add", client],
        ["ip", "-n", node, "link", "add", "client0", "type", "veth", "peer", "name", "eth0", "netns", client],
        ["ip", "-n", node, "link", "set", "client0", "master", "neonvm0", "mtu", "1400", "up"],
        ["ip", "-n", client, "address", "add", "10.111.255.254/16", "dev", "eth0"],
        ["ip", "-n", client, "link", "set", "eth0", "mtu", "1400", "up"],
    ]
    try:
        for command in made:
            subprocess.run(command, check=True)
        yield client
    finally:
        subprocess.run(["ip", "netns", "del", client], check=False)


def _namespace_of(cluster: RealKubernetes, node: str) -> str:
    command = ["ip", "netns", "identify", str(pid_of(cluster, f"{node} containerd"))]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
