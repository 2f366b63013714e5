"""The dashboard's command line: invalid flags are rejected before anything is served."""

from __future__ import annotations

import pytest

from scheduler_plugin.dashboard.options import parsed
from scheduler_plugin.history.core.retention import RetentionBounds


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--certificate", "page.crt"], "must be set together"),
        (["--key", "page.key"], "must be set together"),
        (["--prometheus", "http://[::1"], "argument --prometheus: expected a URL"),
        (["--prometheus", "prometheus:9090"], "argument --prometheus: expected a URL"),
        (["--scheduler", "http://:1"], "argument --scheduler: expected a URL"),
        (["--groups", "http://a:99999"], "argument --groups: expected a URL"),
        (["--history-volume", "1Mi"], "expected at least 16Mi, got '1Mi'"),
        (["--history-volume", "much"], "argument --history-volume"),
        (["--prometheus", "http://p", "--label", "team"], "--label cannot be combined with --prometheus"),
        (["--groups", "http://a b"], "argument --groups: expected a URL"),
    ],
)
def test_what_makes_no_sense_is_refused(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parsed(given)
    assert said in capsys.readouterr().err


def test_what_makes_sense_is_taken_as_it_is() -> None:
    options = parsed(["--groups", "", "--prometheus", "https://p.example/of/us", "--key", "k", "--certificate", "c"])
    assert (options.groups, options.prometheus, options.key.name) == ("", "https://p.example/of/us", "k")
    assert RetentionBounds.of_volume(parsed(["--history-volume", "600Mi"]).history_volume).most_bytes == 200 * 1024**2
    assert parsed(["--label", "team", "--label", "tier"]).labels == ["team", "tier"]
    assert parsed([]).scheduler == "http://autoscaling-scheduler:10297"
