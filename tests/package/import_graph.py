"""The modules that a program may import, found in the source: at once, later, or by name."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
OURS: Final = frozenset({"protocol", "agent", "scheduler_plugin", "deploy", "scripts", "vm_image"})
_NAMED: Final = re.compile(rf"(?:{'|'.join(sorted(OURS))})(?:\.\w+)*(?=:\w+$|$)")
"""``module`` or ``module:function``, as programs are named for ``import_module`` and ``-m``."""


def foreign_imports(module: str) -> dict[str, str]:
    """The modules of other distributions that ``module`` imports, directly or not, each with our module that imports
    it.
    """
    foreign, seen, pending = dict[str, str](), set[str](), [module]
    while pending:
        name = pending.pop()
        if name in seen or (file := source_of(name)) is None:
            continue
        seen.add(name)
        for imported in _imports(file, name):
            top = imported.partition(".")[0]
            if top in OURS:
                pending += _with_parents(imported)
            elif top not in sys.stdlib_module_names:
                foreign.setdefault(imported, name)
    return foreign


def source_of(module: str) -> Path | None:
    """The file of our module or package; None if there is none."""
    path = ROOT.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _with_parents(module: str) -> list[str]:
    words = module.split(".")
    return [".".join(words[:length]) for length in range(1, len(words) + 1)]


@cache
def _imports(file: Path, name: str) -> tuple[str, ...]:
    return tuple(_imported_by(ast.parse(file.read_text()), name))


def _imported_by(tree: ast.AST, name: str) -> Iterator[str]:
    """Imports anywhere in a module, and strings that name a module, except ``….__main__:main``, which images name."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{each.name}" for each in names if source_of(f"{module}.{each.name}"))
            case ast.Constant(value=str(text)) if (named := _NAMED.match(text)) and not named[0].endswith("__main__"):
                yield from (named[0], f"{named[0]}.__main__")
