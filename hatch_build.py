"""Records in the wheel which commit it was built from: `REVISION` and `SOURCE_DATE_EPOCH`, else what git says."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

from hami_webhook.build_info import FILE_NAME, commit


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the build's record to the wheel; an editable installation asks git when it runs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        known = commit(Path(self.root))
        epoch = os.environ.get("SOURCE_DATE_EPOCH", "0")
        date = datetime.fromtimestamp(int(epoch), UTC).isoformat() if epoch != "0" else known.date
        record = {"revision": os.environ.get("REVISION") or known.revision, "date": date}
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / FILE_NAME
        path.write_text(json.dumps(record), encoding="utf-8")
        build_data["force_include"][str(path)] = f"hami_webhook/{FILE_NAME}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()
