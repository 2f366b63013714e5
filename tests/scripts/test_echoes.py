"""Echo requests and their answers."""

from scripts.bench.echoes import answered_number, checksum, request


def test_an_echo_request_is_whole_and_its_answer_is_known_again() -> None:
    sent = request(77, 70_000)
    assert checksum(sent) == 0
    header = b"\x45" + bytes(19)
    assert answered_number(header + b"\0" + sent[1:], 77) == 70_000
    assert answered_number(header + b"\0" + sent[1:], 78) is None
    assert answered_number(header + sent, 77) is None
    assert answered_number(header + b"\0" * 5, 0) is None
