"""The settings that a local cluster's scheduler begins with."""

from __future__ import annotations

from pathlib import PurePath

from deploy.local.cluster.settings import scheduler_settings, with_extender_token
from scheduler_plugin.settings.document import parse_settings

FOLDER = PurePath("/home/me/clusters/local")


def test_extender_needs_the_settings_token() -> None:
    assert parse_settings(scheduler_settings(), FOLDER).extender_token_file == str(FOLDER / "extender-token")


def test_older_settings_are_kept_and_protected() -> None:
    node = "computeUnit: {vCPUs: 1, mem: 1Gi}, cpu: {watermark: 0.9}, memory: {watermark: 0.9}"
    earlier = f"# mine\nnodeDefaults: {{{node}}}\n"
    guarded = with_extender_token(earlier)
    assert guarded.startswith(earlier)
    assert parse_settings(guarded, FOLDER).extender_token_file == str(FOLDER / "extender-token")
    assert with_extender_token(guarded) == guarded


def test_a_token_of_the_operators_own_stays() -> None:
    own = "extender: {tokenFile: /etc/mine}\n"
    assert with_extender_token(own) == own
