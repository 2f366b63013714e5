"""Holds in made control groups: what is written, what is refused, and what is put back after each kind of end."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from agent.reclaimer import holds
from agent.reclaimer.holds import HEADROOM, Holds, RefusedHoldError
from tests.agent.cgroups.trees import MIB, UID, UNLIMITED, Layout, Tree

V1, V2 = Layout(is_v2=False, is_systemd=False), Layout(is_v2=True, is_systemd=True)
BOTH = pytest.mark.parametrize("layout", [V1, V2], ids=str)
SIZE = 300 * MIB
USED = 400 * MIB
"""Of these, 200 MiB can be reclaimed."""


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that is written into a control group, with the file's name."""
    texts: list[str] = []
    write = holds._write

    def writing(file: Path, text: bytes) -> None:
        texts.append(f"{file.name} {text.decode()}")
        write(file, text)

    monkeypatch.setattr(holds, "_write", writing)
    return texts


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path, V2).make()


def holds_of(tree: Tree) -> Holds:
    made = Holds(tree.root, tree.root / "holds")
    made.restore()
    return made


def limit(tree: Tree) -> str:
    """The limit of the pod that a hold lowers."""
    name = "memory.high" if tree.layout.is_v2 else "memory.limit_in_bytes"
    return tree.file(name, of_pod=True).read_text().strip()


def set_limit(tree: Tree, text: str) -> None:
    tree.write("memory.high" if tree.layout.is_v2 else "memory.limit_in_bytes", text, of_pod=True)


def records(tree: Tree) -> list[str]:
    return [path.name for path in (tree.root / "holds").iterdir()]


def test_version_2_holds_until_release(tree: Tree, written: list[str]) -> None:
    """Each call reclaims again; a page is the smallest step. The record exists exactly as long as the hold."""
    held = holds_of(tree)
    assert [held.hold(UID, SIZE + 1), held.hold(UID, SIZE)] == [USED, USED]
    assert (limit(tree), records(tree)) == (str(SIZE), [UID])
    held.release(UID)
    held.release(UID)
    assert (limit(tree), records(tree)) == ("max", [])
    assert written == [f"memory.high {SIZE}", f"memory.high {SIZE}", "memory.high max"]


@pytest.mark.parametrize(
    ("taken", "found", "lowered", "writes"),
    [
        (8 * MIB, 400 * MIB, SIZE, [8 * MIB] * 12 + [4 * MIB]),
        (60 * MIB, 400 * MIB, SIZE, [8 * MIB] * 2),
        (8 * MIB, 40 * MIB - 1, 360 * MIB, [8 * MIB] * 5),
        (0, 400 * MIB, USED, [8 * MIB] * 13),
    ],
    ids=["as asked", "more than asked", "no more found", "filled again"],
)
def test_version_2_reclaims_before_it_limits(  # noqa: PLR0917 - a story with its numbers
    taken: int,
    found: int,
    lowered: int,
    writes: list[int],
    tree: Tree,
    monkeypatch: pytest.MonkeyPatch,
    written: list[str],
) -> None:
    """A limit far below what is used would stop the database: it follows what has been reclaimed, and no further."""
    tree.write("memory.reclaim", "", of_pod=True)
    write = holds._write

    def reclaiming(file: Path, text: bytes) -> None:
        write(file, text)
        if file.name != "memory.reclaim":
            return
        used = int(tree.file("memory.current", of_pod=True).read_text())
        left = max(used - min(taken, int(text) if taken == 8 * MIB else taken), USED - found)
        tree.write("memory.current", f"{left}\n", of_pod=True)
        if left == USED - found:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(holds, "_write", reclaiming)
    held = holds_of(tree)
    held.hold(UID, SIZE)
    expected = [*(f"memory.reclaim {size}" for size in writes), f"memory.high {lowered}"]
    assert (written, limit(tree)) == (expected, str(lowered))
    held.release(UID)
    assert limit(tree) == "max"


