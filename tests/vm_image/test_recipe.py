"""The names of the layers follow their inputs, and every input is part of a name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from vm_image import recipe


def test_equal_recipes_have_equal_names() -> None:
    assert (recipe.base_key(), recipe.image_key()) == (recipe.base_key(), recipe.image_key())
    assert recipe.base_key() != recipe.image_key()


def test_another_package_changes_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    base, image = recipe.base_key(), recipe.image_key()
    monkeypatch.setattr(recipe, "PACKAGES", (*recipe.PACKAGES, "htop"))
    assert recipe.base_key() != base
    assert recipe.image_key() != image


def test_another_disk_size_changes_only_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    base, image = recipe.base_key(), recipe.image_key()
    monkeypatch.setattr(recipe, "DISK_MIB", recipe.DISK_MIB + 1)
    assert recipe.base_key() == base
    assert recipe.image_key() != image


def test_recipe_covers_every_file() -> None:
    listed = {file.source for file in recipe.GUEST_FILES}
    used_by_the_build = {"rootfs/customize.sh", "rootfs/initdb.sh", "rootfs/disk.sh"}
    there = {str(path.relative_to(recipe.HERE)) for path in (recipe.HERE / "rootfs").iterdir()}
    assert there == listed | used_by_the_build


@pytest.mark.parametrize("script", sorted(recipe.HERE.glob("*/*.sh")), ids=lambda path: path.name)
def test_guest_scripts_are_posix_shell(script: Path) -> None:
    assert subprocess.run(["sh", "-n", str(script)], capture_output=True, text=True, check=False).stderr == ""
