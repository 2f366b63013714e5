"""A node's containerd imports an archive under the name and the digest that the build said."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.images.building.image_build import build, native_platform
from deploy.images.building.layers import LayerMaker
from deploy.images.catalogue import IMAGES
from deploy.images.inputs.checkout import Checkout
from deploy.local.kubernetes.programs.build import Builder
from deploy.local.kubernetes.programs.toolchain import find_go
from deploy.local.kubernetes.programs.versions import CONTAINERD
from vm_image.recipe import Origin

pytestmark = pytest.mark.kubernetes

REFERENCE = "localhost:5001/autoscaler-agent:dev"
SETTINGS = """
version = 3
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"]
[grpc]
address = "{folder}/socket"
"""

Ctr = Callable[..., str]


@pytest.fixture
def ctr(tmp_path: Path) -> Iterator[Ctr]:
    """The client of a containerd that keeps everything in this test's folder."""
    programs = Builder.default(find_go()).ensure(CONTAINERD, print)
    (tmp_path / "config.toml").write_text(SETTINGS.format(folder=tmp_path))
    client = [str(programs / "ctr"), "--address", str(tmp_path / "socket"), "--namespace", "k8s.io"]

    def call(*words: str) -> str:
        return subprocess.run([*client, *words], capture_output=True, text=True, check=True).stdout

    command = [str(programs / "containerd"), "--config", str(tmp_path / "config.toml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(tmp_path / "socket")
            yield call
        finally:
            process.terminate()


def wait_for(path: Path) -> None:
    for _ in range(200):
        if path.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"there is no {path}")


def test_containerd_lists_image_name_and_digest(tmp_path: Path, ctr: Ctr) -> None:
    native = native_platform()
    maker = LayerMaker(Checkout(), native, native, Origin(), print)
    built = build(IMAGES["autoscaler-agent"], maker, REFERENCE, tmp_path)
    ctr("image", "import", str(built.path))
    (line,) = ctr("image", "ls", f"name=={REFERENCE}").splitlines()[1:]
    assert line.split()[:3] == [REFERENCE, "application/vnd.oci.image.manifest.v1+json", built.digest]
    assert f"linux/{native.debian}" in line
