"""The command ``autoscale`` brings in what one of its commands needs, and no other."""

import sys
from collections.abc import Callable, Iterable

import pytest
from typer.main import get_command

from scripts.autoscale import main as program


@pytest.mark.parametrize("name", program.COMMANDS)
def test_a_command_alone_is_still_called_by_its_name(name: str) -> None:
    assert list(getattr(get_command(program.app([name])), "commands", {})) == [name]


@pytest.mark.parametrize(
    ("arguments", "made"),
    [(["top", "--once"], ["top"]), ([], list(program.COMMANDS)), (["--help"], list(program.COMMANDS))],
)
def test_only_the_command_that_is_asked_for_is_made(
    arguments: list[str], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[list[str]] = []

    def app(asked: Iterable[str]) -> Callable[[], None]:
        names.append(list(asked))
        return lambda: None

    monkeypatch.setattr(sys, "argv", ["autoscale", *arguments])
    monkeypatch.setattr(program, "app", app)
    program.main()
    assert names == [made]
