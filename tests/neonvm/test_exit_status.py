"""The controller's exit status says that it cannot start or lost its Lease, even if shutting down fails too."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from deploy.neonvm.service import __main__ as program
from deploy.neonvm.service.app import LeadershipLostError

LOST = LeadershipLostError()
KUBECONFIG = """
clusters: [{name: a, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
users: [{name: a}]
current-context: a
"""
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


@pytest.mark.parametrize(
    ("sidecar", "why"),
    [
        ("spec: [", "invalid YAML: line 2, column 1: did not find expected node content"),
        ("spec: {}\nspec: {}", "line 2: repeats the key 'spec' of line 1"),
        ("- spec", "expected a pod with a spec, got ['spec']"),
        ("spec: agent", "expected a pod with a spec, got {'spec': 'agent'}"),
        ("\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)
def test_unreadable_sidecar_prevents_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sidecar: str, why: str
) -> None:
    path, kubeconfig = tmp_path / "pod.yaml", tmp_path / "kubeconfig"
    path.write_text(sidecar, encoding="latin-1")
    kubeconfig.write_text(KUBECONFIG)
    assert program.main(["--sidecar", str(path), "--kubeconfig", str(kubeconfig)]) == 2
    assert capsys.readouterr().err == f"neonvm-controller: --sidecar: {path}: {why}\n"


def _ends_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def ended(_: argparse.Namespace) -> None:
        raise error

    monkeypatch.setattr(program, "_run", ended)
    monkeypatch.setattr(program, "prepare", lambda _: None)
