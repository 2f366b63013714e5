"""Lists, at the newest or an earlier revision, whole or in pages.

All pages of a list are from one revision. A continue token has this revision and the last object of the page. It
expires (410) when the history no longer has the revision.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deploy.local.apiserver.apimachinery.errors import bad_request, expired, future_version
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, NotJsonError, decode_object, encode
from deploy.local.apiserver.apimachinery.selectors import NAME, Matcher, Pin, matcher, pinned
from deploy.local.apiserver.registry.api import RequestTarget
from deploy.local.apiserver.storage.store import ObjectStore, StoredObject, TooOldError

_MAX_DIGITS: Final = 20
"""Digits of an unsigned 64-bit number."""


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Options of a list. ``limit`` 0 means no limit."""

    labels: str = ""
    fields: str = ""
    limit: int = 0
    token: str = ""
    resource_version: str = ""
    match: str = ""


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of a list: the objects, their revision, and the token of the next page."""

    items: Sequence[StoredObject]
    revision: int
    token: str = ""
    remaining: int = 0

    def meta(self) -> JsonObject:
        """The ``metadata`` of the list."""
        meta: JsonObject = {"resourceVersion": str(self.revision)}
        if self.token:
            meta["continue"] = self.token
            if self.remaining:
                meta["remainingItemCount"] = self.remaining
        return meta


def revision_of(text: str) -> int:
    """A resourceVersion as a number; ``""`` is 0. Raises a 400."""
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS:
        raise bad_request(f'invalid resourceVersion: Invalid value: "{text}": must be a number')
    return int(text)


def selection(target: RequestTarget, labels: str, fields: str) -> Matcher | None:
    """Matcher of a request's selectors. Raises a 400."""
    return matcher(labels, fields, target.resource.selectable_fields)


def candidates(store: ObjectStore, target: RequestTarget, pin: Pin | None) -> list[StoredObject]:
    """The objects of a collection that can match a selector with ``pin``."""
    # A name is unique only within a namespace.
    if pin is None or pin[0] != NAME or (target.resource.namespaced and not target.namespace):
        return store.objects(target.resource.key, target.namespace)
    stored = store.get(target.named(pin[1]).key)
    return [] if stored is None else [stored]


def list_page(store: ObjectStore, target: RequestTarget, options: ListOptions) -> ListPage:
    """One page of a collection. Raises 400, 410, or 504 for a resourceVersion in the future."""
    wanted = selection(target, options.labels, options.fields)
    after, revision = _begin(store, options)
    items = _objects_at(store, target, revision, pinned(options.fields))
    if wanted is not None:
        items = [stored for stored in items if wanted(stored.body)]
    if after is not None:
        items = [stored for stored in items if (stored.key.namespace, stored.key.name) > after]
    if not options.limit or len(items) <= options.limit:
        return ListPage(items, revision)
    page = items[: options.limit]
    # Like kube-apiserver, no count if there is a selector.
    remaining = 0 if wanted is not None else len(items) - len(page)
    raw = encode({"rv": revision, "after": [page[-1].key.namespace, page[-1].key.name]})
    return ListPage(page, revision, base64.urlsafe_b64encode(raw).rstrip(b"=").decode(), remaining)


def _begin(store: ObjectStore, options: ListOptions) -> tuple[tuple[str, str] | None, int]:
    """Namespace and name after which the page begins (None: at the start), and the revision to list."""
    if options.token:
        # `0` means any revision, so it does not contradict the token.
        if options.resource_version not in {"", "0"}:
            raise bad_request("specifying resource version is not allowed when using continue")
        return _read_token(options.token)
    requested = revision_of(options.resource_version)
    if requested > store.revision:
        raise future_version(requested, store.revision)
    # Without Exact, the revision means "not older than"; the newest list always satisfies it.
    return None, requested if options.match == "Exact" and requested else store.revision


def _objects_at(store: ObjectStore, target: RequestTarget, revision: int, pin: Pin | None) -> list[StoredObject]:
    # The newest state needs no history.
    if revision == store.revision:
        return candidates(store, target, pin)
    try:
        return store.list_at(target.resource.key, target.namespace, revision)
    except TooOldError:
        raise expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list "
            "without the continue parameter."
        ) from None


def _read_token(token: str) -> tuple[tuple[str, str], int]:
    try:
        position = decode_object(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, name = position["after"]
        return (str(namespace), str(name)), int(position["rv"])
    except (binascii.Error, NotJsonError, KeyError, TypeError, ValueError):
        raise bad_request("continue key is not valid") from None
