"""YAML from people: settings, policies, kubeconfigs. The only reader of YAML that the services use.

Rules that hold here:

- A text is bounded in length and depth and has no anchors: reading it takes bounded time and memory.
- Whatever is wrong is a ``YamlError`` that says it in one line.
"""

from __future__ import annotations

from typing import Final

import yaml

try:
    from yaml import CSafeLoader as _Parser
except ImportError:  # pragma: no cover - a PyYAML that was built without libyaml reads the same, slower
    from yaml import SafeLoader as _Parser  # type: ignore[assignment]

LONGEST: Final = 1024 * 1024
"""Characters. A ConfigMap holds no more."""

DEEPEST: Final = 64
"""Levels of nesting: more than any settings need, and few enough for every reader after this one."""


class YamlError(ValueError):
    """The text is no YAML that is accepted here."""


def read_yaml(text: str, longest: int = LONGEST) -> object:
    """The only document in ``text``; None where it is empty. Raises ``YamlError``.

    >>> read_yaml("cpu: {target: 0.8}")
    {'cpu': {'target': 0.8}}
    >>> read_yaml("a: &x [1]\\nb: *x")
    Traceback (most recent call last):
    protocol.yaml_text.YamlError: line 1: expected no anchors
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
        _check(text)
        return list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise YamlError(f"no YAML: {place}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, YamlError):
            raise
        raise YamlError(f"no YAML: {' '.join(str(error).split())[:200]}") from None


_MOST_DIGITS: Final = 64


class _Loader(_Parser):
    """The safe loader, by libyaml where it is there, without integers that no program can use."""

    def short_int(self, node: yaml.ScalarNode) -> int:
        """YAML 1.1 has integers to the base of 60, whose digits multiply."""
        if len(node.value) > _MOST_DIGITS:
            raise YamlError(f"{_line(node)}: expected a number of at most {_MOST_DIGITS} digits")
        return int(self.construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.short_int)


def _check(text: str) -> None:
    """Refuses anchors and deep nesting before anything is built; nothing here recurses."""
    depth = 0
    for event in yaml.parse(text, Loader=_Parser):
        if getattr(event, "anchor", None) is not None:
            raise YamlError(f"{_line(event)}: expected no anchors")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                raise YamlError(f"{_line(event)}: expected at most {DEEPEST} levels of nesting")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _line(place: yaml.Event | yaml.Node) -> str:
    return f"line {place.start_mark.line + 1}" if place.start_mark is not None else "somewhere"
