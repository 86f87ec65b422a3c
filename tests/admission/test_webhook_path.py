"""`/webhook` does at once what `/mutate` and `/validate` do, with less work (docs/spec/quota.md#4)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jsonpatch
import pytest
from builders import GPU, JSON, container
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.requests import RequestCache, checked_requests
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.device_lister import NO_DEVICES
from hami_webhook.devices.model import Requests
from hami_webhook.kube.objects import MalformedObject, Namespace, Pod

from .reviews import VENDORS, FakeServices, mutate, pod, validate
from .test_pods import POD, WAYS, Step, run_webhook


@pytest.mark.parametrize(
    ("limits", "dry_run", "charged"),
    [({GPU: 1}, False, 0), ({GPU: 1}, True, 1), ({GPU: 1, "volcano.sh/vgpu-number": 1}, False, 1)],
    ids=["ours", "dry run", "Volcano's too"],
)
def test_where_no_quota_could_limit_a_pod_it_is_charged_only_if_that_may_refuse_it(
    limits: dict[str, int], dry_run: bool, charged: int
) -> None:
    around = FakeServices(unlimited=True)
    known = enabled_vendors(builtin_device_config().config)
    run_webhook(pod("p", container("main", limits)), dry_run=dry_run, known=known, services=around)
    assert len(around.charged) == charged


def outcome(step: Step, obj: JSON, **more: Any) -> list[Mapping[str, Any]] | tuple[int, str]:
    """The patch, or why there is none."""
    try:
        return list(step(obj, **more).patch)
    except Denied as denied:
        return denied.code, denied.message


@pytest.mark.parametrize("way", WAYS)
@given(obj=POD)
def test_the_webhook_refuses_and_charges_what_mutating_and_then_validating_would(way: str, obj: JSON) -> None:
    once, twice = FakeServices(), FakeServices()
    once.there = twice.there = {"team-a": Namespace("team-a", {}, WAYS[way].get("annotations", {}))}
    how = {key: value for key, value in WAYS[way].items() if key != "annotations"}
    found = outcome(run_webhook, obj, services=once, **how)
    expected = outcome(mutate, obj, services=twice, **how)
    if isinstance(expected, list):
        after = jsonpatch.apply_patch(obj, expected)
        refused = outcome(validate, after, services=twice, **how)
        expected = refused if isinstance(refused, tuple) else expected
    assert found == expected
    assert len(once.charged) == len(twice.charged)


@given(objs=st.lists(POD, min_size=2, max_size=6), again=st.integers(0, 5))
def test_what_is_remembered_of_pods_is_what_they_request(objs: list[JSON], again: int) -> None:
    known = RequestCache(VENDORS)
    for obj in [*objs, objs[again % len(objs)]]:
        try:
            stored = Pod.from_object(obj)
        except MalformedObject:
            continue
        for _ in range(2):
            try:
                expected = checked_requests(stored, VENDORS)
            except Denied as denied:
                with pytest.raises(Denied, match=re.escape(denied.message)):
                    known.checked_requests(stored, NO_DEVICES)
            else:
                assert known.checked_requests(stored, NO_DEVICES) == expected


def test_amounts_that_differ_in_type_alone_are_not_the_same() -> None:
    known = RequestCache(VENDORS)

    def requested(**limits: object) -> Mapping[str, Requests]:
        return known.checked_requests(Pod.from_object(pod("p", container("main", limits))), NO_DEVICES)

    assert requested(**{GPU: 1}) == requested(**{GPU: "1"}) != {}
    with pytest.raises(Denied):
        requested(**{GPU: True})
    with pytest.raises(Denied):
        requested(**{GPU: ["1"]})


@pytest.mark.parametrize(("length", "pods", "most"), [(10, 3000, 1000), (5000, 3, 0)], ids=["many", "long"])
def test_tenants_cant_fill_the_memory_with_what_is_remembered(length: int, pods: int, most: int) -> None:
    known = RequestCache(VENDORS)
    stored = Pod.from_object(pod(gpu=1, mem=3000))
    sizes = set()
    for number in range(pods):
        known.checked_requests(replace(stored, annotations={"a": f"{number:0{length}}"}), NO_DEVICES)
        sizes.add(len(known._known))
    assert max(sizes) == most
