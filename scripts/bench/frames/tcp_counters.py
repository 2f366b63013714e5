"""A kernel's counters of TCP: segments that were sent again, and time-outs that led to some of them (pure)."""

from __future__ import annotations

import msgspec


class TcpCounters(msgspec.Struct, frozen=True):
    """Since the kernel, or its network namespace, began."""

    retransmissions: int
    timeouts: int

    def since(self, before: TcpCounters) -> TcpCounters:
        """Counts since ``before``."""
        return TcpCounters(self.retransmissions - before.retransmissions, self.timeouts - before.timeouts)


def of_proc(page: str) -> TcpCounters:
    """From ``/proc/net/snmp`` and ``/proc/net/netstat``: pairs of lines, names above figures."""
    lines = [line.split() for line in page.splitlines()]
    counters = {
        f"{names[0]}{name}": figure
        for names, figures in zip(lines[::2], lines[1::2], strict=True)
        for name, figure in zip(names[1:], figures[1:], strict=True)
    }
    return TcpCounters(int(counters["Tcp:RetransSegs"]), int(counters["TcpExt:TCPTimeouts"]))


def of_exporter(page: str) -> TcpCounters:
    """From a page of node_exporter's ``netstat`` collector."""
    counters = dict(line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#"))
    names = ("node_netstat_Tcp_RetransSegs", "node_netstat_TcpExt_TCPTimeouts")
    # The exporter writes large numbers as 1e+06.
    return TcpCounters(*(int(float(counters[name])) for name in names))
