"""Commands on machines that are not as they should be: one line says why, and the exit status means one thing."""

from __future__ import annotations

import errno
import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from deploy.local.cluster import launch as launch_module
from deploy.local.cluster.folder import ClusterFolder, clusters_root
from deploy.local.cluster.progress import StepFailedError
from deploy.local.cluster.spec import ClusterSpec, SpecError
from protocol.kubernetes.proxies import ProxyError
from scripts import entry_points
from scripts.autoscale import main as program
from scripts.autoscale.history.finding import opened_history
from scripts.autoscale.local import print_ready
from scripts.autoscale.running import CRASHED, reason_of
from scripts.autoscale.stages import show_failure
from scripts.autoscale.terminal.streams import prepare_streams
from tests.scripts.test_clusters import written

ROOT = Path(__file__).parents[2]


def ran(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A command in a separate process, with a cluster whose API server does not respond."""
    path = written(folder / "config", "https://127.0.0.1:1")
    env = {**os.environ, "AUTOSCALE_HOME": str(folder / "home"), "KUBECONFIG": str(path), **environment}
    command = [sys.executable, "-m", "scripts.autoscale.main", *arguments]
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_check_prints_in_any_encoding(encoding: str, tmp_path: Path) -> None:
    """It ended with a UnicodeEncodeError and status 1, which means warnings."""
    done = ran(tmp_path, "check", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (2, b"")
    assert {"-> ", "x " if encoding == "ascii" else "× "} <= {
        sign for sign in ("-> ", "x ", "× ") if sign in done.stdout.decode(encoding)
    }


@pytest.mark.parametrize("columns", ["0", "-1", "wide"])
def test_width_that_cannot_be_is_forgotten(columns: str, tmp_path: Path) -> None:
    done = ran(tmp_path, "local", "down", "--name", f"no-{os.getpid()}", COLUMNS=columns, LINES=columns)
    assert b"There is no cluster" in done.stdout


def test_home_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    home = str(tmp_path / "file" / "state")
    arguments = ("local", "up", "--guests", "simulated", "--name", f"no-{os.getpid()}")
    done = ran(tmp_path, *arguments, AUTOSCALE_HOME=home)
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"autoscale: {home}")
    assert line.endswith(": Not a directory; set AUTOSCALE_HOME to a writable folder")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--node-cpu", "-1"), "invalid node size: expected a quantity of zero or more, got '-1'"),
        (("--node-memory", "0"), "invalid node size: expected CPU and memory above zero, got 2 and 0"),
        (("--node-taint", "node-1"), "a node taint must be NODE=KEY[=VALUE]:EFFECT"),
        (("--policy", "none.yaml"), "none.yaml: No such file or directory"),
        (("--policy", "README.md"), "README.md: "),
        (("--load", "none.csv"), "the load 'none.csv' is not idle, waves or a readable recording"),
    ],
)
def test_local_up_refuses_invalid_option(arguments: Sequence[str], message: str, tmp_path: Path) -> None:
    options = ("--guests", "simulated", "--node-cpu", "2", "--name", f"no-{os.getpid()}")
    done = ran(tmp_path, "local", "up", *options, *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.decode().replace("│", "").split())


@pytest.mark.parametrize("port", ["0", "65536"])
def test_port_that_cannot_be_is_refused(port: str, tmp_path: Path) -> None:
    """It printed an address that led nowhere."""
    assert ran(tmp_path, "local", "address", "db", "--port", port).returncode == 2


def test_status_of_stopped_cluster_names_remedy(tmp_path: Path) -> None:
    done = ran(tmp_path, "local", "status", "--name", "shop")
    assert done.returncode == 3
    assert done.stdout == b"The cluster 'shop' is not running; start it: autoscale local up --name shop\n"


def test_cluster_that_runs_is_refused_on_stderr(tmp_path: Path) -> None:
    name = f"busy-{os.getpid()}"
    with ClusterFolder(name, tmp_path / "home" / name).locked():
        done = ran(tmp_path, "local", "up", "--guests", "simulated", "--name", name)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(f"autoscale: cluster {name!r} is already running".encode())


def test_bench_refuses_simulated_guests(tmp_path: Path) -> None:
    """It made a Secret, and failed with pgbench's "server closed the connection unexpectedly"."""
    folder = ClusterFolder(f"simulated-{os.getpid()}", tmp_path / "home" / f"simulated-{os.getpid()}")
    with folder.locked():
        folder.write_spec(ClusterSpec(guests="simulated"))
        written(folder.kubeconfig, "https://127.0.0.1:1")
        done = ran(tmp_path, "bench", "db", "--name", folder.name)
    assert done.returncode == 2
    assert "its guests are simulated and run no postgres" in " ".join(done.stderr.decode().replace("│", "").split())


def test_full_disk_is_named_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is empty then, and "the api-server exited during startup" was all."""
    failure = StepFailedError("the api-server exited during startup", str(tmp_path / "api-server.log"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: (2**30, 2**30 - 4096, 4096))
    out = io.StringIO()
    show_failure(Console(file=out, width=300), failure)
    assert f"no space left on the disk of {tmp_path}" in out.getvalue()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: (2**30, 0, 2**30))
    enough = io.StringIO()
    show_failure(Console(file=enough), failure)
    assert enough.getvalue() == "✗ the api-server exited during startup\n"


def test_printed_commands_allow_spaces_in_folders(tmp_path: Path) -> None:
    """Pasted, the line set KUBECONFIG to a part of the path, which no file has."""
    folder, out = ClusterFolder("local", tmp_path / "a home" / "local"), io.StringIO()
    print_ready(Console(file=out), folder, ClusterSpec())
    exported = shlex.split(out.getvalue().splitlines()[1])
    assert exported == ["export", f"KUBECONFIG={folder.kubeconfig}"]


def test_proxy_for_everything_is_not_read(tmp_path: Path) -> None:
    """As kubectl; httpx demands another package for it, with a traceback."""
    done = ran(tmp_path, "top", "--once", ALL_PROXY="socks5://127.0.0.1:1", all_proxy="socks5://127.0.0.1:1")
    (line,) = done.stderr.decode().splitlines()
    assert (done.returncode, "Connect" in line, "proxy" in line.lower()) == (1, True, False)


def test_ctrl_c_during_imports_ends_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The imports of a command take a second or more, and ended with a traceback."""

    def app(*_: object, **__: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "app", app)
    with pytest.raises(SystemExit) as ended:
        entry_points.autoscale()
    assert (ended.value.code, capsys.readouterr().err) == (130, "")


def test_crash_has_a_status_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def app(*_: object, **__: object) -> object:
        return lambda **_: 1 // 0

    monkeypatch.setattr(program, "app", app)
    monkeypatch.setattr(sys, "argv", ["autoscale", "check"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    said = capsys.readouterr().err
    assert (ended.value.code, "ZeroDivisionError" in said) == (CRASHED, True)
    assert said.endswith("internal error; please report it with the lines above\n")


@pytest.mark.parametrize(("command", "status"), [("check", 2), ("top", 1)])
def test_misfortune_outside_of_a_command_is_one_line(
    command: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(*_: object, **__: object) -> object:
        def fails(**_: object) -> None:
            raise ExceptionGroup("x", [OSError(errno.ENOSPC, "No space left on device", "/var")])

        return fails

    monkeypatch.setattr(program, "app", app)
    monkeypatch.setattr(sys, "argv", ["autoscale", command])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert (ended.value.code, capsys.readouterr().err) == (status, "autoscale: /var: No space left on device\n")


def test_system_errors_are_distinguished_from_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOSCALE_HOME", "/state")
    remedy = "set AUTOSCALE_HOME to a writable folder"
    full = OSError(errno.EMFILE, "Too many open files")
    assert reason_of(full) == "Too many open files; raise the limit of open files (ulimit -n)"
    assert reason_of(OSError(errno.EROFS, "Read-only", "/state/a")) == f"/state/a: Read-only; {remedy}"
    assert reason_of(OSError(errno.EACCES, "No", "/etc/x")) == "/etc/x: No"
    assert reason_of(OSError(errno.EEXIST, "File exists", "/home/me")) == "/home/me: File exists"
    assert [reason_of(each) for each in (OSError("odd"), OSError(errno.EBADF, "x"), ValueError("x"))] == ["", "", ""]


def test_missing_home_folder_suggests_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.delenv("AUTOSCALE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(FileNotFoundError) as missing:
        clusters_root()
    assert reason_of(missing.value) == "no home folder: set AUTOSCALE_HOME or HOME"


async def test_local_cluster_is_refused_with_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hard limit of 256 it was up, and wrote 25 MB of log in 15 s."""
    monkeypatch.setattr(launch_module, "open_files_limit", lambda: 256)
    folder = ClusterFolder(f"few-{os.getpid()}", tmp_path / "few")
    with pytest.raises(SpecError, match=r"needs 1024 open files, the limit is 256: raise the hard limit"):
        await launch_module.launch(folder, ClusterSpec(guests="simulated"), attached=True)
    assert not folder.root.exists()


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_signs_are_spelt_where_an_encoding_lacks_them(errors: str) -> None:
    """Python gives stdout ``surrogateescape`` in the locales C and POSIX."""
    kept = io.BytesIO()
    stream = io.TextIOWrapper(kept, encoding="ascii", errors=errors, write_through=True)
    environment = {"COLUMNS": "80", "LINES": "0"}
    prepare_streams(environment, stream, io.StringIO())
    stream.write("✓ node-1 ⇢ node-2 … 漢")
    assert (kept.getvalue(), environment) == (b"+ node-1 -> node-2 ... ?", {"COLUMNS": "80"})
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", "autoscale-signs")


# One rule for proxies ----------------------------------------------------------------------------------------------


async def test_prometheus_obeys_the_rule_of_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    async with opened_history(Path("none"), "https://prometheus.invalid"):
        """It opens."""
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(ProxyError) as refused:
        async with opened_history(Path("none"), "https://prometheus.invalid"):
            """It does not."""
    assert reason_of(refused.value).startswith("HTTPS_PROXY: SOCKS proxies are not supported")
