"""The annotation keys of a vendor, from the pattern most of them follow."""

from hami_webhook.devices.keys import DeviceKeys


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
