"""Impersonation: requests on behalf of another user (``kubectl --as``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

# The characters of an HTTP token (RFC 7230) that ``quote`` would escape; "%" is the escape itself.
_HEADER_SAFE: Final = "!#$&'*+.^_`|~-"


@dataclass(frozen=True, slots=True)
class Impersonation:
    """The user on whose behalf requests are made; if ``user`` is empty, our own. ``extra``: keys with their values."""

    user: str = ""
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.user or self.groups or self.uid or self.extra)

    def over(self, other: Impersonation) -> Impersonation:
        """This one, with empty fields filled from ``other``, like flags over a kubeconfig.

        >>> Impersonation("eve").over(Impersonation("bob", ("ops",)))
        Impersonation(user='eve', groups=('ops',), uid='', extra=())
        """
        return Impersonation(
            self.user or other.user, self.groups or other.groups, self.uid or other.uid, self.extra or other.extra
        )

    def headers(self) -> Iterator[tuple[str, str]]:
        """The headers of a request; keys of ``extra`` are escaped for use in header names.

        >>> list(Impersonation("eve", extra=(("example.org/team", ("a",)),)).headers())
        [('Impersonate-User', 'eve'), ('Impersonate-Extra-example.org%2Fteam', 'a')]
        """
        if self.user:
            yield "Impersonate-User", self.user
        yield from (("Impersonate-Group", group) for group in self.groups)
        if self.uid:
            yield "Impersonate-Uid", self.uid
        for key, values in self.extra:
            yield from ((f"Impersonate-Extra-{quote(key, safe=_HEADER_SAFE)}", value) for value in values)
