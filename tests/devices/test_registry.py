"""Which vendors a device configuration enables."""

from .yard import configured


def test_a_section_without_its_count_name_manages_nothing() -> None:
    vendors = configured("nvidia: {resourceMemoryName: nvidia.com/gpumem, resourceCoreName: nvidia.com/gpucores}")
    assert (list(vendors), vendors.resource_names, dict(vendors.quota_keys)) == ([], frozenset(), {})
