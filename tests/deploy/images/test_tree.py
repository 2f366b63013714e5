"""Layers as tar: equal files make equal bytes, at any time and on any machine."""

from __future__ import annotations

import gzip
import io
import tarfile

from hypothesis import given
from hypothesis import strategies as st

from deploy.images.formats.tree import (
    File,
    PathType,
    changed_entries,
    compressed,
    directory,
    merged_usr,
    root_links,
    symlink,
    tar_of,
    tree,
)

PATHS = ("a-b", "a/b", "a/b-c", "a.b/c/d", "z" * 120, "usr/lib/x")
FILES = st.builds(File, st.sampled_from(PATHS), st.binary(max_size=9), st.sampled_from((0o644, 0o755)))
SETS = st.lists(FILES, max_size=5, unique_by=lambda file: file.path)


def unpacked(data: bytes) -> dict[str, File]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {
            info.name: File(
                info.name,
                found.read() if (found := archive.extractfile(info)) else b"",
                info.mode,
                PathType(info.type),
                info.linkname,
            )
            for info in archive
        }


@given(SETS, st.integers(0, 4))
def test_file_order_changes_no_byte(files: list[File], turn: int) -> None:
    turned = [*reversed(files[turn:]), *files[:turn]]
    assert compressed(tar_of(tree(files))) == compressed(tar_of(tree(turned)))


@given(SETS)
def test_entries_come_after_their_parents(files: list[File]) -> None:
    given_files = tree(files)
    found = unpacked(tar_of(given_files))
    assert {path: found[path] for path in given_files} == given_files
    assert list(found) == sorted(found)
    assert {path for path in found if path not in given_files} <= {
        parent for path in given_files for parent in parents(path)
    }


def parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def test_entries_belong_to_root_without_time() -> None:
    packed = tar_of(tree([File("a/b", b"x"), symlink("c", "a/b"), directory("tmp", 0o1777), File("d" * 150)]))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert {(info.uid, info.gid, info.uname, info.mtime) for info in archive} == {(0, 0, "", 0)}
        assert [(info.name[:4], info.mode) for info in archive] == [
            ("a", 0o755),
            ("a/b", 0o644),
            ("c", 0o777),
            ("dddd", 0o644),
            ("tmp", 0o1777),
        ]
    assert gzip.decompress(compressed(packed)) == packed


def test_merged_usr_has_one_place() -> None:
    given_paths = ("bin/ip", "lib/x/libc.so.6", "usr/bin/python3", "etc/passwd", "libs/x")
    paths = [merged_usr(File(path)).path for path in given_paths]
    assert paths == ["usr/bin/ip", "usr/lib/x/libc.so.6", "usr/bin/python3", "etc/passwd", "libs/x"]
    assert root_links(paths) == [symlink("bin", "usr/bin"), symlink("lib", "usr/lib")]


def test_layer_holds_only_the_difference() -> None:
    lower = tree([File("same", b"1"), File("changed", b"1")])
    upper = tree([File("same", b"1"), File("changed", b"2"), File("new", b"3")])
    assert changed_entries(lower, upper) == tree([File("changed", b"2"), File("new", b"3")])
