"""The cache of images: whole or absent, made once, and clean after an interruption."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from vm_image.store import Store, cache_root


def quiet(line: str) -> None:
    raise AssertionError(f"nothing had to be said, but it said: {line}")


def fill(work: Path) -> None:
    (work / "disk").write_text("whole")


def refuse(work: Path) -> None:
    raise AssertionError("what is there must not be made again")


def contents(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if not path.name.endswith(".lock"))


def test_folder_is_built_once(tmp_path: Path) -> None:
    store = Store(tmp_path / "images")
    made = store.get("abc", fill, quiet)
    assert (made, (made / "disk").read_text(), made.stat().st_mode & 0o777) == (store.cached("abc"), "whole", 0o755)
    assert store.get("abc", refuse, quiet) == made


def test_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(work: Path) -> None:
        fill(work)
        raise KeyboardInterrupt

    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        store.get("abc", interrupted, quiet)
    assert contents(tmp_path) == []
    store.get("abc", fill, quiet)
    assert contents(tmp_path) == ["abc"]


def test_next_build_removes_leftovers(tmp_path: Path) -> None:
    leftover = tmp_path / ".abc.work.killed"
    leftover.mkdir()
    fill(leftover)
    Store(tmp_path).get("abc", fill, quiet)
    assert contents(tmp_path) == ["abc"]


def test_second_builder_waits_for_the_first(tmp_path: Path) -> None:
    first_is_at_work, may_finish, said = threading.Event(), threading.Event(), []

    def slowly(work: Path) -> None:
        first_is_at_work.set()
        may_finish.wait()
        fill(work)

    def told(line: str) -> None:
        said.append(line)
        may_finish.set()

    first = threading.Thread(target=Store(tmp_path).get, args=("abc", slowly, quiet))
    first.start()
    first_is_at_work.wait()
    second = Store(tmp_path).get("abc", refuse, told)
    first.join()
    assert said == ["waiting for another build with the same inputs"]
    assert (second / "disk").read_text() == "whole"


def test_dropped_folder_is_rebuilt(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.drop("abc", quiet)
    store.get("abc", fill, quiet)
    store.drop("abc", quiet)
    assert contents(tmp_path) == []


def test_cache_location_follows_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOSCALE_CACHE", "/data/cache")
    assert cache_root() == Path("/data/cache")
    monkeypatch.delenv("AUTOSCALE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me/caches")
    assert cache_root() == Path("/home/me/caches/autoscale")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_root() == Path("/home/me/.cache/autoscale")


def test_cache_without_home_needs_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of a container often has neither HOME nor an account. An empty variable counts as none."""
    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("AUTOSCALE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_root() == Path("/caches/autoscale")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    with pytest.raises(FileNotFoundError, match="no home folder: set AUTOSCALE_CACHE or HOME"):
        cache_root()


def homeless() -> Path:
    raise RuntimeError


def test_truncated_folder_is_rebuilt(tmp_path: Path) -> None:
    store = Store(tmp_path)
    said: list[str] = []
    made = store.get("abc", fill, quiet)
    (made / "disk").write_text("")
    assert store.cached("abc") is None
    assert (store.get("abc", fill, said.append) / "disk").read_text() == "whole"
    assert said == [f"{made} is damaged; rebuilding it"]
    assert store.get("abc", refuse, quiet) == store.cached("abc") == made


def test_added_files_are_no_damage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (store.get("abc", fill, quiet) / "remembered").write_text("later")
    assert store.get("abc", refuse, quiet) == store.cached("abc")


def test_folder_without_sizes_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "abc").mkdir()
    assert Store(tmp_path).get("abc", refuse, quiet) == tmp_path / "abc"
