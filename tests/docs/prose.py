"""Counts of wording that a reader of this field stumbles over; ``test_prose.py`` keeps them from growing.

The counts are witnesses. A sentence is mended by saying it plainly, not by a synonym that a pattern misses.

``python -m tests.docs.prose`` prints the counts, ``python -m tests.docs.prose KIND`` the places of one kind.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

PHRASES: Final = re.compile(
    r"(?:None|empty|0) where|where there is (?:one|none|no)|\banew\b|by then|(?:is|are) told|tells? of|told of|so many|"
    r"for want of|lets? go\b|is no [A-Z]|nothing of|the most (?:that|of)|makes no sense|what there is|what is there|"
    r"whether or not it|in (?:its|their) turn|has taken place|what (?:was|is|are) (?:asked|there|left|known|said)"
)
QUESTION_WORDS: Final = re.compile(r"(?:What|Whether|How|Why|Who|Whose|Where|Which|When)\b")
EMPTY_NAMES: Final = {
    "found",
    "said",
    "told",
    "each",
    "given",
    "asked",
    "shown",
    "known",
    "held",
    "kept",
    "seen",
    "heard",
}
HOUSEHOLD: Final = re.compile(
    r"_?\w*(?:Desk|Doorman|Sight|Chronicle|Survey|Standing|Wish|Judgement|Ruling|Situation|Arrangement|Surroundings|Found)$"
    r"|_?(?:Word|Pile|Book|Answer|FactOf|FactsOf)$"
)
TEST_WORDS: Final = 8
SUBJECT_LENGTH: Final = 72


@dataclass(slots=True)
class Prose:
    """The places of each kind, as ``path:line: text``, and what they are a share of."""

    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    docstrings: int = 0
    test_docstrings: int = 0
    tests: int = 0
    comments: int = 0
    code_lines: int = 0

    def counts(self) -> dict[str, float]:
        """Numbers of places, and shares in percent; comments for 100 lines of code."""
        return {
            "phrases in code": len(self.places["phrases in code"]),
            "phrases in documents": len(self.places["phrases in documents"]),
            "question docstrings, percent": _percent(len(self.places["question docstrings"]), self.docstrings),
            "question docstrings in tests, percent": _percent(
                len(self.places["question docstrings in tests"]), self.test_docstrings
            ),
            "empty names": len(self.places["empty names"]),
            "class names used twice": len(self.places["class names used twice"]),
            "household classes": len(self.places["household classes"]),
            "long test names, percent": _percent(len(self.places["long test names"]), self.tests),
            "comments per 100 lines": _percent(self.comments, self.code_lines),
        }


def read_prose() -> Prose:
    """All tracked Python files and documents of this checkout; nothing if git cannot list them."""
    prose, classes = Prose(), defaultdict(list)
    for path in _tracked("*.py"):
        text = (ROOT / path).read_text()
        tree = ast.parse(text)
        if path.startswith("tests/"):
            _read_tests(prose, path, tree)
            continue
        _read_lines(prose, "phrases in code", path, text)
        _read_tree(prose, path, tree)
        for name, line in _classes(tree):
            classes[name].append(f"{path}:{line}")
        prose.comments += sum(1 for _ in _comments(text))
        prose.code_lines += sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines())
    for path in _tracked("*.md"):
        _read_lines(prose, "phrases in documents", path, (ROOT / path).read_text())
    prose.places["class names used twice"] = [
        f"{name}: {', '.join(places)}" for name, places in sorted(classes.items()) if len(places) > 1
    ]
    return prose


def long_subjects(since: str) -> list[str] | None:
    """Commit subjects after ``since`` that are too long; None if this checkout does not have that commit."""
    subjects = _git("log", "--no-merges", "--format=%s", f"{since}..HEAD")
    return None if subjects is None else [each for each in subjects if len(each) > SUBJECT_LENGTH]


def _tracked(pattern: str) -> list[str]:
    return [path for path in _git("ls-files", pattern) or () if (ROOT / path).exists()]


def _git(*words: str) -> list[str] | None:
    """Lines of git's output; None if this is no clone, or without git."""
    # In a container, the checkout often belongs to another user, and git then refuses it.
    command = ["git", "-c", f"safe.directory={ROOT}", *words]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout.splitlines()


def _percent(part: int, whole: int) -> float:
    return round(100 * part / max(1, whole), 1)


def _read_lines(prose: Prose, kind: str, path: str, text: str) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        if PHRASES.search(line):
            prose.places[kind].append(f"{path}:{number}: {line.strip()}")


def _read_tree(prose: Prose, path: str, tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in EMPTY_NAMES:
            prose.places["empty names"].append(f"{path}:{node.lineno}: {node.id}")
        if isinstance(node, ast.ClassDef) and HOUSEHOLD.fullmatch(node.name):
            prose.places["household classes"].append(f"{path}:{node.lineno}: {node.name}")
    prose.docstrings += _read_docstrings(prose, "question docstrings", path, tree)


def _read_docstrings(prose: Prose, kind: str, path: str, tree: ast.Module) -> int:
    """Number of docstrings of functions and classes; those that open with a question word become places."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and (
            text := ast.get_docstring(node)
        ):
            count += 1
            if QUESTION_WORDS.match(text):
                prose.places[kind].append(f"{path}:{node.lineno}: {text.splitlines()[0]}")
    return count


def _read_tests(prose: Prose, path: str, tree: ast.Module) -> None:
    prose.test_docstrings += _read_docstrings(prose, "question docstrings in tests", path, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            prose.tests += 1
            if node.name.count("_") > TEST_WORDS:
                prose.places["long test names"].append(f"{path}:{node.lineno}: {node.name}")


def _classes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    return ((node.name, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _comments(text: str) -> Iterator[str]:
    """Comments for people: none that a tool reads."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_comment = token.type == tokenize.COMMENT and len(token.string) > 6
        if is_comment and not re.match(r"#\s*(?:type:|noqa|pragma|ruff:|fmt:)", token.string):
            yield token.string


def main() -> None:
    """Print the counts, or the places of one kind."""
    prose = read_prose()
    if sys.argv[1:]:
        print("\n".join(prose.places[" ".join(sys.argv[1:])]))
        return
    for kind, count in prose.counts().items():
        print(f"{count:8g}  {kind}")


if __name__ == "__main__":
    main()
