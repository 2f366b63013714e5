"""What the build says when the machine lacks something, and what a failed step leaves to read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vm_image import host
from vm_image.host import BuildError


def test_tools_that_are_there_need_nothing_done() -> None:
    host.ensure_tools(pytest.fail, {"sh": "dash"})


def test_a_user_without_root_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BuildError) as refused:
        host.ensure_tools(pytest.fail, {"no-such-tool": "toolbox", "sh": "dash"})
    assert "missing packages: toolbox" in str(refused.value)
    assert "sudo apt-get install --yes --no-install-recommends toolbox" in str(refused.value)


def test_root_acts_by_itself_and_a_user_in_a_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert host.as_root() == ()
    host.check_rootless()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert host.as_root() == ("unshare", "--map-root-user", "--map-auto", "--")


def test_a_step_that_does_not_listen_is_killed_with_all_of_its_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt(line)

    monkeypatch.setattr(host, "_GRACE_SECONDS", 0.01)
    script = "trap '' TERM; sh -c 'echo $$; echo I: working; exec tail -f /dev/null'"
    with pytest.raises(KeyboardInterrupt, match="working"):
        host.run(["sh", "-c", script], tmp_path / "log", interrupt)
    assert not runs(int((tmp_path / "log").read_text().split()[0]))


def runs(process: int) -> bool:
    """Whether there is more of a process than the entry that its parent has yet to remove."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes() != b""
    except FileNotFoundError:
        return False


def test_a_step_tells_its_progress_and_keeps_all_of_its_output(tmp_path: Path) -> None:
    told: list[str] = []
    script = "echo I: unpacking; echo noise; echo I: running --hook; echo I: done >&2"
    host.run(["sh", "-c", script], tmp_path / "log", told.append)
    assert told == ["unpacking", "done"]
    assert (tmp_path / "log").read_text() == "I: unpacking\nnoise\nI: running --hook\nI: done\n"


def test_a_failed_step_is_quoted_with_the_end_of_its_output(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as failed:
        host.run(["sh", "-c", "seq 1 30; exit 3"], tmp_path / "log", pytest.fail)
    assert "failed with code 3" in str(failed.value)
    assert str(failed.value).split("\n")[1:] == [str(number) for number in range(16, 31)]


def test_an_interrupted_step_cleans_up_before_the_interruption_goes_on(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt(line)

    cleaned = tmp_path / "cleaned"
    script = f"trap 'touch {cleaned}; exit 1' TERM; echo I: working; while :; do read -r line || :; done"
    with pytest.raises(KeyboardInterrupt, match="working"):
        host.run(["sh", "-c", script], tmp_path / "log", interrupt)
    assert cleaned.exists()
