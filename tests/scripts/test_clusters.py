"""Which cluster a command means: flags first, then kubectl's usual files."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.main import get_command

from scripts.autoscale import clusters
from scripts.autoscale.clusters import Cluster, complete_context, find_cluster


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No local cluster, and no kubeconfig."""
    monkeypatch.setenv("AUTOSCALE_HOME", str(tmp_path / "clusters"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(clusters, "USUAL", tmp_path / "usual")


def test_flags_name_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "given"
    assert find_cluster("local", str(path), "") == Cluster(path, "", f"cluster of {path}")
    assert find_cluster("local", str(path), "prod") == Cluster(path, "prod", "context 'prod'")


def test_without_flags_it_is_kubectls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second, usual = tmp_path / "second", tmp_path / "usual"
    usual.touch()
    assert find_cluster("local", "", "").kubeconfig == usual
    second.touch()
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{second}")
    assert find_cluster("local", "", "").kubeconfig == second


def test_without_any_it_is_said() -> None:
    with pytest.raises(typer.BadParameter, match="there is no kubeconfig"):
        find_cluster("local", "", "")


def test_contexts_are_completed_from_the_kubeconfig_that_is_meant(tmp_path: Path) -> None:
    def completed(begun: str, **typed: str) -> list[str]:
        context = typer.Context(get_command(typer.Typer(callback=lambda: None)))
        context.params = dict(typed)
        return complete_context(context, begun)

    (tmp_path / "usual").write_text("contexts: [{name: staging}, {name: prod}, {name: preview}, {}, 7]")
    assert (completed(""), completed("pr")) == (["preview", "prod", "staging"], ["preview", "prod"])
    for broken in ("{", "[]", "contexts: 3"):
        (tmp_path / "given").write_text(broken)
        assert completed("", kubeconfig=str(tmp_path / "given")) == []
    assert completed("", kubeconfig=str(tmp_path / "missing")) == []
