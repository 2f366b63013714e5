"""Output of commands for scripts, and shell completions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx2 as httpx
import pytest
import typer
import yaml
from rich.console import Console
from rich.table import Table
from typer.main import get_command

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.http_api import HttpApi
from scripts.autoscale import main as program
from scripts.autoscale.demonstration.moves import ObservedMove
from scripts.autoscale.migrate import as_fields
from scripts.autoscale.terminal.completion import complete_node, completion, fitting, listed
from scripts.autoscale.terminal.printing import Output, print_table, serialised, show

VM = ObjectName("shop", "db")


@pytest.mark.parametrize(("output", "read"), [(Output.JSON, json.loads), (Output.YAML, yaml.safe_load)])
def test_json_and_yaml_say_the_same(output: Output, read: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(read)
    fields: Json = {"b": ["1500m", None, True], "a": "größer: " + "long " * 60}
    assert read(serialised(fields, output)) == fields
    assert serialised(fields, output).index("b") < serialised(fields, output).index("größer")
    show(["not this"], fields, output)
    assert read(capsys.readouterr().out) == fields


def test_lines_are_printed_whole_and_without_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show(["[bold] " + "long " * 60], None, Output.WIDE)
    assert capsys.readouterr().out == "[bold] " + "long " * 60 + "\n"


def test_table_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Rich shortened names and numbers in a narrow terminal, and in a pipe, which it takes for 80 columns."""
    table = Table("database", "vCPU")
    table.add_row("shop/" + "long-" * 30, "12345.6")
    print_table(Console(width=10), table)
    shown = capsys.readouterr().out
    assert ("shop/" + "long-" * 30 in shown, "12345.6" in shown, "…" in shown) == (True, True, False)


def test_a_migration_is_printed_for_scripts() -> None:
    assert as_fields(ObservedMove(VM, "node-1", phase="Failed", total_ms=7)) == {
        "vm": "shop/db",
        "source": "node-1",
        "target": None,
        "phase": "Failed",
        "reason": None,
        "totalMs": 7,
        "downtimeMs": None,
    }


NAMES = [VM, ObjectName("shop", "a"), ObjectName("default", "db-2"), ObjectName("default", "db-10")]


@pytest.mark.parametrize(
    ("namespace", "begun", "found"),
    [
        ("default", "", ["db-10", "db-2", "shop/a", "shop/db"]),
        ("default", "db", ["db-10", "db-2"]),
        ("shop", "d", ["db", "default/db-10", "default/db-2"]),
        ("shop", "default/db-1", ["default/db-10"]),
        ("shop", "x", []),
    ],
)
def test_vms_are_completed_as_one_may_type_them(namespace: str, begun: str, found: Sequence[str]) -> None:
    assert fitting(NAMES, namespace, begun) == found


async def test_names_come_from_the_cluster() -> None:
    made = {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"namespace": "shop", "name": "db"}}]}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=made))
    async with ApiClient(
        HttpApi(httpx.AsyncClient(base_url="http://api", transport=transport), lambda: None)
    ) as client:
        assert await listed(client, VIRTUAL_MACHINES) == [VM]


@pytest.mark.parametrize("kubeconfig", ["missing", "broken"])
def test_completion_without_cluster_is_silent(
    kubeconfig: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken").write_text("{")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))

    typed = typer.Context(get_command(program.app(["top"])))
    typed.params = {"kubeconfig": str(tmp_path / kubeconfig), "name": "no-such-cluster"}
    assert complete_node(typed, "") == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("typed", "made"),
    [("autoscale explain d", ["explain"]), ("autoscale exp", list(program.COMMANDS)), ("autoscale top ", ["top"])],
)
def test_completion_imports_only_its_command(typed: str, made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["autoscale"])
    monkeypatch.setenv("COMP_WORDS", typed)
    assert list(program.requested_commands(program.COMMANDS)) == made


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_completes_the_command_in_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    completion(shell)
    assert f"_AUTOSCALE_COMPLETE=complete_{shell}" in capsys.readouterr().out


def test_other_shells_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="expected one of bash, zsh, fish"):
        completion("csh")
