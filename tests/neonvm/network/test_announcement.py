"""The frame by which bridges learn where a VM is."""

from deploy.neonvm.network.announcement import announcement


def test_announcement_is_rarp_of_the_vm() -> None:
    frame = announcement("52:54:00:64:80:01")
    mac, nowhere = bytes.fromhex("525400648001"), bytes(4)
    assert frame[:14] == b"\xff" * 6 + mac + b"\x80\x35"
    assert frame[14:42] == b"\x00\x01\x08\x00\x06\x04\x00\x03" + mac + nowhere + mac + nowhere
    assert frame[42:] == bytes(18)
