"""Which vendors a device configuration enables, and the usual names of their annotations."""

from itertools import combinations

from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.registry import reserved_words, section_types
from hami_webhook.integrations import SCHEDULERS

from .fit_env import CHART, configured


def test_a_section_without_its_count_name_manages_nothing() -> None:
    vendors = configured("nvidia: {resourceMemoryName: nvidia.com/gpumem, resourceCoreName: nvidia.com/gpucores}")
    assert (list(vendors), vendors.resource_names, dict(vendors.quota_keys)) == ([], frozenset(), {})


def test_only_vendors_of_one_name_share_their_lists_of_devices() -> None:
    for one, other in combinations(CHART.values(), 2):
        lists = [{each.keys.allocated, each.keys.to_allocate} - {""} for each in (one, other)]
        assert one.known_as == other.known_as or lists[0].isdisjoint(lists[1]), (one.key, other.key)


def test_every_name_of_the_charts_configuration_is_managed() -> None:
    builtin = builtin_device_config()
    vendors = enabled_vendors(builtin.config)
    parts = builtin.config.parts()
    named = {name for part in parts.values() for name in part.resource_names().values()}
    assert builtin.warnings == ()
    assert named <= vendors.resource_names
    assert {path[0] for path in parts} | {"iluvatar"} == section_types().keys() | SCHEDULERS.keys()
    assert not {name for scheduler in vendors.foreign for name in scheduler.resource_names} & vendors.own_names


def test_no_chip_can_be_called_what_a_vendor_is_called() -> None:
    """The configuration refuses fixed backend keys as common words, so it must know every one of them."""
    config = builtin_device_config().config
    words = {chip.common_word for chip in (*config.section("vnpus").configs, *config.section("iluvatars"))}
    vendors = (*CHART.values(), *configured("iluvatar: {resourceCountName: iluvatar.ai/vgpu}").values())
    assert {name for each in vendors for name in (each.key, each.known_as)} - words <= reserved_words()


def test_the_usual_keys_are_spelt_out_from_their_pattern() -> None:
    keys = DeviceKeys.usual("dcu", uuid="hygon.com/[no]use-gpuuuid", model="hygon.com/[no-]use-type", extra=("a", ""))
    assert keys == DeviceKeys(
        allocated="hami.io/dcu-devices-allocated",
        to_allocate="hami.io/dcu-devices-to-allocate",
        extra=("a", ""),
        use_uuid=("hygon.com/use-gpuuuid",),
        nouse_uuid=("hygon.com/nouse-gpuuuid",),
        use_type=("hygon.com/use-type",),
        nouse_type=("hygon.com/no-use-type",),
    )
    assert keys.owned == ("hami.io/dcu-devices-allocated", "hami.io/dcu-devices-to-allocate", "a")


def test_a_vendor_without_lists_reads_none() -> None:
    keys = DeviceKeys.usual("gcu")
    assert (keys.use_uuid, keys.nouse_uuid, keys.use_type, keys.nouse_type) == ((), (), (), ())
