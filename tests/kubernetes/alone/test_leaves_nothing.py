"""However a cluster ends, at any step of its start, it leaves nothing on the machine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.cluster.folder import ClusterFolder
from tests.kubernetes.machine_state import machine_state
from tests.kubernetes.real_kubernetes import VERSION, RealKubernetes, busybox_pod, eventually

pytestmark = pytest.mark.kubernetes
STEPS = ("programs", "network", "control plane", "nodes", "DNS and metrics")


@pytest.fixture
def alone(home: Path, tmp_path: Path) -> Iterator[RealKubernetes]:
    """A separate cluster, not started yet, in a folder that identifies its processes."""
    assert home.is_dir(), "there can be clusters on this machine"
    cluster = RealKubernetes(f"alone-{os.getpid()}", tmp_path)
    yield cluster
    cluster.down()


def test_stopped_cluster_leaves_nothing(alone: RealKubernetes) -> None:
    before = machine_state(alone.name, alone.home)
    alone.up("--nodes", "2")
    alone.apply(busybox_pod("busy", "sleep", "600"))
    alone.wait("condition=Ready", "pod/busy")
    during = machine_state(alone.name, alone.home)
    assert all((during.processes, during.namespaces, during.cgroups))
    assert during.tunables == before.tunables
    alone.down()
    assert machine_state(alone.name, alone.home) == before
    assert not alone.folder.exists()


def test_leftovers_of_killed_owner_are_removed(alone: RealKubernetes) -> None:
    before = machine_state(alone.name, alone.home)
    alone.up("--nodes", "1")
    owner = ClusterFolder("alone", alone.folder).owner()
    assert owner is not None
    os.kill(owner, signal.SIGKILL)
    eventually(lambda: not machine_state(alone.name, alone.home).processes, "its processes end with it", 10.0)
    alone.down()
    assert machine_state(alone.name, alone.home) == before


@pytest.mark.parametrize("step", STEPS)
def test_an_interrupted_start_leaves_nothing(alone: RealKubernetes, step: str) -> None:
    before = machine_state(alone.name, alone.home)
    command = alone.command("up", "--kubernetes", "--kubernetes-version", VERSION, "--nodes", "1")
    with subprocess.Popen(command, env=alone.environment, stdout=subprocess.PIPE, text=True) as process:
        eventually((alone.folder / "lock").exists, "its owner runs")
        interrupt_after(process, STEPS.index(step))
        assert process.wait(timeout=60.0) == 130
    assert machine_state(alone.name, alone.home) == before


def interrupt_after(process: subprocess.Popen[str], steps: int) -> None:
    """Ctrl-C as soon as this many steps are done."""
    assert process.stdout is not None
    done = 0
    while done < steps:
        line = process.stdout.readline()
        assert line, "it ended before"
        done += line.lstrip().startswith("✓")
    process.send_signal(signal.SIGINT)
