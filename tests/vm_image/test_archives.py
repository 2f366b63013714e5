"""Archives of the guest image: whole, owned by root, and equal for equal inputs."""

from __future__ import annotations

import gzip
import io
import tarfile

import pytest

from vm_image.archives import SYMLINK, Entry, initrd, member, tar


def test_tar_is_reproducible() -> None:
    packed = tar([Entry("bin/tool", b"\x7fELF", 0o755), Entry("bin/sh", b"tool", SYMLINK), Entry("etc/x", b"1\n")])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        seen = [(info.name, info.mode, info.uid, info.gid, info.mtime, info.linkname) for info in archive]
        assert seen == [
            ("./bin/tool", 0o755, 0, 0, 0, ""),
            ("./bin/sh", 0o644, 0, 0, 0, "tool"),
            ("./etc/x", 0o644, 0, 0, 0, ""),
        ]
        assert member(archive, "missing", "etc/x") == b"1\n"
        with pytest.raises(KeyError, match="nowhere"):
            member(archive, "nowhere")


def test_equal_inputs_give_equal_bytes() -> None:
    entries = [Entry("init", b"#!/bin/sh\n", 0o755)]
    assert initrd(entries, ["proc"]) == initrd(entries, ["proc"])
    assert tar(entries) == tar(entries)


def test_initrd_has_parents_first_and_console() -> None:
    entries = [Entry("modules/order", b"virtio\n"), Entry("bin/sh", b"busybox", SYMLINK), Entry("init", b"x", 0o755)]
    assert listed(gzip.decompress(initrd(entries, ["proc"]))) == [
        ("bin", 0o040755, b""),
        ("dev", 0o040755, b""),
        ("modules", 0o040755, b""),
        ("proc", 0o040755, b""),
        ("dev/console", 0o020600, b""),
        ("modules/order", 0o100644, b"virtio\n"),
        ("bin/sh", 0o120777, b"busybox"),
        ("init", 0o100755, b"x"),
        ("TRAILER!!!", 0, b""),
    ]


def listed(cpio: bytes) -> list[tuple[str, int, bytes]]:
    """Name, mode and content of every member, read by the format's own rules."""
    found, at = [], 0
    while at < len(cpio):
        assert cpio[at : at + 6] == b"070701"
        fields = [int(cpio[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        mode, size, name_length = fields[1], fields[6], fields[11]
        name = cpio[at + 110 : at + 110 + name_length - 1].decode()
        content = at + 110 + name_length
        content += -content % 4
        found.append((name, mode, cpio[content : content + size]))
        at = content + size
        at += -at % 4
    return found
