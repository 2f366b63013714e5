"""The guest's scripts, as they are in the image: how its daemon answers, and which CPUs are switched on.

What a kernel has to do with it is tested in real guests (``tests/vm``).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from vm_image import recipe

SCRIPTS = recipe.HERE / "rootfs"


def test_daemon_sends_content_length() -> None:
    """NeonVM's runner reads the CPU by Go's ``ParseUint``, which takes digits and nothing else."""
    asked = "POST /cpu HTTP/1.1\r\nHost: guest\r\n\r\n"
    answer = subprocess.run(
        ["sh", SCRIPTS / "daemon.sh"], input=asked.encode(), capture_output=True, check=True, timeout=10
    ).stdout
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.splitlines()[0] == b"HTTP/1.1 405 Method Not Allowed"
    assert f"Content-Length: {len(body)}".encode() in head.splitlines()
    assert body == b"/cpu supports only GET; /cpu also supports PUT"


@pytest.mark.parametrize(
    ("path", "status"),
    [("/cpu", 401), ("/cpu?", 401), ("/cpu?theirs", 401), ("/cpu?ours/", 401), ("/shutdown", 401), ("/cpu?ours", 405)],
)
def test_daemon_requires_its_token(path: str, status: int) -> None:
    answer = subprocess.run(
        ["sh", SCRIPTS / "daemon.sh"],
        input=f"POST {path} HTTP/1.1\r\n\r\n".encode(),
        env={"AUTOSCALE_TOKEN": "ours"},
        capture_output=True,
        check=True,
        timeout=10,
    ).stdout
    assert answer.split()[1] == str(status).encode()


@pytest.mark.parametrize("path", ["/shutdown", "/password", "/freeze", "/spare"])
def test_neighbours_on_flat_network_are_refused(path: str) -> None:
    """With NeonVM's runner every VM of the flat network reaches the daemon, and could power off the others."""
    answer = subprocess.run(
        ["sh", SCRIPTS / "daemon.sh"],
        input=f"PUT {path} HTTP/1.1\r\nContent-Length: 1\r\n\r\nx".encode(),
        env={},
        capture_output=True,
        check=True,
        timeout=10,
    ).stdout
    assert answer.split()[1] == b"404"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/spare", 404),
        ("PUT", "/freeze", 404),
        ("POST", "/x", 404),
    ],
)
def test_daemon_takes_sleep_on_private_link(method: str, path: str, status: int) -> None:
    """Under NeonVM's own runner, whose kernel command line we do not control, any client may send requests."""
    answer = subprocess.run(
        ["sh", SCRIPTS / "daemon.sh"],
        input=f"{method} {path} HTTP/1.1\r\nContent-Length: 0\r\n\r\n".encode(),
        capture_output=True,
        check=True,
        timeout=10,
    ).stdout
    assert answer.split()[1] == str(status).encode()


def test_session_of_dead_client_ends_while_awake() -> None:
    """The guest's timers stand still in its sleep. With the kernel's two hours, a database that is woken for a quarter
    of an hour a day would keep such sessions for nine days, and run out of connections.
    """
    lines = (line.split("=") for line in (SCRIPTS / "postgresql.conf").read_text().splitlines() if "=" in line)
    settings = {name.strip(): value.strip() for name, value in lines}
    idle, interval, count = (int(settings.get(f"tcp_keepalives_{name}", 0)) for name in ("idle", "interval", "count"))
    assert 300 <= idle < idle + interval * count < 600


@pytest.mark.parametrize(
    ("said", "online"),
    [
        ({"SUBSYSTEM": "cpu", "ACTION": "add"}, ["1", "1"]),
        ({}, ["1", "1"]),
        ({"SUBSYSTEM": "cpu", "ACTION": "offline"}, ["1", "0"]),
        ({"SUBSYSTEM": "memory", "ACTION": "add"}, ["1", "0"]),
    ],
)
def test_plugged_cpu_goes_online(tmp_path: Path, said: dict[str, str], online: list[str]) -> None:
    """NeonVM's QmpScaling leaves that to the guest; nothing else that happens to the machine switches a CPU."""
    for name in ("cpu0", "cpu1", "cpu2", "cpufreq"):
        (tmp_path / name).mkdir()
    for name, state in (("cpu1", "1"), ("cpu2", "0")):
        (tmp_path / name / "online").write_text(f"{state}\n")
    subprocess.run(["sh", SCRIPTS / "plugged.sh", tmp_path], env=said, check=True, timeout=10)
    assert [(tmp_path / name / "online").read_text().strip() for name in ("cpu1", "cpu2")] == online
