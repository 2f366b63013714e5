"""Control groups in folders that look like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local.kubernetes.machine.control_groups import controllers, is_unified, make_group, remove_group

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


def test_a_group_is_removed_with_those_below_it_and_its_parents_stay(first: Path) -> None:
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
    with pytest.raises(OSError, match=r"control groups stay behind: .*memory/autoscale\.shop/node-1"):
        remove_group("autoscale.shop", first, waited.append)
    assert len(waited) == 100
