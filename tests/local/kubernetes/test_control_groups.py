"""Control groups in folders that imitate the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.local.kubernetes.machine.control_groups import (
    controllers,
    creation_problem,
    is_unified,
    make_group,
    remove_group,
)

GROUP = "autoscale.shop/node-1"


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """Version 1 with two controllers in one hierarchy, and a link to it for each."""
    for name in ("cpu,cpuacct", "cpuset", "memory"):
        (tmp_path / name).mkdir()
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-3\n")
    return tmp_path


def test_the_controllers_of_version_1_are_its_hierarchies(first: Path) -> None:
    assert not is_unified(first)
    assert controllers(first) == {"cpu", "cpuacct", "cpuset", "memory"}


def test_the_controllers_of_version_2_are_listed(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
    assert is_unified(tmp_path)
    assert controllers(tmp_path) == {"cpuset", "cpu", "memory", "pids"}


def test_without_control_groups_there_are_no_controllers(tmp_path: Path) -> None:
    assert controllers(tmp_path / "missing") == frozenset()
    remove_group("autoscale.shop", tmp_path / "missing")


def test_a_group_is_made_in_every_hierarchy(first: Path) -> None:
    make_group(GROUP, first)
    made = sorted(str(each.relative_to(first)) for each in first.rglob("node-1"))
    assert made == [f"{name}/{GROUP}" for name in ("cpu,cpuacct", "cpuset", "memory")]


def test_cgroup_removal_keeps_parents(first: Path) -> None:
    (first / "cpuset" / "cpuset.cpus").unlink()
    make_group(GROUP, first)
    make_group("other/node-1", first)
    (first / "memory" / GROUP / "kubepods" / "pod-1").mkdir(parents=True)
    remove_group("autoscale.shop", first)
    assert list(first.rglob("autoscale.shop")) == []
    assert (first / "memory" / "other" / "node-1").is_dir()
    remove_group("autoscale.shop", first)


def test_a_group_that_cannot_be_removed_is_named(first: Path) -> None:
    make_group(GROUP, first)
    (first / "memory" / GROUP / "held").write_text("by a process that does not end")
    waited: list[float] = []
    with pytest.raises(OSError, match=r"control groups could not be removed: .*memory/autoscale\.shop/node-1"):
        remove_group("autoscale.shop", first, waited.append)
    assert len(waited) == 100


def second(root: Path, passed_on: str) -> Path:
    """Version 2, where a group gets of the root's controllers what is ``passed_on``."""
    (root / "cgroup.controllers").write_text("cpuset cpu memory pids\n")

    class Group(type(root)):  # type: ignore[misc]  # the path class of this platform
        """A folder in which the kernel lists a group's controllers once it is made."""

        def mkdir(self, *args: object, **more: object) -> None:
            super().mkdir(*args, **more)
            self.joinpath("cgroup.controllers").write_text(passed_on)

        def rmdir(self) -> None:
            self.joinpath("cgroup.controllers").unlink(missing_ok=True)
            self.joinpath("cgroup.subtree_control").unlink(missing_ok=True)
            super().rmdir()

    return Group(root)


def test_cgroup_trial_passes_with_controllers(tmp_path: Path, first: Path) -> None:
    (first / "cpuset" / "cpuset.cpus").unlink()
    assert creation_problem(first) == ""


def test_cgroup_trial_reports_busy_root(tmp_path: Path) -> None:
    said = creation_problem(second(tmp_path, "pids\n"), lambda _: None)
    assert said.startswith("control groups below /sys/fs/cgroup lack controllers (cpu, memory): it contains processes")
    assert said.endswith("start the container with --cgroupns=host")


def test_a_trial_says_that_groups_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("a file")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / f"autoscale-trial-{os.getpid()}").write_text("in the way")
    assert "cannot create control groups" in creation_problem(tmp_path)
