"""The locked wheels of an image."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deploy.images.inputs.wheelhouse import requirements_here
from deploy.images.rules.lock import LockError, Pin, closure, read_lock
from deploy.images.rules.platforms import PLATFORMS

ROOT = Path(__file__).parents[3]
AMD64, ARM64 = PLATFORMS["linux/amd64"], PLATFORMS["linux/arm64"]
LOCK_TEXT = "\n".join(
    f"{name}==1.{number} \\\n    --hash=sha256:{number:064x} \\\n    --hash=sha256:{number + 9:064x}"
    for number, name in enumerate(("httpx", "h11", "Grpc_IO", "only-arm", "colorama"))
)
REQUIREMENTS = {
    "ours": ["httpx~=1.0", 'grpc.io>=1 ; extra == "expander"', 'only-arm ; platform_machine == "aarch64"'],
    "httpx": ["h11", 'colorama ; sys_platform == "win32"', 'gone ; extra == "cli"'],
    "h11": [],
    "grpc-io": ["httpx[http2]"],
    "only-arm": [],
}


def names(*extras: str, platform: str = "linux/amd64") -> list[str]:
    found = closure("ours", extras, REQUIREMENTS, read_lock(LOCK_TEXT), PLATFORMS[platform])
    return [pin.name for pin in found]


def test_lock_entry_keeps_version_and_hashes() -> None:
    lock = read_lock(LOCK_TEXT)
    assert lock["grpc-io"] == Pin(
        "grpc-io",
        "1.2",
        f"Grpc_IO==1.2 \\\n    --hash=sha256:{2:064x} \\\n    --hash=sha256:{11:064x}",
    )
    assert "\n".join(pin.lines for pin in lock.values()) == LOCK_TEXT


def test_comments_are_not_part_of_an_entry() -> None:
    """uv says how the lock was made, and why each entry is in it."""
    commented = LOCK_TEXT.replace("\nh11", "\n    # via\n    #   ours\nh11")
    assert commented != LOCK_TEXT
    assert read_lock(f"# made by uv\n#    uv pip compile\n{commented}\n    # via ours\n") == read_lock(LOCK_TEXT)


@pytest.mark.parametrize("text", ["httpx==1.0", "httpx>=1 --hash=sha256:0", "-r other.txt"])
def test_an_entry_without_version_or_hash_is_refused(text: str) -> None:
    with pytest.raises(LockError, match=re.escape(repr(text))):
        read_lock(text)


def test_requirements_follow_platform_and_extras() -> None:
    assert names() == ["h11", "httpx"]
    assert names("expander") == ["grpc-io", "h11", "httpx"]
    assert names(platform="linux/arm64") == ["h11", "httpx", "only-arm"]


def test_missing_distribution_names_remedy() -> None:
    with pytest.raises(LockError, match=r"h11 is not installed here.*make env"):
        closure("ours", (), {"ours": ["h11"]}, {}, AMD64)


def test_what_is_not_locked_is_named() -> None:
    with pytest.raises(LockError, match=r"requirements\.txt has no h11, httpx"):
        closure("ours", (), REQUIREMENTS, {}, AMD64)


def test_wheels_for_older_glibc_are_accepted() -> None:
    tags = ARM64.wheel_tags
    assert tags[0] == "manylinux_2_36_aarch64"
    assert {"manylinux_2_17_aarch64", "manylinux2014_aarch64"} <= set(tags)
    assert "manylinux_2_37_aarch64" not in tags


def test_lock_covers_all_requirements() -> None:
    lock = read_lock((ROOT / "requirements.txt").read_text())
    parts = ("cli", "dev", "expander", "injector", "local", "neonvm", "replay", "scheduler")
    assert {pin.name for pin in closure("autoscaling", parts, requirements_here(), lock, AMD64)} <= set(lock)


def test_pip_installs_exactly_the_locks() -> None:
    recipes = (ROOT / "Makefile", ROOT / "deploy/images/Dockerfile")
    installs = [line for each in recipes for line in each.read_text().splitlines() if "-r requirements" in line]
    assert len(installs) == 3
    assert all("--require-hashes --no-deps -r" in line for line in installs), installs
