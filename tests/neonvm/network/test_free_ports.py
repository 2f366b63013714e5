"""Ports for programs that are about to start."""

from __future__ import annotations

from pathlib import Path

from deploy.neonvm.network.sockets import free_ports, listening, tcp_socket


def test_no_connection_takes_a_free_port() -> None:
    ports = free_ports(50)
    handed_out_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 50
    assert max(ports) < handed_out_from or handed_out_from <= 10240
    for port in ports:
        listening(tcp_socket(), "127.0.0.1", port).close()
