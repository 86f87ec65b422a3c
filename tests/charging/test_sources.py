"""AcceleratorQuotas as a store reads and writes them (docs/spec/quota.md#5.2)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from builders import accelerator_quota

from hami_webhook.charging.sources import AcceleratorQuotas
from hami_webhook.cluster.api import Forbidden, NotFound

PATCH = {"metadata": {"resourceVersion": "1"}, "status": {}}


class WithoutRights:
    """A cluster on which nobody may write AcceleratorQuotas; `listed` may be listed, None if that isn't allowed."""

    def __init__(self, listed: list[Any] | None) -> None:
        self._listed = listed

    async def patch_status(self, *what: Any) -> Any:
        raise Forbidden("cannot patch resource")

    async def get(self, *what: Any) -> Any:
        raise Forbidden("cannot get resource")

    async def list(self, *what: Any) -> Any:
        if self._listed is None:
            raise Forbidden("cannot list resource")
        return SimpleNamespace(items=self._listed)


@pytest.mark.parametrize("listed", [None, [], [accelerator_quota("another")]], ids=["no rights", "none", "another"])
async def test_one_that_can_not_be_written_as_it_is_gone_is_not_found(listed: list[Any] | None) -> None:
    source = AcceleratorQuotas(WithoutRights(listed), dict)  # type: ignore[arg-type]  # only what is called
    with pytest.raises(NotFound):
        await source.patch_status("", "team", PATCH)
    with pytest.raises(NotFound):
        await source.get("", "team")


async def test_one_that_is_there_and_can_not_be_written_is_never_left_out() -> None:
    source = AcceleratorQuotas(WithoutRights([accelerator_quota("team")]), dict)  # type: ignore[arg-type]  # as above
    with pytest.raises(Forbidden):
        await source.patch_status("", "team", PATCH)
