"""``python -m scripts.autoscale.check.page``: writes docs/check.md from the table of checks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from scripts.autoscale.check.finding import Check, When
from scripts.autoscale.check.table import CHECKS, PAGE

_PATH: Final = Path(__file__).parents[3] / PAGE

# Parts of a remedy that begin like this are commands and are set in code font.
_COMMANDS: Final = ("kubectl ", "autoscale ", "timedatectl ")

_HEAD: Final = """\
# What `autoscale check` says, line by line

This page is made of the command's own table: `python -m scripts.autoscale.check.page` writes it.

```sh
autoscale check --pre --context NAME      # before installing
autoscale check --context NAME            # after; kubectl autoscaling check does the same
autoscale check -o short --wait 5m        # what is wrong alone; looks again for so long while a check fails
autoscale check -o json                   # everything, for programs
```

| Mark | Level | Means |
|---|---|---|
| ✓ | `ok` | in order |
| - | `skipped` | not installed, not seen, or you may not look: the line says which right is missing |
| ! | `warning` | works, and should be looked at |
| × | `failure` | does not work, or will not after the next restart |

Exit code 0: nothing to do; 1: warnings; 2: failures, or nothing could be looked at.
Below each ! and × stand what was found, after → what to do, and
the line's place on this page. Where several are wrong, the last line says with which to begin: failures come before
warnings, and causes before what may follow from them. `-o short` has that order.

It reads, and changes nothing: rights are asked by access reviews, pods and reviews are tried as dry runs, metrics
come through the API server's proxy, or by port-forward if it reaches no pod (as on EKS; its sentence goes to standard
error); explanations and TLS ports come by port-forward. What you may not look at is skipped;
a look that fails for another reason is a warning ([api-looks](#api-looks)). The installation is found by itself where
there is one in the cluster; `--namespace` names it, and before installing it is `autoscale-system`. `--context` and
`--kubeconfig` are kubectl's; without either, a local cluster that runs is meant (`autoscale local up --kubernetes`),
else kubectl's ([command-line.md](command-line.md#choosing-the-cluster)).
"""


def page() -> str:
    """The whole page."""
    return "\n".join((_HEAD, *_lines())) + "\n"


def _lines() -> Iterator[str]:
    # CHECKS is in the order of its sections, as groupby needs it.
    for section, checks in groupby(CHECKS, key=lambda check: check.section):
        yield f"## {section}\n"
        for check in checks:
            yield from _entry(check)


def _entry(check: Check) -> Iterator[str]:
    occasion = "" if check.when is When.AFTER else f" ({check.when})"
    yield f"### {check.id}\n"
    yield f"*{check.title}*{occasion}. {check.meaning}\n"
    yield f"**Do:** {_command(check.remedy)}\n"


def _command(remedy: str) -> str:
    # The page is for any cluster, so placeholders stand for names.
    command = remedy.replace("{namespace}", "NAMESPACE").replace("{subject}", "NAME")
    return "; ".join(f"`{part}`" if part.startswith(_COMMANDS) else part for part in command.split("; "))


def main() -> None:
    """Writes the page."""
    _PATH.write_text(page())


if __name__ == "__main__":
    main()
