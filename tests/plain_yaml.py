"""YAML of the project's own files, parsed by libyaml if PyYAML has it: ten times as fast as its Python loader."""

from __future__ import annotations

from typing import Any

import yaml

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # a PyYAML that was built without libyaml: the same, slower
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]


def load(text: str) -> Any:
    """The only document."""
    return yaml.load(text, Loader=_Loader)


def load_all(text: str) -> list[Any]:
    """All documents."""
    return list(yaml.load_all(text, Loader=_Loader))
