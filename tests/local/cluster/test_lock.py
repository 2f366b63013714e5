"""The lock of a cluster: who holds it, how it is passed on, and what it prevents."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.cluster import folder as locks
from deploy.local.cluster.folder import INHERITED, AlreadyRunningError, ClusterFolder, ClusterLock


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the machine's locks for root."""
    place = tmp_path / "run"
    place.mkdir()
    monkeypatch.setattr(locks, "_MACHINE", place)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return place


@pytest.fixture
def child(tmp_path: Path, machine: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that was given the lock of the cluster ``shop``, and lives until its input is closed."""
    held = ClusterLock.take("shop", tmp_path / "shop")
    code = (
        "import os, sys; from pathlib import Path; from deploy.local.cluster.folder import ClusterLock\n"
        f"ClusterLock.inherited(Path({str(tmp_path / 'shop')!r}), os.environ[{INHERITED!r}])\n"
        "print('has it', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **held.environment},
        pass_fds=held.descriptors,
    )
    held.release()
    assert process.stdout is not None
    assert process.stdout.readline() == "has it\n"
    yield process
    process.communicate()


def test_passed_lock_lasts_with_new_owner(tmp_path: Path, child: subprocess.Popen[str]) -> None:
    folder = tmp_path / "shop"
    assert (ClusterFolder("name", folder).is_running(), ClusterFolder("name", folder).owner()) == (True, child.pid)
    with pytest.raises(AlreadyRunningError, match=r"cluster 'shop' is already running$"):
        ClusterLock.take("shop", folder)
    child.communicate()
    assert (ClusterFolder("name", folder).is_running(), ClusterFolder("name", folder).owner()) == (False, None)
    ClusterLock.take("shop", folder).release()


def test_same_name_elsewhere_is_excluded(tmp_path: Path, machine: Path) -> None:
    """Its namespaces and control groups would have the same names."""
    held = ClusterLock.take("shop", tmp_path / "here")
    with pytest.raises(AlreadyRunningError, match=f"on this machine, in {tmp_path / 'here'}: stop it there"):
        ClusterLock.take("shop", tmp_path / "there")
    assert not ClusterFolder("name", tmp_path / "there").is_running()
    ClusterLock.take("other", tmp_path / "other").release()
    held.release()
    ClusterLock.take("shop", tmp_path / "there").release()


def test_a_lock_whose_file_was_removed_locks_nothing(tmp_path: Path, machine: Path) -> None:
    folder = ClusterFolder("shop", tmp_path / "shop")
    with folder.locked():
        folder.remove()
        (machine / "autoscale-shop.lock").unlink()
        with folder.locked():
            assert folder.is_running()


def test_folder_is_cleared_but_lock_stays(tmp_path: Path, machine: Path) -> None:
    folder = ClusterFolder("shop", tmp_path / "shop")
    with folder.locked():
        folder.logs.mkdir()
        folder.log("cluster").write_text("old")
        (folder.root / "spec.json").write_text("{}")
        folder.clear()
        assert ([each.name for each in folder.root.iterdir()], folder.is_running()) == (["lock"], True)