def test_long_reclaim_goes_on_with_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent whose postgres needs the memory after all closes its connection, which is read between two calls."""
    tree, now = Tree(tmp_path, V2).make(), 0.0
    tree.write("memory.reclaim", "", of_pod=True)
    write = holds._write

    def reclaiming(file: Path, text: bytes) -> None:
        nonlocal now
        write(file, text)
        if file.name == "memory.reclaim":
            now += 0.4
            used = int(tree.file("memory.current", of_pod=True).read_text())
            tree.write("memory.current", f"{used - int(text)}\n", of_pod=True)

    monkeypatch.setattr(holds, "_write", reclaiming)
    held = Holds(tree.root, tree.root / "holds", lambda: now)
    held.restore()
    sizes = [held.hold(UID, SIZE) // MIB for _ in range(5)]
    assert sizes == [376, 352, 328, 304, 300]
    assert limit(tree) == str(SIZE)


def test_reclaim_that_fails_limits_nothing(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write("memory.reclaim", "", of_pod=True)

    def failing(file: Path, text: bytes) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(holds, "_write", failing)
    with pytest.raises(PermissionError):
        holds_of(tree).hold(UID, SIZE)
    assert (limit(tree), records(tree)) == ("max", [])


def test_version_1_holds_for_a_moment(tmp_path: Path, written: list[str]) -> None:
    """Its limit kills, so it is low only while the kernel reclaims."""
    tree = Tree(tmp_path, V1).make()
    held = holds_of(tree)
    assert held.hold(UID, SIZE) == USED
    assert written == [f"memory.limit_in_bytes {SIZE}", f"memory.limit_in_bytes {512 * MIB}"]
    assert (limit(tree), records(tree)) == (str(512 * MIB), [])


def test_version_1_reclaims_a_large_pod_in_steps(tmp_path: Path, written: list[str]) -> None:
    """One write blocks until everything is reclaimed; the agent would miss a growing need for memory until then."""
    tree = Tree(tmp_path, V1).make()
    gib = 1024 * MIB
    set_limit(tree, str(8 * gib))
    stat = f"total_inactive_file {3 * gib}\ntotal_active_file 0\n"
    tree.write("memory.stat", stat, of_pod=True)
    held = holds_of(tree)
    for used in (3 * gib + 1, 2 * gib):
        tree.write("memory.usage_in_bytes", str(used), of_pod=True)
        held.hold(UID, gib + MIB)
    assert written[::2] == [f"memory.limit_in_bytes {2 * gib}", f"memory.limit_in_bytes {gib + MIB}"]


def test_pod_without_a_limit_has_none_again(tmp_path: Path, written: list[str]) -> None:
    tree = Tree(tmp_path, V1).make()
    set_limit(tree, UNLIMITED)
    holds_of(tree).hold(UID, SIZE)
    assert written == [f"memory.limit_in_bytes {SIZE}", "memory.limit_in_bytes -1"]


def test_version_1_that_cannot_reclaim_so_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel answers EBUSY and leaves the limit alone; the agent sees what is used."""
    tree = Tree(tmp_path, V1).make()
    held = holds_of(tree)

    def busy(file: Path, text: bytes) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(holds, "_write", busy)
    assert held.hold(UID, SIZE) == USED
    assert (limit(tree), records(tree)) == (str(512 * MIB), [])


@BOTH
def test_hold_never_goes_below_what_is_needed(layout: Layout, tmp_path: Path, written: list[str]) -> None:
    """200 MiB cannot be reclaimed, and some must stay free for programs' allocations."""
    tree = Tree(tmp_path, layout).make()
    held = holds_of(tree)
    least = 200 * MIB + HEADROOM
    held.hold(UID, least)
    with pytest.raises(RefusedHoldError, match=f"it needs {least}, headroom included"):
        held.hold(UID, least - 1)
    assert len(written) == (1 if layout.is_v2 else 2)


def test_hold_never_goes_below_what_is_protected(tree: Tree) -> None:
    tree.write("memory.min", f"{SIZE}\n", of_pod=True)
    with pytest.raises(RefusedHoldError, match="headroom included"):
        holds_of(tree).hold(UID, SIZE)
    assert limit(tree) == "max"


