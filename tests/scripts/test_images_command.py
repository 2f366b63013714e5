"""`autoscale images`: its output before anything is built or sent."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.images.catalogue import IMAGES
from deploy.images.inputs.apt import check_tools
from scripts.autoscale.main import app
from vm_image.host import BuildError


def said(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app(["images"]), ["images", *words], env={"COLUMNS": "300"})
    return result.exit_code, re.sub(r"[│╭╮╰╯─\s]+", " ", result.output)


def test_images_are_listed_with_optional_layers() -> None:
    for words in ((), ("-o", "wide"), ("-o", "yaml")):
        code, output = said("list", *words)
        assert (code, [each for each in IMAGES if each not in output]) == (0, [])
        assert ("layers" in output) is bool(words)
    _, output = said("list", "-o", "json")
    assert json.loads(output)[0] == {
        "name": "autoscaler-agent",
        "title": IMAGES["autoscaler-agent"].title,
        "ports": [9101],
        "layers": [each.name for each in IMAGES["autoscaler-agent"].layers],
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("build", "agent"), "unknown image agent; available: autoscaler-agent,"),
        (
            ("build", "--platform", "linux/riscv64"),
            "unknown platform linux/riscv64; available: linux/amd64, linux/arm64",
        ),
        (("build", "--snapshot", "yesterday"), "expected a time such as 20260102T030405Z, got 'yesterday'"),
        (("push", "registry.test", "agent"), "unknown image agent"),
        (("unpack", "agent", "x"), "unknown image agent"),
    ],
)
def test_unknown_name_lists_known_ones(words: tuple[str, ...], message: str) -> None:
    code, output = said(*words)
    assert code == 2
    assert message in output


def test_an_image_is_built_before_it_is_pushed(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    code, output = said("push", "registry.test", "autoscaler-agent", "--output", str(tmp_path))
    assert code == 1
    assert "build it: autoscale images build autoscaler-agent" in output
    assert signal.getsignal(signal.SIGTERM) is before


def test_unsupported_platform_is_skipped_and_reported(tmp_path: Path) -> None:
    both = ("--platform", "linux/amd64", "--platform", "linux/arm64")
    code, output = said("push", "registry.test", "postgres-vm", *both, "--output", str(tmp_path))
    assert code == 1
    assert "postgres-vm: skipped for linux/arm64, which it is not built for" in output
    assert f"{tmp_path}/postgres-vm-amd64.tar not found; build it" in output


def test_default_is_all_images_of_the_platform(tmp_path: Path) -> None:
    code, output = said("push", "registry.test", "--platform", "linux/arm64", "--output", str(tmp_path))
    assert (code, "postgres-vm: skipped for linux/arm64" in output) == (1, True)
    assert f"{tmp_path}/autoscaler-agent-arm64.tar not found; build it" in output


@pytest.mark.parametrize("verb", [("build",), ("push", "registry.test")])
def test_named_image_without_platform_is_an_error(verb: tuple[str, ...]) -> None:
    code, output = said(*verb, "postgres-vm", "--platform", "linux/arm64")
    assert (code, "postgres-vm is not built for linux/arm64" in output) == (1, True)


def test_files_are_never_mixed_with_others(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    code, output = said("unpack", "autoscaler-agent", str(tmp_path))
    assert code == 1
    assert "is not empty" in output


@pytest.mark.parametrize(
    ("has_apt", "has_keys", "missing"),
    [(False, False, "apt and debian-archive-keyring"), (False, True, "apt"), (True, False, "debian-archive-keyring")],
)
def test_missing_debian_tools_are_named(has_apt: bool, has_keys: bool, missing: str) -> None:
    with pytest.raises(BuildError, match=f"cannot download Debian packages without {missing}: "):
        check_tools(has_apt, has_keys)
    check_tools(has_apt=True, has_keys=True)
