"""How echoes and counters of TCP are read."""

from scripts.bench.frames.echoes import answered_number, checksum, request
from scripts.bench.frames.tcp_counters import TcpCounters, of_exporter, of_proc

PROC = """Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm RetransSegs
Tcp: 1 12
TcpExt: SyncookiesSent TCPTimeouts TCPLossProbes
TcpExt: 0 3 9
"""
EXPORTER = """# HELP node_netstat_Tcp_RetransSegs Statistic TcpRetransSegs.
node_netstat_Tcp_RetransSegs 12
node_netstat_TcpExt_TCPTimeouts 3
"""


def test_an_echo_request_is_whole_and_its_answer_is_known_again() -> None:
    sent = request(77, 70_000)
    assert checksum(sent) == 0
    header = b"\x45" + bytes(19)
    assert answered_number(header + b"\0" + sent[1:], 77) == 70_000
    assert answered_number(header + b"\0" + sent[1:], 78) is None
    assert answered_number(header + sent, 77) is None
    assert answered_number(header + b"\0" * 5, 0) is None


def test_both_kernels_tell_what_they_sent_again() -> None:
    assert of_proc(PROC) == of_exporter(EXPORTER) == TcpCounters(retransmissions=12, timeouts=3)
    assert TcpCounters(12, 3).since(TcpCounters(10, 3)) == TcpCounters(2, 0)
