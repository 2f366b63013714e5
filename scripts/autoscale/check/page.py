"""``python -m scripts.autoscale.check.page``: writes docs/check.md from the table of checks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from scripts.autoscale.check.finding import PAGE, Check, When
from scripts.autoscale.check.table import CHECKS

_PATH: Final = Path(__file__).parents[3] / PAGE

# Parts of a remedy that begin like this are commands, in code font.
_COMMANDS: Final = ("kubectl ", "autoscale ", "timedatectl ")

_HEAD: Final = """\
# `autoscale check`, line by line

`python -m scripts.autoscale.check.page` generates this page from the command's own table.

```sh
autoscale check --pre --context NAME      # before installing
autoscale check --context NAME            # afterwards; same as kubectl autoscaling check
autoscale check -o short --wait 5m        # problems only; repeats for up to five minutes while a check fails
autoscale check -o json                   # everything, for programs
```

| Mark | Level | Meaning |
|---|---|---|
| ✓ | `ok` | in order |
| - | `skipped` | not installed, not reachable, or forbidden: the line names the missing permission |
| ! | `warning` | works, but needs attention |
| × | `failure` | does not work, or will not after the next restart |

Exit code 0: nothing to do; 1: warnings; 2: failures, or all queries failed.
Below each ! and × the command prints what it found, a remedy after →, and
the line's section on this page. With several problems, the last line says where to begin: failures come before
warnings, and causes before their effects. `-o short` uses that order.

The command changes nothing.

- **Tests.** It tests permissions with access reviews, and pods and webhooks with dry runs.
- **Reads.** It reads metrics through the API server's proxy, or by port-forward if the proxy reaches no pod (as on EKS;
  the proxy's error goes to standard error). It reads explanations and tests TLS ports by port-forward. It skips what
  you may not read; a query that fails for another reason is a warning ([api-looks](#api-looks)).
- **Namespace.** It detects the namespace of the installation; `--namespace` overrides it. Before installation the
  default is `autoscale-system`.
- **Cluster.** `--context` and `--kubeconfig` are kubectl's. Without either, the command uses a running local cluster
  (`autoscale local up --kubernetes`), otherwise kubectl's current context
  ([command-line.md](command-line.md#choosing-the-cluster)).
"""


def page() -> str:
    """The whole page."""
    return "\n".join((_HEAD, *_lines())) + "\n"


def _lines() -> Iterator[str]:
    # CHECKS is sorted by section, as groupby requires.
    for section, checks in groupby(CHECKS, key=lambda check: check.section):
        yield f"## {section}\n"
        for check in checks:
            yield from _entry(check)


def _entry(check: Check) -> Iterator[str]:
    condition = "" if check.when is When.AFTER else f" ({check.when})"
    yield f"### {check.id}\n"
    yield f"*{check.title}*{condition}. {check.meaning}\n"
    yield f"**Do:** {_command(check.remedy)}\n"


def _command(remedy: str) -> str:
    # The page is for any cluster, so use placeholders.
    command = remedy.replace("{namespace}", "NAMESPACE").replace("{subject}", "NAME")
    return "; ".join(map(_part, command.split("; ")))


def _part(part: str) -> str:
    # A command may follow a condition: "if the log shows no reason: kubectl ...".
    condition, colon, command = ("", "", part) if part.startswith(_COMMANDS) else part.partition(": ")
    return f"{condition}{colon}`{command}`" if command.startswith(_COMMANDS) else part


def main() -> None:
    """Writes the page."""
    _PATH.write_text(page())


if __name__ == "__main__":
    main()
