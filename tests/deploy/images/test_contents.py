"""The checks of a finished image: nothing missing, nothing that an intruder would reach for."""

from __future__ import annotations

import struct

import pytest

from deploy.images.formats.elf import Binary, read_binary
from deploy.images.formats.tree import File, PathType, directory, symlink, tree
from deploy.images.rules.contents import forbidden, privileged, unresolved, without_unused_libraries
from tests.deploy.images.made_files import elf

LIBRARIES = "usr/lib/x86_64-linux-gnu"


def program(path: str, *needed: str, loader: str = "") -> File:
    return File(path, elf(needed, loader), 0o755)


@pytest.mark.parametrize("needed", [(), ("libc.so.6",), ("libm.so.6", "libc.so.6")])
def test_a_programs_needs_are_read(needed: tuple[str, ...]) -> None:
    assert read_binary(elf(needed, "/lib64/ld.so", machine=183)) == Binary("arm64", needed, "/lib64/ld.so")
    assert read_binary(elf(needed)) == Binary("amd64", needed, "")


def test_what_is_no_program_needs_nothing() -> None:
    assert read_binary(b"#!/bin/sh\n") is None
    assert read_binary(b"") is None


def test_a_static_program_needs_nothing() -> None:
    header = b"\x7fELF\x02\x01".ljust(16, b"\0") + struct.pack("<HHIQQQIHHH", 2, 62, 1, 0, 64, 0, 0, 64, 56, 0)
    assert read_binary(header) == Binary("amd64", (), "")


def test_libraries_that_nothing_needs_are_left_out() -> None:
    files = tree(
        [
            program("usr/bin/tool", "liba.so.1"),
            symlink(f"{LIBRARIES}/liba.so.1", "liba.so.1.2"),
            program(f"{LIBRARIES}/liba.so.1.2", "libb.so.1", "liba.so.1"),
            program(f"{LIBRARIES}/libb.so.1"),
            program(f"{LIBRARIES}/libunused.so.1", "libb.so.1"),
            program(f"{LIBRARIES}/libpthread.so.0"),
            program(f"{LIBRARIES}/plugins/opened.so"),
        ]
    )
    assert sorted(files.keys() - without_unused_libraries(files, {}).keys()) == [f"{LIBRARIES}/libunused.so.1"]


def test_library_needed_below_is_kept() -> None:
    files = tree([program(f"{LIBRARIES}/libstdc++.so.6")])
    assert without_unused_libraries(files, tree([program("usr/local/lib/wheel.so", "libstdc++.so.6")])) == files
    assert without_unused_libraries(files, {}) == {}


def test_broken_programs_are_named() -> None:
    files = tree(
        [
            program("usr/bin/a", "libgone.so.1", "libhere.so.1"),
            program("usr/bin/b", loader="/lib64/ld-gone.so.2"),
            program("usr/bin/c", loader="/lib64/libhere.so.1"),
            File("usr/bin/d", elf(machine=183)),
            File("usr/bin/e", elf(machine=40)),
            File("usr/bin/script", b"#!/usr/bin/a"),
            program(f"{LIBRARIES}/libhere.so.1"),
        ]
    )
    assert unresolved(files, "amd64") == [
        "usr/bin/a needs libgone.so.1",
        "usr/bin/b needs /lib64/ld-gone.so.2",
        "usr/bin/d is built for arm64",
        "usr/bin/e is built for 40",
    ]


def test_shells_and_installers_are_found_under_any_folder() -> None:
    files = tree(
        [
            symlink("bin/sh", "dash"),
            File("usr/local/lib/python3.11/dist-packages/pip/__init__.py"),
            File("opt/pip"),
            directory("usr/lib/apt"),
            File("usr/bin/python3.11"),
        ]
    )
    assert forbidden(files) == ["bin/sh", "opt/pip"]


def test_programs_with_another_users_rights_are_found() -> None:
    files = tree([File("usr/bin/su", mode=0o4755), File("usr/bin/x", mode=0o755), directory("tmp", 0o3777)])
    assert files["tmp"].kind is PathType.DIRECTORY
    assert privileged(files) == ["usr/bin/su"]
