"""Validation of the names of objects and labels, and completion of ``generateName``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Final

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_MAX_SUBDOMAIN: Final = 253
_DNS_LABEL: Final = re.compile(_LABEL)
_PART: Final = re.compile("([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_MAX_PART: Final = 63
# Kubernetes' alphabet: without vowels and 0, 1 and 3, so that suffixes rarely spell words.
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH: Final = 5
_MAX_BASE: Final = _MAX_PART - _SUFFIX_LENGTH

# The rules are quoted from kube-apiserver, double spaces included.
_SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_KEY_RULE: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    f"'{_PART.pattern}')"
)
_VALUE_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'({_PART.pattern})?')"
)
_QUALIFIED_RULE: Final = (
    "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    f"'{_PART.pattern}') with an optional DNS subdomain prefix and '/' (e.g. "
    "'example.com/MyName')"
)
_PATH_RULE: Final = "may not be '.', may not be '..', may not contain '/', may not contain '%'"

# RBAC names such as `system:node` only need to be a valid path segment.
_PATH_SEGMENT_GROUP: Final = "rbac.authorization.k8s.io"
# Their names become DNS labels.
_LABEL_NAMED: Final = frozenset({"namespaces", "services"})


def name_error(resource_key: str, name: str) -> str | None:
    """The error in ``name`` of an object of resource ``plural.group``; None if it is valid."""
    if resource_key.endswith(_PATH_SEGMENT_GROUP):
        return _PATH_RULE if name in {".", ".."} or "/" in name or "%" in name else None
    if resource_key in _LABEL_NAMED:
        return None if len(name) <= _MAX_PART and _DNS_LABEL.fullmatch(name) else _LABEL_RULE
    return None if len(name) <= _MAX_SUBDOMAIN and _SUBDOMAIN.fullmatch(name) else _SUBDOMAIN_RULE


@lru_cache(maxsize=4096)
def label_errors(name: str) -> tuple[str, ...]:
    """Errors in the name of a container."""
    faults = (
        (len(name) > _MAX_PART, f"must be no more than {_MAX_PART} bytes"),
        (not _DNS_LABEL.fullmatch(name), _LABEL_RULE),
    )
    return tuple(rule for is_broken, rule in faults if is_broken)


@lru_cache(maxsize=4096)
def key_errors(key: str) -> tuple[str, ...]:
    """Errors in a qualified name: the key of a label, an annotation or a taint, or a finalizer."""
    *prefixes, name = key.split("/")
    if len(prefixes) > 1:
        return (_QUALIFIED_RULE,)
    return tuple(chain(_prefix_errors(prefixes), _key_name_errors(name)))


def _prefix_errors(prefixes: list[str]) -> Iterator[str]:
    for prefix in prefixes:
        if not prefix:
            yield "prefix part must be non-empty"
        elif not (len(prefix) <= _MAX_SUBDOMAIN and _SUBDOMAIN.fullmatch(prefix)):
            yield f"prefix part {_SUBDOMAIN_RULE}"


def _key_name_errors(name: str) -> Iterator[str]:
    if not name:
        yield "name part must be non-empty"
    if len(name) > _MAX_PART:
        yield f"name part must be no more than {_MAX_PART} bytes"
    if not _PART.fullmatch(name):
        yield _KEY_RULE


@lru_cache(maxsize=4096)
def value_errors(value: str) -> tuple[str, ...]:
    """Errors in the value of a label or a taint."""
    faults = (
        (len(value) > _MAX_PART, f"must be no more than {_MAX_PART} bytes"),
        (bool(value) and not _PART.fullmatch(value), _VALUE_RULE),
    )
    return tuple(rule for is_broken, rule in faults if is_broken)


def generated_name(base: str, choose: Callable[[str], str]) -> str:
    """``base`` with a suffix of five characters picked by ``choose``; truncated to 63 characters in all."""
    return base[:_MAX_BASE] + "".join(choose(_ALPHABET) for _ in range(_SUFFIX_LENGTH))
