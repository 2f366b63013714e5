"""Every public function of the pure library has an example in its docstring; ``tests/docs`` runs them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import protocol

NAMES = (found.name for found in pkgutil.walk_packages(protocol.__path__, "protocol."))
MODULES = sorted(name for name in NAMES if not name.startswith("protocol.runtime"))


@pytest.mark.parametrize("name", MODULES)
def test_every_public_function_has_an_example(name: str) -> None:
    module = importlib.import_module(name)
    functions = [each for each in vars(module).values() if inspect.isfunction(each) and each.__module__ == name]
    public = [each for each in functions if not each.__name__.startswith("_")]
    assert [each.__name__ for each in public if ">>>" not in (each.__doc__ or "")] == []
