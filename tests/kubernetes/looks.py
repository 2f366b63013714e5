"""``kubectl get`` without kubectl: starting a process for each query was most of the tests' work.

What is asked in another way than by kind, name, namespace and selectors is left to kubectl.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx2 as httpx

from protocol.runtime.clock import SystemClock
from protocol.runtime.credentials import from_kubeconfig

_SELECTORS: Final = {"--selector": "labelSelector", "--field-selector": "fieldSelector"}
_NO_CONNECTION_IS_KEPT: Final = httpx.Limits(max_keepalive_connections=0)
_ANSWER: Final = 60.0
"""Seconds; on a machine that is overrun an answer may take many."""


@dataclass(frozen=True, slots=True)
class Question:
    """A query."""

    kind: str
    name: str
    namespace: str | None
    selectors: dict[str, str]


def question_in(arguments: Sequence[str]) -> Question | None:
    """The question of a command line; None if only kubectl understands it (pure).

    >>> question_in(["pod", "web", "--namespace=shop"])
    Question(kind='pod', name='web', namespace='shop', selectors={})
    >>> question_in(["pods", "--watch"]), question_in(["pods,services"])
    (None, None)
    """
    words = [each for each in arguments if not each.startswith("-")]
    namespace: str | None = "default"
    selectors: dict[str, str] = {}
    for each in arguments:
        option, _, value = each.partition("=")
        if option in _SELECTORS:
            selectors[_SELECTORS[option]] = value
        elif option == "--namespace":
            namespace = value
        elif each == "--all-namespaces":
            namespace = None
        elif each.startswith("-"):
            return None
    if len(words) == 1 and "/" in words[0]:
        words = words[0].split("/", 1)
    if not 1 <= len(words) <= 2 or "," in words[0] or "/" in words[0]:
        return None
    kind, name = (*words, "")[:2]
    return Question(kind, name, namespace, selectors)


@dataclass(frozen=True, slots=True)
class _Kind:
    root: str
    plural: str
    is_namespaced: bool

    def path(self, question: Question) -> str:
        place = f"/namespaces/{question.namespace}" if self.is_namespaced and question.namespace else ""
        return f"{self.root}{place}/{self.plural}" + (f"/{question.name}" if question.name else "")


class Looks:
    """Looks at one API server. Raises ``AssertionError`` with its error output."""

    def __init__(self, kubeconfig: Path) -> None:
        self._http = client_of_people(kubeconfig, _ANSWER, limits=_NO_CONNECTION_IS_KEPT)
        self._kinds: dict[str, _Kind] = {}

    def look(self, question: Question) -> Any:
        """The object, or a list of them."""
        if question.kind not in self._kinds:
            for name, kind in self._all_kinds():
                self._kinds.setdefault(name, kind)
        assert question.kind in self._kinds, f"the server does not have a resource type {question.kind}"
        found = self.read(self._kinds[question.kind].path(question), question.selectors)
        for each in found.get("items") or ():
            each.update(apiVersion=found["apiVersion"], kind=found["kind"].removesuffix("List"))
        return found

    def read(self, path: str, parameters: dict[str, str] | None = None) -> Any:
        """The server's response at ``path``."""
        try:
            answer = self._http.get(path, params=parameters)
        except httpx.HTTPError as error:
            raise AssertionError(f"the API server gives no answer: {error!r}") from error
        assert answer.is_success, answer.text
        return answer.json()

    def _all_kinds(self) -> Iterator[tuple[str, _Kind]]:
        """Every name by which kubectl knows a kind; those of the core come first."""
        yield from self._kinds_at("/api/v1", "")
        for group in self.read("/apis")["groups"]:
            with suppress(AssertionError):  # one that others serve may be away
                yield from self._kinds_at(f"/apis/{group['preferredVersion']['groupVersion']}", group["name"])

    def _kinds_at(self, root: str, group: str) -> Iterator[tuple[str, _Kind]]:
        for each in self.read(root)["resources"]:
            if "/" in each["name"] or "get" not in each["verbs"]:
                continue
            kind = _Kind(root, each["name"], each["namespaced"])
            names = (each["name"], each.get("singularName"), each["kind"].lower(), *each.get("shortNames", ()))
            for name in filter(None, names):
                yield name, kind
                if group:
                    yield f"{name}.{group}", kind


def client_of_people(kubeconfig: Path, timeout: float, **more: Any) -> httpx.Client:
    """A client with people's rights; ``timeout`` in seconds."""
    found = from_kubeconfig(kubeconfig, SystemClock())
    headers = {"Authorization": f"Bearer {found.token()}"}
    return httpx.Client(
        base_url=found.server, verify=found.tls, headers=headers, trust_env=False, timeout=timeout, **more
    )


def looks_at(kubeconfig: Path) -> Looks:
    """Queries with the present rights of ``kubeconfig``."""
    return _looks(kubeconfig, kubeconfig.stat().st_mtime_ns)


@cache
def _looks(kubeconfig: Path, written_at: int) -> Looks:
    """``written_at`` tells apart clusters that write the same file one after the other."""
    return Looks(kubeconfig)
