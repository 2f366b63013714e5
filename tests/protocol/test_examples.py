"""Every public function of the pure library has an example in its docstring, and the examples are true."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import protocol

MODULES = sorted(found.name for found in pkgutil.walk_packages(protocol.__path__, "protocol."))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith("protocol.runtime")])
def test_every_public_function_has_an_example(name: str) -> None:
    module = importlib.import_module(name)
    functions = [each for each in vars(module).values() if inspect.isfunction(each) and each.__module__ == name]
    public = [each for each in functions if not each.__name__.startswith("_")]
    assert [each.__name__ for each in public if ">>>" not in (each.__doc__ or "")] == []
