"""Folders of pods on a node: what pods leave there, and that no pod's failure keeps a tap from another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.kube.informer import Informer
from deploy.neonvm.overlay.node_network import NodeNetwork, NodeNetworkDependencies
from deploy.neonvm.overlay.node_plan import NodePlace
from deploy.neonvm.overlay.taps import forget, open_folders, waiting
from deploy.neonvm.ports import NetworkError
from deploy.neonvm.runner.flat_tap import SOCKET
from protocol.kubernetes.objects import Json, uid_of
from protocol.kubernetes.resources import NODES, PODS
from tests.fake_clock import FakeClock
from tests.neonvm.in_process import InProcess


def folder(root: Path, uid: str, *files: str, age: float = 0.0) -> Path:
    found = root / uid
    found.mkdir()
    for name in files:
        (found / name).write_text("")
    os.utime(found, (1000.0 - age, 1000.0 - age))
    return found


def test_whatever_a_gone_pod_has_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    outside = tmp_path.with_name(f"{tmp_path.name}-outside")
    outside.mkdir()
    (outside / "kept").write_text("")
    old = folder(tmp_path, "old", SOCKET, "theirs", age=700)
    (old / "below").mkdir()
    (old / "link").symlink_to(outside)
    os.utime(old, (300.0, 300.0))
    folder(tmp_path, "present", SOCKET, age=700)
    folder(tmp_path, "new", SOCKET)
    forget(tmp_path, {"present"}, 400.0)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["new", "present"]
    assert (outside / "kept").exists()


def test_only_folders_of_pods_are_opened(tmp_path: Path) -> None:
    target = tmp_path.with_name(f"{tmp_path.name}-target")
    target.mkdir(mode=0o700)
    folder(tmp_path, "pod").chmod(0o755)
    (tmp_path / "link").symlink_to(target)
    open_folders(tmp_path)
    modes = {each: each.stat().st_mode & 0o777 for each in (tmp_path, tmp_path / "pod", target)}
    assert list(modes.values()) == [0o777, 0o777, 0o700]


class OneFails(NodeNetwork):
    """A node's network whose first pod gets no tap."""

    def __init__(self, deps: NodeNetworkDependencies) -> None:
        super().__init__(NodePlace("n1", "10.0.0.1", 1500), deps)
        self.plugged: list[str] = []

    async def _address(self, pod: Json) -> str:
        return f"10.0.0.{uid_of(pod)[-1]}"

    async def _plug_in(self, uid: str, address: str) -> None:
        if not self.plugged:
            self.plugged.append("")
            raise NetworkError("this one cannot be plugged in")
        self.plugged.append(uid)


async def test_a_pod_that_cannot_be_plugged_in_keeps_no_other_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = InProcess().client()
    for name in ("a", "b"):
        spec: Json = {"nodeName": "n1", "containers": [{"name": "neonvm-runner", "image": "x"}]}
        pod: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        folder(tmp_path, uid_of(await client.create(PODS, "default", pod)), SOCKET)
    network = OneFails(NodeNetworkDependencies(client, Informer(client, NODES, FakeClock()), FakeClock(), tmp_path))
    uids = waiting(tmp_path)
    await network.serve(uids)
    assert network.plugged == ["", uids[1]]
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [
        "a pod could not be plugged in yet"
    ]
