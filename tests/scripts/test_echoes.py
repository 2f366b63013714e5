"""Echo requests and their answers."""

from scripts.bench.echoes import checksum, reply_number, request


def test_reply_matches_its_echo_request() -> None:
    sent = request(77, 70_000)
    assert checksum(sent) == 0
    header = b"\x45" + bytes(19)
    assert reply_number(header + b"\0" + sent[1:], 77) == 70_000
    assert reply_number(header + b"\0" + sent[1:], 78) is None
    assert reply_number(header + sent, 77) is None
    assert reply_number(header + b"\0" * 5, 0) is None
