"""``python -m agent.reclaimer`` as a process: its settings, its one line, its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent.reclaimer.__main__ import main
from agent.reclaimer.messages import LONGEST_LINE, HoldReply, HoldRequest, read_held, write_line
from protocol import VERSION
from tests.agent.cgroups.trees import MIB, UID, Layout, Tree


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    """It releases its holds, logs one line, and exits with 0. A socket of root is also open to the agent's UID."""
    tree = Tree(tmp_path / "cgroup", Layout(is_v2=True, is_systemd=False)).make()
    path = tmp_path / "reclaimer.sock"
    environment = {**os.environ, "CGROUP_ROOT": str(tree.root), "RECLAIMER_SOCKET": str(path)}
    environment["RECLAIMER_RECORDS"] = str(tmp_path / "holds")
    command = [sys.executable, "-m", "agent.reclaimer"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = json.loads(process.stderr.readline())
        if os.getuid() in (0, 65532):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                connection.sendall(write_line(HoldRequest(UID, 300 * MIB)))
                assert read_held(connection.recv(LONGEST_LINE)) == HoldReply(400 * MIB)
                assert tree.file("memory.high", of_pod=True).read_text() == str(300 * MIB)
                process.send_signal(number)
                rest = process.stderr.read()
        else:
            process.send_signal(number)
            rest = process.stderr.read()
    assert (process.returncode, rest, path.stat().st_mode & 0o777) == (0, "", 0o666)
    assert tree.file("memory.high", of_pod=True).read_text().strip() == "max"
    assert {name: line[name] for name in line if name != "ts"} == {
        "level": "info",
        "logger": "reclaimer",
        "msg": "the reclaimer is ready",
        "version": VERSION,
        "CGROUP_ROOT": str(tree.root),
        "RECLAIMER_SOCKET": str(path),
        "RECLAIMER_RECORDS": str(tmp_path / "holds"),
        "restored": [],
    }


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert "--cgroup-root CGROUP_ROOT" in shown
    assert "(default: /run/reclaimer/reclaimer.sock)" in " ".join(shown.split())


def test_socket_without_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The flag counts more than the variable. Signals are left alone until there is something to stop."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    socket_path, records = str(tmp_path / "a/b"), str(tmp_path / "holds")
    code = main(
        ["--reclaimer-socket", socket_path], {"RECLAIMER_SOCKET": str(tmp_path / "c"), "RECLAIMER_RECORDS": records}
    )
    assert (code, "cannot start: [Errno 2] No such file" in capsys.readouterr().err) == (2, True)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
