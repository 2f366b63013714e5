"""The controller's exit status says that its Lease was lost, even if shutting down fails too."""

from __future__ import annotations

import argparse

import pytest

from deploy.neonvm.service import __main__ as program
from deploy.neonvm.service.app import LeadershipLostError

LOST = LeadershipLostError()
BUG = ValueError("a part that fails while it ends")


@pytest.mark.parametrize(
    "errors", [[LOST], [ExceptionGroup("", [LOST])], [LOST, BUG], [ExceptionGroup("", [BUG, LOST])]]
)
def test_lost_lease_decides_exit_status(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, errors: list[Exception]
) -> None:
    _ends_with(monkeypatch, ExceptionGroup("", errors))
    assert program.main([]) == program.LOST
    logged = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [error.subgroup(ValueError) is not None for error in logged if isinstance(error, ExceptionGroup)] == (
        [True] if "a part" in repr(errors) else []
    )


def test_lost_lease_outside_a_group_decides_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    _ends_with(monkeypatch, LOST)
    assert program.main([]) == program.LOST


def test_other_errors_end_it_with_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    _ends_with(monkeypatch, ExceptionGroup("", [BUG]))
    with pytest.raises(ExceptionGroup):
        program.main([])


def _ends_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def ended(_: argparse.Namespace) -> None:
        raise error

    monkeypatch.setattr(program, "_run", ended)
    monkeypatch.setattr(program, "prepare", lambda _: None)
