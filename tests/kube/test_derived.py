"""What is derived from an object is kept for it alone, and no longer than it lives."""

from __future__ import annotations

from msgspec.structs import replace

from hami_webhook.kube.derived import DerivedValues
from hami_webhook.kube.objects import Pod


def test_a_value_is_for_this_very_object() -> None:
    values: DerivedValues[Pod, str] = DerivedValues()
    pod = Pod.from_object({"metadata": {"uid": "u", "resourceVersion": "1"}})
    assert values.get(pod) is None
    assert values.keep(pod, "a") == "a"
    assert values.get(pod) == "a"
    twin, changed = replace(pod), replace(pod, annotations={"a": "b"})
    assert twin == pod
    assert values.get(twin) is values.get(changed) is None
    values.keep(pod, "b")
    assert values.get(pod) == "b"


def test_a_value_goes_with_its_object() -> None:
    values: DerivedValues[Pod, int] = DerivedValues()
    for number in range(100):
        pod = Pod.from_object({})
        assert values.get(pod) is None
        values.keep(pod, number)
        values.keep(pod, number + 1)
        assert values.get(pod) == number + 1
    assert len(values) == 1
    del pod
    assert len(values) == 0
