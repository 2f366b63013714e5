"""A release takes the place of an earlier one when it is whole, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.images.inputs.checkout import Checkout
from deploy.release.__main__ import main
from deploy.release.assemble import ArchiveError, assemble
from tests.deploy.release.test_release import image
from vm_image.host import BuildError


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The folder of a release of one image."""
    return assemble(Checkout(), [image(tmp_path / "built")], tmp_path / "out" / "release").folder


def test_release_replaces_earlier_one(tmp_path: Path, made: Path) -> None:
    assemble(Checkout(), [image(tmp_path / "built", "autoscale-scheduler")], made)
    assert [path.name for path in (made / "images").iterdir()] == ["autoscale-scheduler-amd64.tar"]
    assert not (made / "autoscaler-agent-amd64.cdx.json").exists()
    assert [path.name for path in made.parent.iterdir()] == ["release"]


def test_release_is_rebuilt_from_archives(made: Path) -> None:
    before = contents(made)
    assemble(Checkout(), sorted((made / "images").iterdir()), made)
    assert contents(made) == before


def test_failed_release_keeps_earlier_one(tmp_path: Path, made: Path) -> None:
    before = contents(made)
    (tmp_path / "half.tar").write_bytes((tmp_path / "built" / "layer").read_bytes())
    with pytest.raises(ArchiveError, match="not an image archive"):
        assemble(Checkout(), [tmp_path / "half.tar"], made)
    assert contents(made) == before
    assert [path.name for path in made.parent.iterdir()] == ["release"]


def put(name: str, text: str = "mine") -> Callable[[Path], None]:
    """Puts a file into a folder."""

    def into(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return into


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (put("notes.txt"), "notes.txt"),
        (put("images/photo.png"), "images/photo.png"),
        (put("sbom/mine.txt"), "sbom"),
        (put("release.json"), "CHANGES.md, SHA256SUMS, autoscale-"),
        (put("SHA256SUMS", "mine\n"), "CHANGES.md, SHA256SUMS, autoscale-"),
    ],
)
def test_modified_release_is_left_alone(tmp_path: Path, made: Path, harm: Callable[[Path], None], named: str) -> None:
    harm(made)
    before = contents(made)
    with pytest.raises(BuildError) as refused:
        assemble(Checkout(), [image(tmp_path / "built")], made)
    start = f"{made} contains other files than a release ({named}"
    assert str(refused.value).startswith(start)
    assert contents(made) == before


@pytest.mark.parametrize("name", ["thesis.tex", "images/photo.tar", ".profile", "release.json"])
def test_foreign_folder_is_refused_before_build(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    put(name, "{}")(tmp_path / "home")
    assert main(["--check", "--output", str(tmp_path / "home")]) == 2
    assert main([str(image(tmp_path / "built")), "--output", str(tmp_path / "home")]) == 2
    said = f"release: {tmp_path}/home contains other files than a release ({name.partition('/')[0]})"
    assert [line.startswith(said) for line in capsys.readouterr().err.splitlines()] == [True, True]
    assert contents(tmp_path / "home") == {name: b"{}"}


def test_empty_or_missing_folder_is_writable(tmp_path: Path, made: Path) -> None:
    for folder in (tmp_path / "new" / "one", made):
        assert main(["--check", "--output", str(folder)]) == 0
    (tmp_path / "empty").mkdir()
    assemble(Checkout(), [image(tmp_path / "built")], tmp_path / "empty")
    assert contents(tmp_path / "empty") == contents(made)
    assert (tmp_path / "empty").stat().st_mode == made.parent.stat().st_mode


@pytest.mark.parametrize("words", [["--output", "x"], ["--check", "image.tar"]])
def test_make_and_check_exclude_each_other(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert "expected either archives or --check" in capsys.readouterr().err
