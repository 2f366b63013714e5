"""Each console script's extra has every distribution that the program may import."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import packages_distributions

import pytest
from packaging.utils import canonicalize_name

from deploy.images.building.image_build import native_platform
from deploy.images.catalogue import IMAGES, Image, Wheels
from deploy.images.inputs.checkout import Checkout
from deploy.images.inputs.wheelhouse import requirements_here
from deploy.images.rules.lock import closure
from tests.package.import_graph import ROOT, foreign_imports, source_of
from tests.package.programs import SCRIPTS, program_of


def missing(program: str, extras: Iterable[str]) -> dict[str, str]:
    """Missing imports of ``program`` in an installation with ``extras``, with the importing module."""
    requirements, providers = environment()
    installed = {pin.name for pin in closure("autoscaling", extras, requirements, Checkout().lock, native_platform())}
    return {
        name: importer
        for name, importer in foreign_imports(program.partition(":")[0]).items()
        if not installed & {canonicalize_name(each) for each in providers.get(name.partition(".")[0], ())}
    }


@cache
def environment() -> tuple[dict[str, list[str]], Mapping[str, list[str]]]:
    """Requirements of each distribution here, and the distributions of each top-level module."""
    return {**requirements_here(), "autoscaling": Checkout().requirements}, packages_distributions()


@pytest.mark.parametrize("script", SCRIPTS)
def test_extra_covers_all_imports(script: str) -> None:
    """Imports in functions and modules started by name count too: they fail later, in the middle of a command."""
    program, extra = program_of(script)
    assert missing(program, [extra] if extra else []) == {}


@pytest.mark.parametrize("image", [image for image in IMAGES.values() if image.starts], ids=lambda image: image.name)
def test_image_has_all_wheels_it_imports(image: Image) -> None:
    extras = [extra for layer in image.layers if isinstance(layer, Wheels) for extra in layer.extras]
    assert missing(image.starts, extras) == {}


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_starts_an_existing_function(script: str) -> None:
    module, _, function = program_of(script)[0].partition(":")
    source = source_of(module)
    assert source is not None
    assert f"def {function}(" in source.read_text()


def test_build_uses_the_locked_setuptools() -> None:
    """``make env`` builds without isolation, so that nothing is fetched whose hash is not known."""
    (backend,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert backend == f"setuptools=={Checkout().lock['setuptools'].version}"


def test_agent_needs_no_extra() -> None:
    """It runs next to every VM: its requirements are the base of all others."""
    assert program_of("autoscaler-agent")[1] == ""
