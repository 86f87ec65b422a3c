"""Writes manifests/dashboards: `python -m hack.dashboards`."""

from __future__ import annotations

import json

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from hack.render_manifests import MANIFESTS

from .operation import OPERATION
from .platform import PLATFORM
from .team import TEAM

FOLDER = MANIFESTS / "dashboards"


def rendered() -> dict[str, str]:
    """The dashboards as Grafana reads them, by the name of their file."""
    return {
        f"{board.uid}.json": json.dumps(board.built(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
        for board in (PLATFORM, TEAM, OPERATION)
    }


if __name__ == "__main__":
    for name, text in rendered().items():
        (FOLDER / name).write_text(text)
