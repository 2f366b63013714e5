"""The subset of JSONPath that printer columns use.

``.a.b``, ``['a.b']``, ``.a\\.b``, ``[0]``, ``[-1]``, ``[*]`` and ``[?(@.type=="Ready")]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from deploy.local.apiserver.apimachinery.jsonvalue import field

_STEP: Final = re.compile(
    r"""(?P<all>\.?\[\*\]|\.\*)
      | \.(?P<name>(?:[^.\[\]\\]|\\.)+)
      | \[(?P<index>-?\d+)\]
      | \[(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\]
      | \[\?\(@\.(?P<key>[\w.]+)\s*==\s*(?P<mark>['"])(?P<value>.*?)(?P=mark)\)\]
    """,
    re.VERBOSE,
)

_Step = Callable[[Any], Iterable[Any]]


def _by_name(name: str) -> _Step:
    return lambda value: (value[name],) if isinstance(value, dict) and name in value else ()


def _by_index(index: int) -> _Step:
    return lambda value: (value[index],) if isinstance(value, list) and -len(value) <= index < len(value) else ()


def _all_items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _by_value(key: str, wanted: str) -> _Step:
    steps = key.split(".")
    return lambda value: [item for item in value if field(item, steps) == wanted] if isinstance(value, list) else ()


def _step(match: re.Match[str]) -> _Step:
    if match["name"] is not None:
        return _by_name(re.sub(r"\\(.)", r"\1", match["name"]))
    if match["index"] is not None:
        return _by_index(int(match["index"]))
    if match["all"] is not None:
        return _all_items
    if match["quoted"] is not None:
        return _by_name(match["quoted"])
    return _by_value(match["key"], match["value"])


# Cached: a list evaluates the same few paths for every object.
@lru_cache(maxsize=1024)
def _parse(path: str) -> tuple[_Step, ...]:
    # kubectl accepts a path with or without braces, `$` and the first dot.
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    if text and not text.startswith((".", "[")):
        text = f".{text}"
    steps: list[_Step] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        if not match:
            # An invalid path matches nothing; an error would break every list of the resource.
            return (lambda _: (),)
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def find(path: str, value: Any) -> list[Any]:
    """All matches of ``path`` in ``value``, in order."""
    values: Iterable[Any] = (value,)
    for step in _parse(path):
        values = [inner for outer in values for inner in step(outer)]
    return list(values)
