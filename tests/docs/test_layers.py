"""Modules that claim to be pure are in the import contract, and folders have few modules."""

from __future__ import annotations

import ast
import re
import tomllib
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("agent", "deploy", "protocol", "scheduler_plugin", "scripts", "vm_image")
MOST_MODULES = 16
_CLAIM = re.compile(r"\bpure\b", re.IGNORECASE)
SPEAKS_OF_OTHERS = {
    "protocol.runtime": "names the pure modules around it",
    "scheduler_plugin.expander": "names its pure modules, each of which is in the contract",
    "scheduler_plugin.migration": "names its pure core, which is in the contract",
    "scripts.autoscale.demonstration.pgbench": "names the functions in it that are",
    "scripts.autoscale.demonstration.vm_clients": "names the functions in it that are",
    "scripts.autoscale.demonstration.screen": "names the functions in it that are",
}


def modules() -> dict[str, Path]:
    """Every module of the project by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def contract(name: str) -> list[str]:
    """The source modules of one contract."""
    parser = ConfigParser()
    parser.read(ROOT / ".importlinter")
    return parser[f"importlinter:contract:{name}"]["source_modules"].split()


def docstring(source: str) -> str:
    """The head of a module; empty if the source claims nothing at all, which is much faster to see."""
    return (ast.get_docstring(ast.parse(source)) or "") if _CLAIM.search(source) else ""


def is_within(module: str, packages: list[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_pure_modules_are_in_the_contract() -> None:
    pure = contract("cores-are-pure")
    claims = {
        name
        for name, path in modules().items()
        if name not in SPEAKS_OF_OTHERS and _CLAIM.search(docstring(path.read_text()))
    }
    assert sorted(name for name in claims if not is_within(name, pure)) == []


def test_exceptions_still_exist() -> None:
    assert SPEAKS_OF_OTHERS.keys() <= modules().keys()


def test_fully_covered_packages_are_pure() -> None:
    covered = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]["source_pkgs"]
    assert [name for name in covered if not is_within(name, contract("cores-are-pure"))] == []


def test_folders_have_few_modules() -> None:
    counts: dict[Path, int] = {}
    for path in modules().values():
        if not path.name.startswith("__"):
            counts[path.parent] = counts.get(path.parent, 0) + 1
    found = {str(path.relative_to(ROOT)): count for path, count in counts.items()}
    assert {name: count for name, count in found.items() if count > MOST_MODULES} == {}
