"""The table of images agrees with the project: programs, packages, extras, and the file for docker."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from deploy.images.catalogue import (
    IMAGES,
    NON_ROOT,
    PYTHON,
    GuestDisk,
    GuestKernel,
    Image,
    ImageSources,
    Packages,
    Wheels,
)
from deploy.images.inputs.apt import installed
from deploy.images.inputs.checkout import Checkout
from deploy.images.inputs.wheelhouse import requirements_here
from deploy.images.rules.base_files import ENVIRONMENT
from deploy.images.rules.lock import closure
from deploy.images.rules.platforms import PLATFORMS
from tests.deploy.manifests import ROOT
from tests.package.programs import program_of

SERVICES = [image for image in IMAGES.values() if not image.is_guest]
WITH_DOCKER = [
    image for image in SERVICES if not any(isinstance(layer, GuestDisk | GuestKernel) for layer in image.layers)
]
AS_ROOT = {"neonvm-devices", "neonvm-network"}
"""The kubelet's folder is root's; and only root's programs keep a right over the node's network when they start others.
"""


def by_name(image: Image) -> str:
    return image.name


def extras_of(image: Image) -> list[str]:
    return [extra for layer in image.layers if isinstance(layer, Wheels) for extra in layer.extras]


@pytest.mark.parametrize("image", SERVICES, ids=by_name)
def test_image_entrypoint_is_in_a_layer(image: Image) -> None:
    module, _, function = image.starts.partition(":")
    path = f"{module.replace('.', '/')}.py"
    assert f"def {function}(" in (ROOT / path).read_text()
    packages = [package for layer in image.layers if isinstance(layer, ImageSources) for package in layer.packages]
    assert any(module.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("image", SERVICES, ids=by_name)
def test_image_has_all_imported_modules(image: Image) -> None:
    packages = [package for layer in image.layers if isinstance(layer, ImageSources) for package in layer.packages]
    there = {
        file.path.partition("dist-packages/")[2] for package in packages for file in Checkout().package_files(package)
    }
    assert imported(image.starts.partition(":")[0]) - there == set()


def imported(module: str) -> set[str]:
    """The files of this project that a module imports when it is imported, and theirs, and so on."""
    found, left = set[str](), [module]
    while left:
        file = file_of(left.pop())
        if file and file not in found:
            found.add(file)
            left += names_imported_by(file)
    return found


def names_imported_by(file: str) -> list[str]:
    """Modules, and what may be modules: what is imported from a package."""
    names = list[str]()
    for each in ast.parse((ROOT / file).read_text()).body:
        if isinstance(each, ast.Import):
            names += [alias.name for alias in each.names]
        elif isinstance(each, ast.ImportFrom) and each.module:
            names += [each.module, *(f"{each.module}.{alias.name}" for alias in each.names)]
    return names


def file_of(name: str) -> str:
    """The file of a module or package of this project; empty if there is none of that name."""
    path = name.replace(".", "/")
    return next((each for each in (f"{path}.py", f"{path}/__init__.py") if (ROOT / each).is_file()), "")


@pytest.mark.parametrize("image", WITH_DOCKER, ids=by_name)
def test_service_starts_from_pyproject_without_root(image: Image) -> None:
    assert program_of(image.name)[0] == image.starts
    assert (image.user != NON_ROOT) == (image.name in AS_ROOT)


@pytest.mark.parametrize("image", SERVICES, ids=by_name)
def test_image_wheels_are_locked_per_platform(image: Image) -> None:
    checkout = Checkout()
    requirements = {**requirements_here(), checkout.name: checkout.requirements}
    for platform in PLATFORMS.values():
        names = {pin.name for pin in closure(checkout.name, extras_of(image), requirements, checkout.lock, platform)}
        assert {"httpx2", "msgspec", "prometheus-client", "pyyaml"} <= names
        assert not names & {"pytest", "numpy", "typer", "textual"}


def test_images_share_their_lowest_layers() -> None:
    assert len({image.layers[:2] for image in SERVICES}) == 1


def test_layers_with_one_name_are_equal() -> None:
    layers = {layer for image in IMAGES.values() for layer in image.layers}
    assert len({layer.name for layer in layers}) == len(layers)


@pytest.mark.parametrize("image", WITH_DOCKER, ids=by_name)
def test_the_file_for_docker_says_the_same(image: Image) -> None:
    text = (ROOT / "deploy/images/Dockerfile").read_text()
    ports = " ".join(map(str, image.ports))
    user = "" if image.user == NON_ROOT else f"USER {image.user}\n"
    assert f"autoscale images unpack {image.name} /image" in text
    assert (
        f"FROM empty AS {image.name}\nCOPY --from=files-{image.name} /image /\n{user}EXPOSE {ports}\n"
        f'ENTRYPOINT ["/usr/local/bin/{image.name}"]\n'
    ) in text
    assert f"USER {NON_ROOT}\n" in text.partition("FROM empty")[0]
    assert f"ENV {' '.join(f'{name}={value}' for name, value in ENVIRONMENT.items())}\n" in text
    assert set(re.findall(r"^FROM empty AS (\S+)$", text, re.MULTILINE)) == {each.name for each in WITH_DOCKER}


def test_what_only_an_installation_needs_is_not_fetched() -> None:
    said = installed("arm64")
    assert {"debconf", "dpkg", "perl-base"} <= set(re.findall(r"^Package: (\S+)$", said, re.MULTILINE))
    wanted = {
        name
        for image in IMAGES.values()
        for each in image.layers
        if isinstance(each, Packages)
        for name in each.packages
    }
    assert not wanted & set(re.findall(r"^Package: (\S+)$", said, re.MULTILINE))


def test_package_brings_parent_packages() -> None:
    paths = [file.path.rpartition("dist-packages/")[2] for file in Checkout().package_files("deploy.kube")]
    assert {"deploy/__init__.py", "deploy/kube/__init__.py", "deploy/kube/client.py"} <= set(paths)
    assert not any("__pycache__" in path or path.startswith("deploy/local") for path in paths)


def test_no_imported_python_module_is_left_out() -> None:
    folders = {name.replace(".", "/") for image in IMAGES.values() for name in sources_of(image)}
    texts = (path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))
    imported = {name for text in texts for name in re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE)}
    left_out = {Path(each).parent.name for each in PYTHON.left_out if each.startswith("usr/lib/python3.11/")}
    left_out |= {Path(each).stem.lstrip("_") for each in PYTHON.left_out if "lib-dynload" in each}
    assert imported & left_out == set()


def sources_of(image: Image) -> list[str]:
    return [name for layer in image.layers if isinstance(layer, ImageSources) for name in layer.packages]


def test_all_images_but_guest_are_multi_platform() -> None:
    lacks = {(image.name, each) for image in IMAGES.values() for each in PLATFORMS if not image.is_built_for(each)}
    assert lacks == {("postgres-vm", "linux/arm64")}