@BOTH
def test_lower_limit_of_others_stays(layout: Layout, tmp_path: Path, written: list[str]) -> None:
    """A hold above a limit that is in force would lift it."""
    tree = Tree(tmp_path, layout).make()
    set_limit(tree, str(SIZE))
    assert holds_of(tree).hold(UID, SIZE) == USED
    assert written == []


def test_limit_that_others_set_meanwhile_stays(tree: Tree, written: list[str]) -> None:
    """Release puts back only its own value; the next hold remembers the new one."""
    held = holds_of(tree)
    held.hold(UID, SIZE)
    set_limit(tree, str(350 * MIB))
    held.hold(UID, SIZE)
    held.release(UID)
    assert limit(tree) == str(350 * MIB)
    held.hold(UID, SIZE)
    set_limit(tree, str(360 * MIB))
    held.release(UID)
    assert (limit(tree), records(tree)) == (str(360 * MIB), [])


def test_hold_never_exceeds_previous_limit(tree: Tree) -> None:
    """A limit that someone else set is never raised, not even while its pod is held."""
    set_limit(tree, str(350 * MIB))
    held = holds_of(tree)
    held.hold(UID, SIZE)
    held.hold(UID, 360 * MIB)
    assert (limit(tree), records(tree)) == (str(350 * MIB), [])


def test_kubelet_growth_during_hold_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1: the kernel reclaims for a second, and sets the lower limit after the kubelet's, which goes unseen."""
    tree = Tree(tmp_path, V1).make()
    held, write = holds_of(tree), holds._write

    def late(file: Path, text: bytes) -> None:
        set_limit(tree, str(1024 * MIB))
        write(file, text)

    with monkeypatch.context() as kernel:
        kernel.setattr(holds, "_write", late)
        held.hold(UID, SIZE)
    held.settle(UID)
    assert (limit(tree), held.unsettled()) == (str(512 * MIB), [UID])
    # The kubelet goes on to the container.
    tree.write("memory.limit_in_bytes", f"{1024 * MIB}\n")
    held.settle(UID)
    assert limit(tree) == str(1024 * MIB)
    for _ in range(holds.SETTLE_CHECKS - 2):
        held.settle(UID)
    assert held.unsettled() == []


def test_pod_limit_below_containers_is_kept(tmp_path: Path) -> None:
    """Requests of the whole pod set it so."""
    tree = Tree(tmp_path, V1).make()
    tree.write("memory.limit_in_bytes", f"{600 * MIB}\n")
    held = holds_of(tree)
    held.hold(UID, SIZE)
    assert (limit(tree), held.unsettled()) == (str(512 * MIB), [])


def test_pod_that_goes_is_not_settled(tmp_path: Path) -> None:
    tree = Tree(tmp_path, V1).make()
    held = holds_of(tree)
    held.hold(UID, SIZE)
    shutil.rmtree(tree.file("memory.stat", of_pod=True).parent)
    with pytest.raises(RefusedHoldError, match="no cgroup found"):
        held.settle(UID)
    assert held.unsettled() == []


def test_hold_may_be_raised(tree: Tree) -> None:
    held = holds_of(tree)
    held.hold(UID, SIZE)
    held.hold(UID, SIZE + MIB)
    assert limit(tree) == str(SIZE + MIB)
    held.release(UID)
    assert limit(tree) == "max"


@BOTH
def test_next_process_reverts_after_a_crash(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at its worst moment, right after a limit was lowered."""
    tree = Tree(tmp_path, layout).make()
    crashed, before = holds_of(tree), limit(tree)
    monkeypatch.setattr(Holds, "release", lambda *_: None)
    crashed.hold(UID, SIZE)
    monkeypatch.undo()
    assert limit(tree) == str(SIZE)
    again = Holds(tree.root, tree.root / "holds")
    assert again.restore() == [UID]
    assert (limit(tree), records(tree), again.restore()) == (before, [], [])


@pytest.mark.parametrize(("owner", "name"), [(Path, "write_text"), (holds, "_write")], ids=["record", "limit"])
def test_limit_is_restored_after_crash_between_steps(
    owner: object, name: str, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hold follows what was reclaimed, so its record is written again and again."""
    held = holds_of(tree)
    held.hold(UID, SIZE + MIB)

    def crash(file: Path, _: object) -> None:
        # Killed after the file was truncated; the kernel's keeps its value.
        if file.parent.name == "holds":
            file.write_bytes(b"")
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, crash)
    with pytest.raises(KeyboardInterrupt):
        held.hold(UID, SIZE)
    monkeypatch.undo()
    assert limit(tree) == str(SIZE + MIB)
    assert (holds_of(tree).restore(), limit(tree), records(tree)) == ([], "max", [])


