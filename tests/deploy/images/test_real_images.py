"""Real images: built, run, and carried through Debian's registry. `make test-kubernetes` runs these as root."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from deploy.images.building.image_build import BuiltImage, build
from deploy.images.building.layers import merged, write_tree
from deploy.images.building.oci_archive import blob_path
from deploy.images.catalogue import IMAGES, NON_ROOT
from deploy.images.formats import oci
from deploy.images.inputs.checkout import Checkout
from deploy.images.push import PushTarget, push
from deploy.images.rules.platforms import PLATFORMS
from deploy.neonvm.network.sockets import free_port
from deploy.neonvm.qemu.accelerator import MACHINE
from deploy.release.assemble import assemble
from tests.deploy.images.checked_out import SERVICES, maker
from tests.deploy.images.debian_registry import registry_program, serving
from vm_image.build import FIRST_LINE

pytestmark = pytest.mark.kubernetes

AGENT = IMAGES["autoscaler-agent"]
REFERENCE = "localhost:5001/autoscaler-agent:dev"


def test_the_agents_image_is_small(tmp_path: Path) -> None:
    assert build(AGENT, maker(), REFERENCE, tmp_path).size < 60e6


@pytest.mark.parametrize("name", [image.name for image in SERVICES])
def test_image_runs_rootless_without_shell(name: str, tmp_path: Path) -> None:
    write_tree(merged(maker().layers_of(IMAGES[name])), tmp_path)
    tmp_path.chmod(0o755)
    user = f"--userspec={IMAGES[name].user}" if IMAGES[name].user else "--userspec=0:0"
    command = ["chroot", user, str(tmp_path), f"/usr/local/bin/{name}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage:" in done.stdout
    for shell in ("sh", "bash", "pip", "apt-get", "dpkg"):
        found = subprocess.run(["chroot", str(tmp_path), shell, "--version"], capture_output=True, check=False)
        assert found.returncode == 127


def test_the_agent_is_built_for_another_machine_too(tmp_path: Path) -> None:
    built = build(AGENT, maker("linux/arm64"), REFERENCE, tmp_path)
    with tarfile.open(built.path) as archive:
        (entry,) = json.loads(read(archive, "index.json"))["manifests"]
        manifest = json.loads(read(archive, blob_path(entry["digest"])))
        config = json.loads(read(archive, blob_path(manifest["config"]["digest"])))
    assert entry["platform"] == {"architecture": "arm64", "os": "linux"}
    assert (config["architecture"], config["config"]["User"]) == ("arm64", "65532:65532")


def read(archive: tarfile.TarFile, name: str) -> bytes:
    found = archive.extractfile(name)
    assert found is not None
    return found.read()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Debian's registry on a free port of this machine."""
    with serving(tmp_path, registry_program(tmp_path), free_port()) as address:
        yield address


def test_air_gapped_release_pushes_itself(tmp_path: Path, registry: str) -> None:
    built = build(AGENT, maker(), REFERENCE, tmp_path / "built")
    release = assemble(Checkout(), [built.path], tmp_path / "release")
    there = tmp_path / "there"
    there.mkdir()
    subprocess.run(["tar", "--extract", f"--file={release.airgapped}", f"--directory={there}"], check=True)
    (folder,) = there.iterdir()
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    done = subprocess.run([folder / "push_images.py", registry, "v1"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{registry}/{AGENT.name}@{built.digest}\n"
    assert pulled(registry, "v1") == blobs_of(built)


def test_registry_round_trip_keeps_image(tmp_path: Path, registry: str) -> None:
    built = build(AGENT, maker(), REFERENCE, tmp_path)
    digest = push({built.platform.debian: built.path}, PushTarget(registry, AGENT.name, "v1"), print)
    assert digest == built.digest
    assert pulled(registry, "v1") == blobs_of(built)


def test_registry_round_trip_keeps_platforms(tmp_path: Path, registry: str) -> None:
    built = [build(AGENT, maker(name), REFERENCE, tmp_path) for name in PLATFORMS]
    digest = push({each.platform.debian: each.path for each in built}, PushTarget(registry, AGENT.name, "v1"), print)
    answer = httpx.get(f"http://{registry}/v2/{AGENT.name}/manifests/v1", headers={"Accept": oci.INDEX})
    assert oci.digest_of(answer.content) == digest
    assert [each["digest"] for each in answer.json()["manifests"]] == [each.digest for each in built]
    for each in built:
        assert pulled(registry, each.digest) == blobs_of(each)


def pulled(registry: str, reference: str) -> dict[str, str]:
    """The digests of all that an image in the registry consists of, by their names there."""
    base = f"http://{registry}/v2/{AGENT.name}"
    manifest = httpx.get(f"{base}/manifests/{reference}", headers={"Accept": oci.MANIFEST}).raise_for_status()
    document = manifest.json()
    names = [part["digest"] for part in (document["config"], *document["layers"])]
    blobs = {
        name: httpx.get(f"{base}/blobs/{name}", follow_redirects=True).raise_for_status().content for name in names
    }
    found = {**blobs, manifest.headers["Docker-Content-Digest"]: manifest.content}
    return {name: oci.digest_of(content) for name, content in found.items()}


def blobs_of(built: BuiltImage) -> dict[str, str]:
    """The same of an archive."""
    with tarfile.open(built.path) as archive:
        names = [name for name in archive.getnames() if name.startswith("blobs/")]
        return {name.removeprefix("blobs/").replace("/", ":"): oci.digest_of(read(archive, name)) for name in names}


def test_the_runners_image_boots_a_guest_without_root(tmp_path: Path) -> None:
    write_tree(merged(maker().layers_of(IMAGES["neonvm-runner"])), tmp_path)
    tmp_path.chmod(0o755)
    qemu = ["chroot", f"--userspec={NON_ROOT}", str(tmp_path), "/usr/bin/qemu-system-x86_64", "-machine", MACHINE]
    boot = ["-kernel", "/vm/kernel/vmlinuz", "-initrd", "/vm/kernel/initrd", "-append", "console=ttyS0 panic=-1"]
    rest = ["-accel", "tcg", "-m", "256", "-display", "none", "-nodefaults", "-serial", "stdio", "-no-reboot"]
    done = subprocess.run([*qemu, *rest, *boot], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert FIRST_LINE in done.stdout
