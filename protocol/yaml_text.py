"""YAML from people: settings, policies, kubeconfigs. The only reader of YAML that the services use.

Rules that hold here:

- A text is bounded in length, in depth, and in what its aliases stand for: reading it takes bounded time and memory.
- Whatever is wrong is a ``YamlError`` that says it in one line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import yaml

# libyaml's parser is much faster.
try:
    from yaml import CSafeLoader as _Parser
except ImportError:  # pragma: no cover - a PyYAML that was built without libyaml reads the same, slower
    from yaml import SafeLoader as _Parser  # type: ignore[assignment]

LONGEST: Final = 1024 * 1024
"""Characters. A ConfigMap holds no more."""

DEEPEST: Final = 64
"""Levels of nesting: more than any settings need, and few enough for every reader after this one."""


class YamlError(ValueError):
    """The text is not YAML, or not accepted here."""


def read_yaml(text: str, longest: int = LONGEST) -> object:
    """The only document in ``text``; None if it is empty. Raises ``YamlError``.

    >>> read_yaml("cpu: {target: 0.8}")
    {'cpu': {'target': 0.8}}
    >>> read_yaml("a: &x {n: 1}\\nb: {<<: *x, m: 2}")
    {'a': {'n': 1}, 'b': {'n': 1, 'm': 2}}
    """
    documents = read_documents(text, longest)
    if len(documents) > 1:
        raise YamlError(f"expected one document, got {len(documents)}")
    return documents[0] if documents else None


def read_documents(text: str, longest: int = LONGEST) -> list[object]:
    """All documents in ``text``. Raises ``YamlError``.

    >>> read_documents("a: 1\\n---\\nb: 2")
    [{'a': 1}, {'b': 2}]
    """
    if len(text) > longest:
        raise YamlError(f"expected at most {longest} characters, got {len(text)}")
    try:
        _check(text, longest)
        return list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise YamlError(f"no YAML: {place}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        # Ours already has its message.
        if isinstance(error, YamlError):
            raise
        raise YamlError(f"no YAML: {' '.join(str(error).split())[:200]}") from None


# Python takes quadratic time for very long integers.
_MOST_DIGITS: Final = 64


class _Loader(_Parser):
    """The safe loader, with libyaml if available, but without integers that no program can use."""

    def short_int(self, node: yaml.ScalarNode) -> int:
        """Also bounds integers of base 60 (``1:30`` in YAML 1.1), which Python's own limit of digits does not."""
        if len(node.value) > _MOST_DIGITS:
            raise YamlError(f"{_line(node)}: expected a number of at most {_MOST_DIGITS} digits")
        return int(self.construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.short_int)


def _check(text: str, most: int) -> None:
    """Refuses deep nesting, and aliases that stand for more than ``most`` nodes, before anything is built.

    Nothing here recurses: an alias counts as all that it stands for, which is known when its anchor is closed.
    """
    anchors: dict[str, _Size] = {}
    open_: list[tuple[_Size, str | None]] = []
    total = 0
    for event in yaml.parse(text, Loader=_Parser):
        anchor: str | None = getattr(event, "anchor", None)
        if isinstance(event, yaml.DocumentStartEvent):
            # Anchors are not shared between documents.
            anchors = {}
        elif isinstance(event, yaml.CollectionStartEvent):
            open_.append((_Size(), anchor))
            total += 1
            _allow(event, len(open_), total, most)
        elif isinstance(event, yaml.CollectionEndEvent):
            size, anchor = open_.pop()
            _closed(size, anchor, anchors, open_)
        elif isinstance(event, yaml.AliasEvent):
            # Also refuses an alias inside of its own anchor, which would stand for infinitely many values.
            if anchor not in anchors:
                raise YamlError(f"{_line(event)}: expected an alias of an anchor before it, got *{anchor}")
            size = anchors[anchor]
            total += size.nodes
            _allow(event, len(open_) + size.height, total, most)
            _closed(size, None, anchors, open_)
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            _closed(_Size(height=0), anchor, anchors, open_)


@dataclass(slots=True)
class _Size:
    """The number of nodes with aliases expanded, and the number of levels."""

    nodes: int = 1
    height: int = 1


def _closed(size: _Size, anchor: str | None, anchors: dict[str, _Size], open_: list[tuple[_Size, str | None]]) -> None:
    if anchor is not None:
        # Known only now that the anchor's node is closed.
        anchors[anchor] = size
    if open_:
        outer = open_[-1][0]
        outer.nodes += size.nodes
        outer.height = max(outer.height, size.height + 1)


def _allow(event: yaml.Event, depth: int, total: int, most: int) -> None:
    if depth > DEEPEST:
        raise YamlError(f"{_line(event)}: expected at most {DEEPEST} levels of nesting")
    if total > most:
        raise YamlError(f"{_line(event)}: expected aliases that stand for at most {most} values in all")


def _line(place: yaml.Event | yaml.Node) -> str:
    return f"line {place.start_mark.line + 1}" if place.start_mark is not None else "somewhere"
