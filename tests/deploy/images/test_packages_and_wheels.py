"""The parts of Debian packages and wheels that an image contains."""

from __future__ import annotations

import io
import lzma
import tarfile

import pytest

from deploy.images.formats.deb import NotAPackageError, read_package
from deploy.images.formats.tree import File, directory, symlink, tree
from deploy.images.formats.wheel import SITE, wheel_files
from deploy.images.rules.base_files import dpkg_status, program, system_files
from deploy.images.rules.contents import is_included
from tests.deploy.images.made_files import deb, wheel


def test_package_keeps_links_and_modes() -> None:
    files = [directory("lib"), File("lib/libx.so.1.2", b"code", 0o644), symlink("lib/libx.so.1", "libx.so.1.2")]
    package = read_package(deb("libx1", files, {"usr/bin/second": "lib/libx.so.1.2"}))
    assert (package.name, package.version) == ("libx1", "1.2-3")
    assert package.files == (
        directory("usr/lib"),
        File("usr/lib/libx.so.1.2", b"code", 0o644),
        symlink("usr/lib/libx.so.1", "libx.so.1.2"),
        File("usr/bin/second", b"code", 0o644),
    )


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"!<arch>\n", deb("x", [])[:-40]])
def test_what_is_no_package_is_refused(data: bytes) -> None:
    with pytest.raises(NotAPackageError):
        read_package(data)


def test_a_package_with_a_device_is_refused() -> None:
    whole = deb("x", [])
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = tarfile.TarInfo("./dev/null")
        info.type = tarfile.CHRTYPE
        archive.addfile(info)
    data = lzma.compress(packed.getvalue())
    header = f"{'data.tar.xz':<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
    with pytest.raises(NotAPackageError, match="dev/null"):
        read_package(whole[: whole.index(b"data.tar.xz")] + header + data)


def test_licences_stay_and_what_no_program_opens_goes() -> None:
    kept_paths = ("usr/share/doc/libx1/copyright", "usr/lib/python3.11/os.py", "etc/os-release")
    gone_paths = ("usr/share/doc/libx1/changelog.gz", "usr/share/man/man1/x.1", "usr/lib/x/gconv/UTF-16.so")
    assert [path for path in (*kept_paths, *gone_paths) if is_included(File(path))] == list(kept_paths)
    assert not is_included(File("etc/netconfig"), left_out=("etc/netconfig",))
    assert not is_included(directory("usr/share/doc/libx1"))


def test_the_system_has_authorities_users_and_no_shell() -> None:
    authorities = [File(f"usr/share/ca-certificates/mozilla/{name}.crt", name.encode()) for name in ("B", "A")]
    package = read_package(deb("ca-certificates", [*authorities, File("bin/tool", b"x")]))
    files = tree(system_files([package]))
    assert files["etc/ssl/certs/ca-certificates.crt"].content == b"AB"
    assert files["bin"] == symlink("bin", "usr/bin")
    assert files["tmp"].mode == 0o1777
    assert [line.split(b":")[2:4] for line in files["etc/passwd"].content.splitlines()] == [
        [b"0", b"0"],
        [b"65532"] * 2,
    ]


def test_scanners_find_exactly_the_packages() -> None:
    present, absent, licence = (
        read_package(deb(name, [File(path, b"x")]))
        for name, path in (("here", "usr/bin/x"), ("gone", "usr/bin/y"), ("licence", "usr/share/doc/l/copyright"))
    )
    (found,) = dpkg_status([present, absent, licence], tree([File("usr/bin/x"), File("usr/share/doc/l/copyright")]))
    assert found == File("var/lib/dpkg/status.d/here", present.control.encode())


def test_of_a_wheel_packages_and_metadata_are_kept() -> None:
    data = wheel(
        {
            "lib/__init__.py": b"1",
            "lib/tests/test_lib.py": b"2",
            "lib/_core.c": b"3",
            "lib/py.typed": b"",
            "lib-1.0.dist-info/METADATA": b"4",
            "lib-1.0.data/platlib/lib/_core.so": b"5",
            "lib-1.0.data/scripts/tool": b"6",
        }
    )
    assert {file.path.removeprefix(f"{SITE}/"): file.content for file in wheel_files(data)} == {
        "lib/__init__.py": b"1",
        "lib/py.typed": b"",
        "lib-1.0.dist-info/METADATA": b"4",
        "lib/_core.so": b"5",
    }


def test_program_starts_python_and_its_function() -> None:
    assert program("tool", "package.module:main") == File(
        "usr/local/bin/tool",
        b"#!/usr/bin/python3 -IuB\nimport sys\n\nfrom package.module import main\n\nsys.exit(main())\n",
        0o755,
    )
