"""Rules for which options of lists and watches can be combined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from deploy.local.apiserver.apimachinery.errors import Cause, Subject, invalid

_MATCH: Final = "resourceVersionMatch"
_INITIAL: Final = "sendInitialEvents"
_EXACT: Final = "Exact"
_NOT_OLDER: Final = "NotOlderThan"


def check_together(query: Mapping[str, str], is_watch: bool) -> None:
    """Raises a 422 that names each option of a list, or of a watch, that the others forbid."""
    causes = [_forbidden(name, why) for name, why in (_watch_faults if is_watch else _list_faults)(query)]
    match = query.get(_MATCH, "")
    if match not in {"", _EXACT, _NOT_OLDER}:
        words = f'Unsupported value: "{match}": supported values: "{_EXACT}", "{_NOT_OLDER}", ""'
        causes.append(Cause(_MATCH, words, "FieldValueNotSupported"))
    if causes:
        raise invalid(Subject("", "meta.k8s.io", "", "ListOptions"), causes)


def _forbidden(name: str, why: str) -> Cause:
    return Cause(name, f"Forbidden: {why}", "FieldValueForbidden")


def _list_faults(query: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    # The messages are kube-apiserver's, down to the lower-case "exact".
    match, version = query.get(_MATCH, ""), query.get("resourceVersion", "")
    if _INITIAL in query:
        yield _INITIAL, "sendInitialEvents is forbidden for list"
    if match and not version:
        yield _MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided"
    if match == _EXACT and version == "0":
        yield _MATCH, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'


def _watch_faults(query: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    match = query.get(_MATCH, "")
    if _INITIAL in query and match != _NOT_OLDER:
        yield _MATCH, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
    if match and _INITIAL not in query:
        yield _MATCH, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
