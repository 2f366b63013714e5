"""``autoscale check``: checks an installation, and prints a remedy for each problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated, Final, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from deploy.kube.kubectl import Kubectl
from protocol.durations import DurationError, parse_duration
from protocol.runtime.clock import Clock, SystemClock
from protocol.units import Instant, Seconds
from scripts.autoscale.check.finding import EXIT_CODES, Finding, Level, worst
from scripts.autoscale.check.gathering.gather import Gathering
from scripts.autoscale.check.rendering import as_json, as_short, as_text
from scripts.autoscale.check.table import evaluate
from scripts.autoscale.cluster_flags import check_namespace, cluster_command
from scripts.autoscale.clusters import ClusterFlags, find_cluster
from scripts.autoscale.terminal.printing import print_lines, serialised
from scripts.autoscale.terminal.visible import visible, visible_lines

_PAUSE: Final = Seconds(2.0)


CheckOutput = Literal["text", "short", "json", "yaml"]


def check_duration(text: str) -> str:
    """Refuses a text that is not a duration. Raises ``typer.BadParameter``."""
    try:
        parse_duration(text)
    except DurationError as error:
        raise typer.BadParameter(str(error)) from None
    return text


# Exit code 2 for every error, because 1 means warnings.
@cluster_command(failed=EXIT_CODES[Level.FAILURE])
async def check(
    before: Annotated[bool, typer.Option("--pre", help="Run the checks that apply before installing.")] = False,
    output: Annotated[
        CheckOutput, typer.Option("--output", "-o", help="short: problems only; json or yaml: for scripts.")
    ] = "text",
    wait: Annotated[
        str,
        typer.Option(
            "--wait", callback=check_duration, help="Repeat for at most this long while a check fails, such as 5m."
        ),
    ] = "0s",
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace",
            "-n",
            callback=check_namespace,
            help="Namespace of the installation (default: found in the cluster).",
        ),
    ] = "",
    *,
    flags: ClusterFlags,
) -> int:
    """Check the installation in a cluster, and print a remedy for each problem.

    Exits 0 if there are no problems, 1 on warnings, 2 if a check fails or all queries fail.
    """
    cluster = find_cluster(flags)
    if cluster.is_embedded:
        raise typer.BadParameter(f"{cluster.title} was not started with --kubernetes; try autoscale top")
    async with cluster.client() as client:
        kubectl = Kubectl(cluster.kubectl(), cluster.kubectl_environment)
        gathering = Gathering(client, kubectl, SystemClock(), namespace, version("autoscaling"))
        # The status line goes to stderr: stdout is for JSON and YAML.
        errors = Console(stderr=True)
        with errors.status(f"checking {cluster.title}") as status:

            def on_wait(failure: str) -> None:
                status.update(escape(visible(f"waiting: {failure}")))
                # Without a terminal there is no spinner, so print lines.
                if not errors.is_terminal:
                    print_lines(errors, [f"waiting: {failure}"])

            findings = await run_checks(
                gathering, SystemClock(), before=before, wait=parse_duration(wait), on_wait=on_wait
            )
    # With --wait each round adds the same notes again; a dict drops duplicates and keeps the order.
    print_lines(Console(stderr=True), dict.fromkeys(gathering.notes))
    show(Console(), findings, output)
    return EXIT_CODES[worst(findings)]


async def run_checks(
    gathering: Gathering, clock: Clock, *, before: bool, wait: Seconds, on_wait: Callable[[str], None] = lambda _: None
) -> list[Finding]:
    """Runs all checks, repeatedly while one fails and ``wait`` is not over; returns the last findings.

    Calls ``on_wait`` with the failure that it waits for, each time that this changes.
    """
    deadline, announced = Instant(clock.now() + wait), ""
    while True:
        findings = list(evaluate(await gathering.facts(before=before), before=before))
        if worst(findings) < Level.FAILURE or clock.now() >= deadline:
            return findings
        failure = next(finding.message for finding in findings if finding.level is Level.FAILURE)
        if failure != announced:
            on_wait(failure)
            announced = failure
        # The last pause ends at the deadline, for a last round of checks.
        await clock.sleep(Seconds(min(_PAUSE, deadline - clock.now())))


def show(console: Console, findings: Sequence[Finding], output: CheckOutput) -> None:
    """Prints the findings, with colours only on terminals."""
    if output in {"json", "yaml"}:
        # No highlighting or wrapping, so that the output can be parsed.
        console.out(serialised(as_json(findings), output), highlight=False)
        return
    for style, line in (as_text if output == "text" else as_short)(findings):
        console.print(Text(visible_lines(line), style=style), soft_wrap=True)
