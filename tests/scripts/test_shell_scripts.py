"""The shell scripts: each has help, rejects unknown options, and keeps no partial files."""

from __future__ import annotations

import functools
import hashlib
import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from tests.loopback_http import served
from vm_image import host

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path.relative_to(ROOT) for folder in ("scripts", "vm_image") for path in (ROOT / folder).glob("*.sh"))


def run(script: str | Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / script), *arguments]
    env = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/nonexistent",
        **environment,
    }
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env=env, check=False)


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_every_script_explains_itself(script: Path) -> None:
    result = run(script, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: {script}")


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_scripts_refuse_unknown_options(script: Path) -> None:
    result = run(script, "--no-such-option")
    assert result.returncode == 2
    assert "--no-such-option" in result.stderr


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the base class gives it
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the loopback address under which it is served."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    with served(functools.partial(Quiet, directory=folder)) as address:
        yield folder, f"http://{address}"


def publish_plugins(mirror: Path, content: bytes) -> None:
    for arch in ("amd64", "arm64"):
        archive = mirror / f"containernetworking/plugins/releases/download/v1.6.2/cni-plugins-linux-{arch}-v1.6.2.tgz"
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "w:gz") as tar:
            member = tarfile.TarInfo("bridge")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def download_cni(tmp_path: Path, address: str, record: str = "1") -> subprocess.CompletedProcess[str]:
    given = {"DOWNLOADS_SHA256": str(tmp_path / "sums"), "DOWNLOADS_RECORD": record}
    return run("scripts/download-cni.sh", "--dest", str(tmp_path / "cni"), "--mirror", address, **given)


def test_plugins_are_fetched_once_and_recorded(tmp_path: Path, mirror: tuple[Path, str]) -> None:
    folder, address = mirror
    publish_plugins(folder, b"plugin")
    first, second = download_cni(tmp_path, address), download_cni(tmp_path, address)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert (tmp_path / "cni/bridge").read_bytes() == b"plugin"
    assert first.stdout.startswith("fetch ")
    assert second.stdout.startswith("have ")
    (archive,) = (tmp_path / "cni").glob("*.tgz")
    recorded, _, path = (tmp_path / "sums").read_text().strip().partition(" ")
    assert recorded == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert path == f"containernetworking/plugins/releases/download/v1.6.2/{archive.name}"


def test_download_without_a_known_checksum_is_refused(tmp_path: Path, mirror: tuple[Path, str]) -> None:
    """Without the file of checksums, any download was accepted."""
    folder, address = mirror
    publish_plugins(folder, b"plugin")
    result = download_cni(tmp_path, address, record="")
    assert result.returncode == 1
    assert "which is not in " in result.stderr
    assert "DOWNLOADS_RECORD=1" in result.stderr
    assert (list((tmp_path / "cni").iterdir()), (tmp_path / "sums").exists()) == ([], False)


def test_checksums_of_the_plugins_are_kept() -> None:
    listed = dict(line.split()[::-1] for line in (ROOT / "scripts/downloads.sha256").read_text().splitlines())
    for arch in ("amd64", "arm64"):
        name = f"containernetworking/plugins/releases/download/v1.6.2/cni-plugins-linux-{arch}-v1.6.2.tgz"
        assert len(bytes.fromhex(listed[name])) == 32


def test_changed_download_is_refused_and_removed(tmp_path: Path, mirror: tuple[Path, str]) -> None:
    folder, address = mirror
    publish_plugins(folder, b"plugin")
    assert download_cni(tmp_path, address).returncode == 0
    (archive,) = (tmp_path / "cni").glob("*.tgz")
    archive.unlink()
    publish_plugins(folder, b"something else")
    result = download_cni(tmp_path, address)
    assert result.returncode == 1
    assert "the file was deleted" in result.stderr
    assert sorted(path.name for path in (tmp_path / "cni").iterdir()) == ["bridge"]


def test_mirror_without_the_file_is_named(tmp_path: Path, mirror: tuple[Path, str]) -> None:
    _, address = mirror
    result = download_cni(tmp_path, address)
    assert result.returncode == 1
    assert f"Cannot download {address}" in result.stderr
    assert list((tmp_path / "cni").iterdir()) == []


def test_the_deployments_that_would_be_fetched_are_listed() -> None:
    result = run("scripts/download-deployments.sh", "--dry-run")
    assert result.returncode == 0
    names = [line.split(" -> build/deployments/")[1] for line in result.stdout.splitlines()]
    around = ["cert-manager", "multus-dev", "whereabouts"]
    neonvm = ["neonvm", "neonvm-controller", "neonvm-vxlan-controller", "neonvm-runner-image-loader"]
    assert names == [f"{name}.yaml" for name in around + neonvm]


def test_cluster_must_be_named() -> None:
    result = run("scripts/cluster-init.sh")
    assert result.returncode == 2
    assert "--context NAME" in result.stderr


def test_missing_tool_is_named_first(tmp_path: Path) -> None:
    for tool in ("bash", "dirname"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    result = run("scripts/cluster-init.sh", "--context", "nowhere", PATH=str(tmp_path))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "cluster-init.sh: kubectl is not installed\n"


def with_programs(folder: Path, **programs: str) -> str:
    """A PATH of ``folder``: it has bash, and programs that say what is given."""
    bash = shutil.which("bash")
    assert bash is not None
    (folder / "bash").symlink_to(bash)
    for name, text in programs.items():
        (folder / name).write_text(f"#!{bash}\necho {text}\n")
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(("user", "wanted"), [("0", False), ("1000", True)])
def test_missing_guest_packages_are_listed_together(tmp_path: Path, user: str, wanted: bool) -> None:
    result = run("scripts/install-packages.sh", "--check", "guests", PATH=with_programs(tmp_path, id=user))
    assert result.returncode == 1
    missing = result.stderr.partition("\n")[0].removeprefix("Missing packages: ").split()
    assert ({"mmdebstrap", "qemu-utils"} <= {*missing}, "uidmap" in missing) == (True, wanted)


def test_guest_packages_match_the_build() -> None:
    text = (ROOT / "scripts/install-packages.sh").read_text()
    asked_for = {**host.TOOLS, **host.ROOTLESS_TOOLS}
    assert [program for program, package in asked_for.items() if f"{program}:{package}" not in text] == []