def test_next_process_reverts_what_it_can(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One file that cannot be written keeps neither the program from starting nor its record from the one after."""
    holds_of(tree).hold(UID, SIZE)

    def failing(file: Path, text: bytes) -> None:
        raise OSError(errno.EIO, "Input/output error")

    again = Holds(tree.root, tree.root / "holds")
    with monkeypatch.context() as faults:
        faults.setattr(holds, "_write", failing)
        assert (again.restore(), records(tree)) == ([], [UID])
    assert [(record.message, record.__dict__["pod"]) for record in caplog.records] == [
        ("cannot restore a pod's memory limit", UID)
    ]
    assert (again.restore(), limit(tree), records(tree)) == ([UID], "max", [])


@pytest.mark.parametrize("name", ["not-a-uid", "11111111-2222-4333-8444-555555555555", UID])
def test_record_that_means_nothing_is_removed(name: str, tree: Tree, tmp_path: Path, written: list[str]) -> None:
    """Of a pod that is gone, or cut off by a full disk."""
    (tmp_path / "holds").mkdir()
    (tmp_path / "holds" / name).write_text("max\n")
    assert holds_of(tree).restore() == []
    assert (records(tree), written) == ([], [])


def test_folder_of_another_is_refused(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent shares the folder above: it could lead this program anywhere."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "holds").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="not a folder owned by this program's user"):
        holds_of(tree)
    (tmp_path / "holds").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="not a folder owned by this program's user"):
        holds_of(tree)


def test_pod_that_goes_during_its_hold(tree: Tree) -> None:
    held = holds_of(tree)
    held.hold(UID, SIZE)
    shutil.rmtree(tree.file("memory.high", of_pod=True).parent)
    with pytest.raises(RefusedHoldError, match="no cgroup found for pod"):
        held.hold(UID, SIZE)
    held.release(UID)
    assert records(tree) == []


def test_pod_that_goes_while_its_limit_is_read(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel answers ENODEV for a file that was opened before its group went."""
    held = holds_of(tree)
    held.hold(UID, SIZE)

    def gone(path: Path, parse: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(holds, "read", gone)
    held.release(UID)
    assert records(tree) == []


def test_release_that_fails_may_be_repeated(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    held = holds_of(tree)
    held.hold(UID, SIZE)

    def failing(file: Path, text: bytes) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as faults:
        faults.setattr(holds, "_write", failing)
        with pytest.raises(OSError, match="Input/output"):
            held.release(UID)
    assert records(tree) == [UID]
    held.release(UID)
    assert (limit(tree), records(tree)) == ("max", [])


@BOTH
@pytest.mark.parametrize("name", ["memory.stat", "usage", "limit"])
def test_malformed_group_is_not_touched(layout: Layout, name: str, tmp_path: Path, written: list[str]) -> None:
    names = {"usage": ("memory.usage_in_bytes", "memory.current"), "limit": ("memory.limit_in_bytes", "memory.high")}
    tree = Tree(tmp_path, layout).make()
    held = holds_of(tree)
    tree.write(names.get(name, (name, name))[layout.is_v2], "nonsense\n", of_pod=True)
    with pytest.raises(ValueError, match="expected"):
        held.hold(UID, SIZE)
    assert (written, records(tree)) == ([], [])


@pytest.mark.parametrize("uid", ["", "..", f"../{UID}", "/", "system.slice"])
def test_only_pods_are_held(uid: str, tree: Tree) -> None:
    with pytest.raises(RefusedHoldError, match="expected a UUID"):
        holds_of(tree).hold(uid, SIZE)
