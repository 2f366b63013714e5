"""The price table that a command uses: a file's, the scheduler's own, or the published prices; and which it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer
import yaml

from deploy.local.cluster.folder import ClusterFolder
from protocol.ranking.config import RankingConfig, RankingConfigError, parse_ranking


def price_table(given: Path | None, name: str) -> tuple[RankingConfig, str]:
    """The table and its source in words. ``given`` is a section ``ranking``, or a scheduler's settings with one.

    Without it, the settings of the local cluster ``name`` (empty: another cluster is meant) apply if there are
    some. Raises ``typer.BadParameter``.
    """
    if given is not None:
        return _read(given), f"the price table {given}"
    # An empty name means another cluster than a local one, whose settings are not on this machine.
    settings = ClusterFolder.of(name).scheduler_config if name else None
    if settings is not None and settings.is_file() and "ranking" in (_document(settings) or {}):
        return _read(settings), "the scheduler's price table"
    return RankingConfig(), "the published reference prices (give your own: --prices FILE)"


def _read(path: Path) -> RankingConfig:
    document = _document(path)
    try:
        # Both a whole settings file and its section alone are accepted.
        return parse_ranking(document.get("ranking", document) if isinstance(document, Mapping) else document)
    except RankingConfigError as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--prices") from None


def _document(path: Path) -> Mapping[str, object] | None:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--prices") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: not YAML: {' '.join(str(error).split())}", param_hint="--prices") from None
    return document if isinstance(document, Mapping) or document is None else {"": document}
