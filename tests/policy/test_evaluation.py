"""What policy makes of annotations, as each vendor reads them, is inside every boundary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Namespace
from hami_webhook.policy.evaluation import Changes, PolicyViolation, check, governed_keys, required_changes
from hami_webhook.policy.rules import DeviceBounds, PolicyRule

VENDORS = enabled_vendors(builtin_device_config().config)
UUIDS, MODELS = ("u-1", "u-2", "U-1"), ("Model A100 x", "model v100", "H")
HERE = Namespace("team-a", {}, {})

lists = st.lists(st.sampled_from((*UUIDS, "a100", "V100", "m", "", " ", "u-9")), max_size=3)
items = st.lists(st.sampled_from((*UUIDS, "a100", "V100")), max_size=2).map(tuple)
bounds = st.builds(DeviceBounds, items, items, items, items)


def outcome(notes: dict[str, str], rules: list[PolicyRule], vendor: Vendor) -> Changes | PolicyViolation:
    try:
        return required_changes(notes, HERE, rules, [vendor])
    except PolicyViolation as violation:
        return violation


@given(st.sampled_from(sorted(VENDORS)), st.lists(bounds, max_size=2), st.data())
def test_what_a_vendor_reads_is_inside_every_boundary_whatever_was_written(
    backend: str, demands: list[DeviceBounds], data: st.DataObject
) -> None:
    vendor = VENDORS[backend]
    keys = vendor.keys.lists
    notes = {key: ",".join(data.draw(lists)) for key in keys if data.draw(st.booleans())}
    rules = [PolicyRule(f"r{number}", devices={backend: each}) for number, each in enumerate(demands)]
    changes = outcome(notes, rules, vendor)
    if isinstance(changes, PolicyViolation):
        assert changes.sources, "who demands it is named"
        assert {f"policy {rule.name}" for rule in rules}.issuperset(changes.sources)
        return
    bounded = {**notes, **changes.annotations}
    check(bounded, HERE, rules, [vendor])
    assert required_changes(bounded, HERE, rules, [vendor]).annotations == {}
    uuids, types = vendor.lists(bounded)
    own_uuids, own_types = vendor.lists(notes)
    for uuid in UUIDS:
        if vendor.keys.use_uuid and uuids.admits(uuid):
            assert own_uuids.admits(uuid)
            for each in demands:
                assert uuid not in each.deny_uuids
                assert not each.allow_uuids or uuid in each.allow_uuids
    for model in MODELS:
        if vendor.keys.use_type and types.admits_type(model):
            assert own_types.admits_type(model)
            for each in demands:
                assert not any(item.lower() in model.lower() for item in each.deny_types)
                assert not each.allow_types or any(item.lower() in model.lower() for item in each.allow_types)


@in_one_test("backend", sorted(VENDORS.governed))
def test_every_key_of_a_vendor_that_policy_can_write_is_governed(backend: str) -> None:
    vendor = VENDORS.governed[backend]
    everything = DeviceBounds(("u-1",), ("u-2",), ("a100",), ("v100",))
    choices = dict.fromkeys(vendor.keys.choices, "chosen")
    rule = PolicyRule("r", enforce=choices, devices={backend: everything})
    written = required_changes({}, HERE, [rule], [vendor]).annotations
    assert set(written) == {
        *choices,
        *vendor.keys.use_uuid[:1],
        *vendor.keys.nouse_uuid[:1],
        *vendor.keys.use_type[:1],
        *vendor.keys.nouse_type[:1],
    }
    assert governed_keys([vendor]).issuperset(written)
