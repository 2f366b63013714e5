"""The policy file: read when it changes, refused once, and the last good policy stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent.core.policy import Policy
from agent.policy_file import PolicyFile
from tests.fake_clock import FakeClock


class Taker:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[float | str] = []

    def use_policy(self, policy: Policy) -> None:
        self.told.append(policy.cpu.target)

    def refuse_policy(self, reason: str) -> None:
        self.told.append(reason)


async def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path, taker, clock = tmp_path / "policy.yaml", Taker(), FakeClock()
    path.write_text("cpu: {target: 0.5}")
    file = PolicyFile(path)
    file.look(taker)
    following = asyncio.create_task(file.follow(taker, clock))
    await clock.advance(20.0)
    assert taker.told == [0.5]
    path.write_text("cpu: {target: 0.6}")
    await clock.advance(5.0)
    assert taker.told == [0.5, 0.6]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


def test_a_bad_or_missing_file_is_said_once_and_again_when_it_is_good(tmp_path: Path) -> None:
    path, taker = tmp_path / "policy.yaml", Taker()
    file = PolicyFile(path)
    file.look(taker)
    file.look(taker)
    assert [str(told).split(": ")[1] for told in taker.told] == ["cannot be read"]
    path.write_text("cpu: {target: 5}")
    file.look(taker)
    file.look(taker)
    assert len(taker.told) == 2
    assert str(taker.told[1]).startswith(f"{path}: cpu.target: expected float <= 1.0")
    path.write_text("cpu: {target: 0.5}")
    file.look(taker)
    assert taker.told[2:] == [0.5]


def test_a_file_that_was_away_and_comes_back_as_it_was_ends_the_complaint(tmp_path: Path) -> None:
    path, taker = tmp_path / "policy.yaml", Taker()
    path.write_text("cpu: {target: 0.5}")
    file = PolicyFile(path)
    file.look(taker)
    path.rename(tmp_path / "away")
    file.look(taker)
    (tmp_path / "away").rename(path)
    file.look(taker)
    assert [taker.told[0], taker.told[2]] == [0.5, 0.5]
    assert str(taker.told[1]).startswith(f"{path}: cannot be read")
