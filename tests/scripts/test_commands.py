"""The command ``autoscale`` brings in what one of its commands needs, and no other."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import pytest
from typer.main import get_command

from protocol.messages import ObjectName
from scripts.autoscale import main as program
from scripts.autoscale.terminal import completion as name_completion
from tests.scripts.plugin import completed


@pytest.mark.parametrize("name", program.COMMANDS)
def test_single_command_keeps_its_name(name: str) -> None:
    assert list(getattr(get_command(program.app([name])), "commands", {})) == [name]


def test_kubectl_plugin_has_cluster_commands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config"
    config.write_text("current-context: none")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{config}")
    monkeypatch.setattr(
        sys, "argv", ["kubectl-autoscaling", "explain", "db", "--context", "prod", "--namespace", "shop"]
    )
    with pytest.raises(SystemExit) as ended:
        program.plugin()
    assert (ended.value.code, capsys.readouterr().err) == (
        1,
        f"autoscale: {config}: no context named 'prod'\n",
    )


def test_kubectl_plugin_shows_its_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl-autoscaling", "--help"])
    with pytest.raises(SystemExit):
        program.plugin()
    said = capsys.readouterr().out
    assert "Usage: kubectl autoscaling" in said
    assert {name for name in program.COMMANDS if f" {name} " in said} == {*program.CLUSTER_COMMANDS}


@pytest.mark.parametrize("name", program.COMMANDS)
def test_help_shows_every_text_whole(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rich took `[/PATH]` for markup, and cut long names in a narrow terminal: `--kubernetes-vers…`."""
    monkeypatch.setenv("COLUMNS", "60")
    top = getattr(get_command(program.app([name])), "commands", {})[name]
    grouped = getattr(top, "commands", {})
    commands = [((name, word), command) for word, command in grouped.items()] if grouped else [((name,), top)]
    for words, command in commands:
        monkeypatch.setattr(sys, "argv", ["autoscale", *words, "-h"])
        with pytest.raises(SystemExit) as ended:
            program.main()
        # Lines may break at spaces and after hyphens.
        shown = "".join(capsys.readouterr().out.split())
        assert ended.value.code == 0, words
        visible = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
        texts = [text for parameter in visible for text in (parameter.help or "", *_flags(parameter))]
        assert [text for text in texts if "".join(text.split()) not in shown] == [], words


USAGE = {
    "explain": "[OPTIONS] NAME",
    "migrate": "[OPTIONS] VM",
    "completion": "[OPTIONS] SHELL",
    "cost": "[OPTIONS]",
    "local": "[OPTIONS] COMMAND [ARGS]...",
    "local kubelet": "[OPTIONS] {stop|start} NODE",
    "local load": "[OPTIONS] ARCHIVE...",
    "images build": "[OPTIONS] [IMAGE]...",
    "images unpack": "[OPTIONS] IMAGE FOLDER",
}


@pytest.mark.parametrize("command", USAGE)
def test_usage_names_arguments_as_usual(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Typer puts braces around required arguments, and dots twice after repeated ones."""
    monkeypatch.setattr(sys, "argv", ["autoscale", *command.split(), "-h"])
    with pytest.raises(SystemExit):
        program.main()
    # Before it is the name of this program, which is pytest's.
    assert capsys.readouterr().out.splitlines()[0].partition("autoscale ")[2] == f"{command} {USAGE[command]}"


@pytest.mark.parametrize("command", ["replay", "local status", "images list"])
def test_refused_choice_has_no_library_words(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["autoscale", *command.split(), "-o", "xml"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    said = capsys.readouterr().err.splitlines()[-1]
    assert (ended.value.code, said.partition(" is not")[0]) == (2, "Error: Invalid value for '--output' / '-o': 'xml'")


@pytest.mark.parametrize("name", ["A_b", "a/b", "..", "-x", "a.b", "a" * 64])
@pytest.mark.parametrize("command", ["top --once", "explain db", "migrate db", "check"])
def test_namespace_that_cannot_exist_is_refused(
    command: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`top` showed an empty table for it."""
    monkeypatch.setattr(sys, "argv", ["autoscale", *command.split(), f"--namespace={name}"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    said = "expected lower-case letters, digits and hyphens, at most 63, got "
    assert (ended.value.code, said in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize(
    ("every", "said"),
    [
        ("0", "Error: Invalid value for --every: expected 500ms to 1h, got '0'"),
        ("inf", "Error: Invalid value for --every: expected seconds or a duration such as"),
        ("2 s", "Error: Invalid value for --every: expected seconds or a duration such as"),
        ("2s", "no kubeconfig"),
        ("0.5", "no kubeconfig"),
    ],
)
def test_interval_of_top_is_a_duration(
    every: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As that of `record`; it was a number of seconds, and could be infinite."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AUTOSCALE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(sys, "argv", ["autoscale", "top", "--every", every])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert (ended.value.code, said in capsys.readouterr().err) == (1 if said == "no kubeconfig" else 2, True)


def _flags(parameter: object) -> list[str]:
    return [name for name in getattr(parameter, "opts", ()) if name.startswith("-")]


def test_ctrl_c_during_imports_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Importing a command takes most of a second, long enough for a person who typed the wrong one."""

    def interrupted(_: str) -> ModuleType:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "import_module", interrupted)
    for entry in (program.main, program.plugin):
        with pytest.raises(SystemExit) as ended:
            entry()
        assert (ended.value.code, *capsys.readouterr()) == (130, "", "")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ([], [*program.CLUSTER_COMMANDS]),
        (["ch"], ["check"]),
        (["check", "--con"], ["--context"]),
        (["check", "-o", "json", "--p"], ["--pre"]),
        (["none", "x"], []),
        (["explain", "d"], ["db"]),
        (["migrate", "x"], []),
        (["explain", "db", "--wat"], ["--watch"]),
    ],
)
def test_kubectl_completes_the_plugin(
    typed: list[str], found: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(name_completion, "_names_of", lambda *_: [ObjectName("default", "db")])
    assert completed(monkeypatch, capsys, *typed) == found


@pytest.mark.parametrize(
    ("arguments", "made"),
    [(["top", "--once"], ["top"]), ([], list(program.COMMANDS)), (["--help"], list(program.COMMANDS))],
)
def test_only_the_requested_command_is_imported(
    arguments: list[str], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[list[str]] = []

    def app(asked: Iterable[str], *, completes: bool = False) -> Callable[[], None]:
        names.append(list(asked))
        return lambda: None

    monkeypatch.setattr(sys, "argv", ["autoscale", *arguments])
    monkeypatch.setattr(program, "app", app)
    program.main()
    assert names == [made]
