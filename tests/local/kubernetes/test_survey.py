"""Survey of a machine whose programs are replaced by test scripts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deploy.local.kubernetes.machine.survey import machine_size
from deploy.local.kubernetes.programs.toolchain import NoGoError, find_go
from protocol.units import Bytes


def go_in(folder: Path, version: str) -> None:
    folder.mkdir()
    program = folder / "go"
    program.write_text(f"#!/bin/sh\necho {version}\n")
    program.chmod(0o755)


def test_go_is_taken_from_the_path_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_in(tmp_path / "first", "go1.99.1")
    monkeypatch.setenv("PATH", str(tmp_path / "first"))
    found = find_go()
    assert (found.go, found.version) == (tmp_path / "first" / "go", "go1.99.1")


def test_go_is_also_found_beside_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the package that brings Go puts it."""
    go_in(tmp_path / "bin", "go1.98.0")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert find_go().version == "go1.98.0"


@pytest.mark.parametrize(("version", "complaint"), [("go1.20.3", "go1.20.3 is too old"), ("devel", "unknown version")])
def test_unsuitable_go_names_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, complaint: str
) -> None:
    go_in(tmp_path / "old", version)
    monkeypatch.setenv("PATH", str(tmp_path / "old"))
    with pytest.raises(NoGoError, match=rf"{complaint}.*install Go 1\.21 or newer"):
        find_go()


def test_build_ignores_user_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_in(tmp_path / "first", "go1.99.1")
    monkeypatch.setenv("PATH", str(tmp_path / "first"))
    for name, value in (("GOOS", "plan9"), ("GOFLAGS", "-race"), ("CGO_ENABLED", "1"), ("GOPROXY", "file:///mirror")):
        monkeypatch.setenv(name, value)
    used = find_go().environment()
    assert ("GOOS" in used, used["GOFLAGS"], used["CGO_ENABLED"], used["GOPROXY"]) == (
        False,
        "-mod=readonly",
        "0",
        "file:///mirror",
    )


def test_machine_memory_comes_from_kernel(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       24684084 kB\nMemFree:        100 kB\n")
    assert machine_size(tmp_path / "meminfo").mem == Bytes(24684084 * 1024)
