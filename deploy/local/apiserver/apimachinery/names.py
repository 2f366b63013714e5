"""Names of objects: what is allowed, and how ``generateName`` completes one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_DNS_LABEL: Final = re.compile(_LABEL)
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH: Final = 5
_LONGEST_BASE: Final = 63 - _SUFFIX_LENGTH

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
_PATH_RULE: Final = "may not be '.', may not be '..', may not contain '/', may not contain '%'"

_PATH_SEGMENT_GROUP: Final = "rbac.authorization.k8s.io"
_LABEL_NAMED: Final = frozenset({"namespaces", "services"})


def complaint(resource_key: str, name: str) -> str | None:
    """What is wrong with ``name`` for an object of that resource (``plural.group``); None where nothing is."""
    if resource_key.endswith(_PATH_SEGMENT_GROUP):
        return _PATH_RULE if name in {".", ".."} or "/" in name or "%" in name else None
    if resource_key in _LABEL_NAMED:
        return None if len(name) <= 63 and _DNS_LABEL.fullmatch(name) else _LABEL_RULE
    return None if len(name) <= 253 and _SUBDOMAIN.fullmatch(name) else _SUBDOMAIN_RULE


def completed(base: str, choose: Callable[[str], str]) -> str:
    """``base`` (cut so that the whole fits 63 characters) and five characters picked by ``choose`` from an alphabet."""
    return base[:_LONGEST_BASE] + "".join(choose(_ALPHABET) for _ in range(_SUFFIX_LENGTH))
