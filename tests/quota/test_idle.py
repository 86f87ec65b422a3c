"""What quotas say of idle pods (docs/spec/time.md#5.1)."""

from __future__ import annotations

import pytest
from builders import accelerator_quota
from tables import in_one_test

from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.accelerator_quota import read_accelerator_quota
from hami_webhook.quota.enforcement import ENFORCEMENT
from hami_webhook.quota.idle import IDLE, IDLE_AFTER, IdleRule, idle_faults, idle_rule, strictest

from .objects import quota


def limiting(**written: str) -> ResourceQuota:
    made = quota(gpu=8)
    names = {"after": IDLE_AFTER, "mode": IDLE, "enforcement": ENFORCEMENT}
    made["metadata"]["annotations"] = {names[key]: text for key, text in written.items()}
    return ResourceQuota.from_object(made)


@in_one_test(
    ("written", "rule", "faults"),
    [
        ({}, None, []),
        ({"after": "2h"}, IdleRule("gpu-quota", 7200), []),
        ({"after": "1s"}, IdleRule("gpu-quota", 1), []),
        ({"after": "2h", "mode": "Warn"}, IdleRule("gpu-quota", 7200), []),
        ({"after": "90s", "mode": "Evict"}, IdleRule("gpu-quota", 90, evicts=True), []),
        ({"after": "2h", "mode": "Evict", "enforcement": "observe"}, IdleRule("gpu-quota", 7200), []),
        ({"after": "2h", "mode": "evict"}, IdleRule("gpu-quota", 7200), ["write Warn or Evict"]),
        ({"mode": "Evict"}, None, ["has no effect without hami.io/quota-idle-after"]),
        ({"after": "0s"}, None, ["must be at least 1s"]),
        ({"after": "721h"}, None, ["must be at most 720h"]),
        ({"after": "-1h"}, None, ["can't be read, so it has no effect"]),
    ],
)
def test_what_is_written_on_a_quota(written: dict[str, str], rule: IdleRule | None, faults: list[str]) -> None:
    made = limiting(**written)
    assert idle_rule(made) == rule
    said = [text for _, text in idle_faults(made)]
    assert len(said) == len(faults)
    assert all(part in text for part, text in zip(faults, said, strict=True))


def test_fields_of_an_accelerator_quota() -> None:
    made = read_accelerator_quota(accelerator_quota("train", spec={"idleAfter": "2h", "idle": "Evict"}, gpu=8), {})
    assert idle_rule(made) == IdleRule("AcceleratorQuota/train", 7200, evicts=True)


@pytest.mark.parametrize("flip", [False, True])
def test_one_that_evicts_holds_before_one_that_warns_and_the_shorter_before_the_longer(flip: bool) -> None:
    warns, long, short = IdleRule("w", 1), IdleRule("l", 20, evicts=True), IdleRule("s", 10, evicts=True)
    for least, other in ((long, warns), (short, long), (IdleRule("w", 1), IdleRule("v", 2))):
        pair = (other, least) if flip else (least, other)
        assert strictest(*pair) == least
    assert strictest(warns, None) == warns
    assert (warns.notice, short.notice) == (1, 5)
