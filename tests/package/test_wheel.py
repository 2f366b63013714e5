"""The wheel, installed in a clean environment in another folder, works as the checkout does."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from email import message_from_string
from functools import cache
from pathlib import Path

import pytest

from deploy.images.building.image_build import native_platform
from deploy.images.inputs.checkout import Checkout
from deploy.images.inputs.wheelhouse import requirements_here
from deploy.images.rules.lock import closure
from protocol import VERSION
from tests.package.import_graph import OURS
from tests.package.installation import Installation, build_wheel
from tests.package.programs import SCRIPTS, program_of

STAYS_OUT = {"deploy/images/Dockerfile"}
"""Files of the packages that only a checkout can use."""

Installed = Callable[[str], Installation]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Gives the environment of an extra; "" is the one without any."""

    @cache
    def make(extra: str) -> Installation:
        requirements = {**requirements_here(), "autoscaling": Checkout().requirements}
        extras = [extra] if extra else []
        pins = closure("autoscaling", extras, requirements, Checkout().lock, native_platform())
        return Installation.create(tmp_path_factory.mktemp(extra or "base"), built[1], pins)

    return make


def files_below(folder: Path) -> Iterator[str]:
    """Files of the packages; kubectl follows links to folders of the chart, and so does the wheel."""
    for package in OURS:
        for path, _, names in os.walk(folder / package, followlinks=True):
            yield from (str((Path(path) / name).relative_to(folder)) for name in names)


def test_wheel_has_every_file(built: tuple[Path, Path]) -> None:
    """Programs read charts, manifests, module sets and scripts of guests from folders of the wheel."""
    sources, wheel = built
    with zipfile.ZipFile(wheel) as archive:
        assert set(files_below(sources)) - set(archive.namelist()) == STAYS_OUT


def test_description_warns_about_top_level_names(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        description = message_from_string(archive.read(name).decode()).get_payload()
    (sentence,) = (line for line in str(description).splitlines() if "top-level names" in line)
    assert [each for each in OURS if f"`{each}`" not in sentence] == []


@pytest.mark.parametrize("script", ["autoscale", "autoscale-scheduler", "neonvm-network"])
def test_script_without_extra_names_it(script: str, installed: Installed) -> None:
    _, extra = program_of(script)
    ended = installed("").run(script, "--help")
    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (69, "")
    assert line.startswith(f"{script}: the module ")
    assert line.endswith(f"run: pip install 'autoscaling[{extra}]'")


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_starts_outside_of_a_checkout(script: str, installed: Installed) -> None:
    """``neonvm`` has all that the services need."""
    _, extra = program_of(script)
    environment = installed("cli" if extra == "cli" else "neonvm" if extra else "")
    if script == "kubectl_complete-autoscaling":
        ended = environment.run(script, "che")
        assert (ended.returncode, ended.stdout) == (0, "check\n:4\n")
        return
    ended = environment.run(script, "--version")
    assert (ended.returncode, ended.stdout.split()[-1], ended.stderr) == (0, VERSION, "")
    ended = environment.run(script, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "sage: " in ended.stdout


def test_local_cluster_runs_outside_of_a_checkout(installed: Installed) -> None:
    """Quick start without QEMU: API server, scheduler, controller and agent are all started from the wheel."""
    environment, name = installed("cli"), f"--name=wheel-{os.getpid()}"
    simulated = ("--guests=simulated", "--network=loopback", "--nodes=1", "--vms=1", "--detach")
    try:
        up = environment.run("autoscale", "local", "up", *simulated, name)
        assert (up.returncode, up.stderr) == (0, ""), up.stdout
        top = environment.run("autoscale", "top", "--once", name)
        assert (top.returncode, "vm-1" in top.stdout) == (0, True), top.stdout + top.stderr
    finally:
        down = environment.run("autoscale", "local", "down", name)
    assert (down.returncode, down.stderr) == (0, "")


@pytest.mark.parametrize("command", [("images", "build"), ("images", "unpack", "autoscaler-agent", "x")])
def test_image_build_needs_a_checkout(command: tuple[str, ...], installed: Installed) -> None:
    """It is refused before anything is fetched."""
    environment = installed("cli")
    ended = environment.run("autoscale", *command)
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert "building images needs a checkout of the project (git clone)" in line
    assert not (environment.folder / "home" / ".cache").exists()


def test_demo_on_kubernetes_needs_a_checkout(installed: Installed) -> None:
    """Its cluster takes minutes to build; its images need the lock of a checkout."""
    ended = installed("cli").run("autoscale", "demo", "--kubernetes")
    assert ended.returncode == 2
    assert "checkout" in ended.stderr
