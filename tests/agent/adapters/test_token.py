"""The agent's token: that of its file now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.adapters.token import read_token
from agent.ports import PortError


def test_a_replaced_token_is_used_at_once(tmp_path: Path) -> None:
    """The kubelet swaps a symbolic link; the new file may have the same size and time."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(name + "\n")
        os.utime(tmp_path / name, (1, 1))
    link = tmp_path / "token"
    link.symlink_to("one")
    assert (read_token(link), read_token(link)) == ("one", "one")
    link.unlink()
    link.symlink_to("two")
    assert read_token(link) == "two"


def test_missing_or_empty_token_names_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(PortError, match="cannot read token file"):
        read_token(file)
    file.write_text(" \n")
    with pytest.raises(PortError, match="token is empty"):
        read_token(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(PortError, match="cannot read token file"):
        read_token(file)
