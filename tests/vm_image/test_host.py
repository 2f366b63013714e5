"""Messages of the build if the machine lacks something, and the output of a failed step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vm_image import host
from vm_image.host import BuildError


def test_installed_tools_need_no_action() -> None:
    host.ensure_tools(pytest.fail, {"sh": "dash"})


def test_missing_packages_are_named_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BuildError) as refused:
        host.ensure_tools(pytest.fail, {"no-such-tool": "toolbox", "sh": "dash"})
    assert "missing packages: toolbox" in str(refused.value)
    assert "sudo apt-get install --yes --no-install-recommends toolbox" in str(refused.value)


def test_user_runs_in_namespace_root_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert host.as_root() == ()
    host.check_rootless()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert host.as_root() == ("unshare", "--map-root-user", "--map-auto", "--")


def test_unresponsive_step_is_killed_with_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt(line)

    monkeypatch.setattr(host, "_GRACE_SECONDS", 0.01)
    script = "trap '' TERM; sh -c 'echo $$; echo I: working; exec tail -f /dev/null'"
    with pytest.raises(KeyboardInterrupt, match="working"):
        host.run(["sh", "-c", script], tmp_path / "log", interrupt)
    assert not runs(int((tmp_path / "log").read_text().split()[0]))


def runs(process: int) -> bool:
    """True if there is more of a process than the entry that its parent has yet to remove."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes() != b""
    except FileNotFoundError:
        return False


def test_step_reports_progress_and_keeps_output(tmp_path: Path) -> None:
    told: list[str] = []
    script = "echo I: unpacking; echo noise; echo I: running --hook; echo I: done >&2"
    host.run(["sh", "-c", script], tmp_path / "log", told.append)
    assert told == ["unpacking", "done"]
    assert (tmp_path / "log").read_text() == "I: unpacking\nnoise\nI: running --hook\nI: done\n"


def test_failed_step_quotes_its_last_output(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as failed:
        host.run(["sh", "-c", "seq 1 30; exit 3"], tmp_path / "log", pytest.fail)
    assert "failed with code 3" in str(failed.value)
    assert str(failed.value).split("\n")[1:] == [str(number) for number in range(16, 31)]


def test_interrupted_step_cleans_up_first(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt(line)

    cleaned = tmp_path / "cleaned"
    script = f"trap 'touch {cleaned}; exit 1' TERM; echo I: working; while :; do read -r line || :; done"
    with pytest.raises(KeyboardInterrupt, match="working"):
        host.run(["sh", "-c", script], tmp_path / "log", interrupt)
    assert cleaned.exists()
