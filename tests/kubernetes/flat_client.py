"""A place from which a VM's own address is reached: a network namespace on a node's part of the flat network."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from deploy.neonvm.addressing import flat_mac
from deploy.neonvm.overlay.endpoints import client_claim
from tests.kubernetes.real_kubernetes import RealKubernetes
from tests.kubernetes.test_node_failures import pid_of

_ADDRESS: Final = "10.111.255.254"


@contextmanager
def flat_client(cluster: RealKubernetes) -> Iterator[str]:
    """The name of such a namespace, which is removed afterwards."""
    command = ["ip", "netns", "identify", str(pid_of(cluster, "node-1 containerd"))]
    of_node = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    client = f"autoscale-client-{os.getpid()}"
    cluster.apply(client_claim(_ADDRESS, "node-1"))
    made = [
        ["ip", "netns", "add", client],
        ["ip", "-n", of_node, "link", "add", "client0", "type", "veth", "peer", "name", "eth0", "netns", client],
        ["ip", "-n", client, "link", "set", "eth0", "address", flat_mac(_ADDRESS)],
        ["ip", "-n", of_node, "link", "set", "client0", "master", "neonvm0", "mtu", "1400", "up"],
        ["ip", "-n", client, "address", "add", f"{_ADDRESS}/16", "dev", "eth0"],
        ["ip", "-n", client, "link", "set", "eth0", "mtu", "1400", "up"],
    ]
    try:
        for each in made:
            subprocess.run(each, check=True)
        yield client
    finally:
        # A namespace stays while a process is in it, and its link with it: that must not be in the way of the next one.
        subprocess.run(["ip", "-n", of_node, "link", "del", "client0"], check=False)
        subprocess.run(["ip", "netns", "del", client], check=False)
