"""The kubelet's control groups are located in every layout, and nothing else ever is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroups import locate
from agent.cgroups.locate import SEARCH_EACH, BadNameError, ControlGroup, Locator
from tests.agent.cgroups.trees import CONTAINER, LAYOUTS, UID, Layout, Tree

OTHER = "11111111-2222-4333-8444-555555555555"
V2 = Layout(is_v2=True, is_systemd=True)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_pod_and_container_are_located(layout: Layout, tmp_path: Path) -> None:
    """The same path holds for each controller of version 1; other pods and containers have no group."""
    Tree(tmp_path, layout).make()
    pod = Locator(tmp_path).pod(UID)
    assert pod == ControlGroup(tmp_path, layout.is_v2, layout.pod)
    assert pod.container(CONTAINER) == ControlGroup(tmp_path, layout.is_v2, layout.container)
    assert pod.container("cd" * 32) is None
    assert Locator(tmp_path).pod(OTHER) is None


@pytest.mark.parametrize(
    "name", [CONTAINER, f"crio-{CONTAINER}", f"crio-{CONTAINER}.scope", f"docker-{CONTAINER}.scope"]
)
def test_each_runtime_names_its_containers(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "kubepods" / f"pod{UID}" / name
    folder.mkdir(parents=True)
    (folder.parent / f"crio-conmon-{CONTAINER}.scope").mkdir()
    (tmp_path / "cgroup.controllers").touch()
    pod = Locator(tmp_path).pod(UID)
    assert pod is not None
    assert pod.container(CONTAINER) == ControlGroup(tmp_path, True, f"kubepods/pod{UID}/{name}")


def test_node_in_a_container_of_docker(tmp_path: Path) -> None:
    """kind nests the kubelet's cgroups in those of a container, with a prefix."""
    top = "system.slice/docker-1.scope/kubelet.slice/kubelet-kubepods.slice"
    folder = f"{top}/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{UID.replace('-', '_')}.slice"
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "cgroup.controllers").touch()
    assert Locator(tmp_path).pod(UID) == ControlGroup(tmp_path, True, folder)


def test_pod_that_moves_is_located_again(tmp_path: Path) -> None:
    """A kubelet with another prefix: the folder of the last search no longer has the pod."""
    locator, before, after = Locator(tmp_path), V2, Layout(is_v2=True, is_systemd=True, prefix=("other",))
    Tree(tmp_path, before).make()
    assert locator.pod(UID) == ControlGroup(tmp_path, True, before.pod)
    shutil.rmtree(tmp_path)
    assert_unreadable(locator)
    Tree(tmp_path, after).make()
    assert locator.pod(UID) == ControlGroup(tmp_path, True, after.pod)


def assert_unreadable(locator: Locator) -> None:
    with pytest.raises(FileNotFoundError):
        locator.pod(UID)


def test_searches_in_vain_rarely_read_the_whole_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root without pods costs one folder per search, and the whole tree only at intervals."""
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "system.slice/a.service").mkdir(parents=True)
    read: list[Path] = []
    scandir = os.scandir

    def counting(folder: Path) -> object:
        read.append(folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", counting)
    locator = Locator(tmp_path)
    counts = []
    for _ in range(SEARCH_EACH + 1):
        assert locator.pod(UID) is None
        counts.append(len(read))
        read.clear()
    assert counts == [3, *[1] * (SEARCH_EACH - 1), 3]


def test_search_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree with more folders than a search reads hides what lies deeper; the first levels are still read."""
    monkeypatch.setattr(locate, "MAX_FOLDERS", 3)
    Tree(tmp_path, V2).make()
    deep = Layout(is_v2=True, is_systemd=False, prefix=("z", "z"))
    for number in range(5):
        (tmp_path / f"a{number}").mkdir()
    assert Locator(tmp_path).pod(UID) == ControlGroup(tmp_path, True, V2.pod)
    shutil.rmtree(tmp_path / "kubepods.slice")
    (tmp_path / deep.pod).mkdir(parents=True)
    assert Locator(tmp_path).pod(UID) is None


def test_groups_that_vanish_or_hide_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree(tmp_path, LAYOUTS[-1]).make()
    scandir = os.scandir

    def vanishing(folder: Path) -> object:
        if folder.name == "system.slice":
            raise PermissionError(folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert Locator(tmp_path).pod(UID) == ControlGroup(tmp_path, True, tree.layout.pod)


@given(st.text())
def test_only_names_become_paths(text: str) -> None:
    """A UID or ID from the API with a slash, dots or anything else but its digits is refused before it is used."""
    group = ControlGroup(Path("/nowhere"), True, "kubepods")
    for use in (Locator(Path("/nowhere")).pod, group.container):
        with pytest.raises(BadNameError, match="expected"):
            use(text)


@pytest.mark.parametrize("name", ["", "..", f"{UID}/..", f"../{UID}", UID.upper(), f"{UID}\n", CONTAINER + "/"])
def test_paths_are_no_names(name: str) -> None:
    with pytest.raises(BadNameError):
        Locator(Path("/nowhere")).pod(name)
    with pytest.raises(BadNameError):
        ControlGroup(Path("/nowhere"), True, "kubepods").container(name)
