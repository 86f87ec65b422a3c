"""Which vendors a device configuration enables."""

from itertools import combinations

from .yard import CHART, configured


def test_a_section_without_its_count_name_manages_nothing() -> None:
    vendors = configured("nvidia: {resourceMemoryName: nvidia.com/gpumem, resourceCoreName: nvidia.com/gpucores}")
    assert (list(vendors), vendors.resource_names, dict(vendors.quota_keys)) == ([], frozenset(), {})


def test_only_vendors_of_one_name_share_their_lists_of_devices() -> None:
    for one, other in combinations(CHART.values(), 2):
        lists = [{vendor.keys.allocated, vendor.keys.to_allocate} - {""} for vendor in (one, other)]
        assert one.known_as == other.known_as or lists[0].isdisjoint(lists[1]), (one.key, other.key)
