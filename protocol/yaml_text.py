"""Parses YAML written by users: settings, policies, kubeconfigs. The only YAML parser of the services.

Rules that hold here:

- Length, nesting depth and alias expansion of a text are limited, so parsing takes bounded time and memory.
- No mapping has a key twice, as one of its values would be ignored.
- The only error is ``YamlError``, with a one-line message.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import yaml

from protocol.field_errors import shown

# libyaml's parser is much faster.
try:
    from yaml import CSafeLoader as _Parser
except ImportError:  # pragma: no cover - PyYAML built without libyaml: same result, but slower
    from yaml import SafeLoader as _Parser  # type: ignore[assignment]

LONGEST: Final = 1024 * 1024
"""Maximum length in characters, which is the maximum size of a ConfigMap."""

DEEPEST: Final = 64
"""Maximum nesting: more than any settings need, but safe for recursive decoders."""


class YamlError(ValueError):
    """The text is not YAML, or exceeds a limit."""


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
        raise YamlError(f"invalid YAML: {place}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        # Our own errors already have a message.
        if isinstance(error, YamlError):
            raise
        raise YamlError(f"invalid YAML: {' '.join(str(error).split())[:200]}") from None


# Python takes quadratic time for very long integers.
_MAX_DIGITS: Final = 64


# Keys without a value of their own: `<<` and `=`.
_BARE: Final = ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")


class _Loader(_Parser):
    """The safe loader, with libyaml if available, that rejects absurdly long integers and repeated keys."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._checked: set[yaml.MappingNode] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace merge keys by the pairs of their mappings."""
        # Only once: merged pairs precede a mapping's own, which may have the same keys.
        if node not in self._checked:
            self._checked.add(node)
            self._refuse_repeated_keys(node)
        super().flatten_mapping(node)

    def _refuse_repeated_keys(self, node: yaml.MappingNode) -> None:
        lines: dict[object, int] = {}
        for key, _ in node.value:
            # Constructed, because `on` and `true` are the same key.
            value = key.value if key.tag in _BARE else self.construct_object(key)
            # PyYAML refuses the others.
            if isinstance(value, Hashable):
                line = key.start_mark.line + 1
                if value in lines:
                    raise YamlError(f"line {line}: repeats the key {shown(key.value)} of line {lines[value]}")
                lines[value] = line

    def short_int(self, node: yaml.ScalarNode) -> int:
        """Construct an integer of limited length. Python's own limit does not cover base 60 (``1:30`` in YAML 1.1)."""
        if len(node.value) > _MAX_DIGITS:
            raise YamlError(f"{_line(node)}: expected a number of at most {_MAX_DIGITS} digits")
        return int(self.construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.short_int)


def _check(text: str, most: int) -> None:
    """Reject deep nesting, and aliases that expand to more than ``most`` nodes, before constructing anything.

    It does not recurse: an alias counts as the size of its expansion, which is known once its anchor is closed.
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
            # Also rejects an alias within its own anchor, whose expansion would be infinite.
            if anchor not in anchors:
                raise YamlError(f"{_line(event)}: expected an alias of an earlier anchor, got *{anchor}")
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
        # The size is known only now that the anchor's node is closed.
        anchors[anchor] = size
    if open_:
        outer = open_[-1][0]
        outer.nodes += size.nodes
        outer.height = max(outer.height, size.height + 1)


def _allow(event: yaml.Event, depth: int, total: int, most: int) -> None:
    if depth > DEEPEST:
        raise YamlError(f"{_line(event)}: expected at most {DEEPEST} levels of nesting")
    if total > most:
        raise YamlError(f"{_line(event)}: expected at most {most} values with all aliases expanded")


def _line(place: yaml.Event | yaml.Node) -> str:
    return f"line {place.start_mark.line + 1}" if place.start_mark is not None else "somewhere"
