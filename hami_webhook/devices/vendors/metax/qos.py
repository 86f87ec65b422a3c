"""Who may share a MetaX sGPU card: application classes and QoS (docs/spec/metax.md#4 and #7).

A card runs one kind of QoS at a time. It is read off the pods on it, as the plugin reports a change only some time
after an allocation; containers of the pod that is being fitted are known by the marks of their shares.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from hami_webhook.devices.fit_request import Candidate
from hami_webhook.devices.model import BadRequest, Device, Usage
from hami_webhook.kube.objects import Pod

QOS = "metax-tech.com/sgpu-qos-policy"
BEST_EFFORT = "best-effort"
QOS_KINDS = (BEST_EFFORT, "fixed-share", "burst-share")
"""No compute limit; a hard share; a share that may use what is idle."""

APP_CLASS = "metax-tech.com/sgpu-app-class"
ONLINE = "online"
OFFLINE = "offline"
APP_CLASSES = (ONLINE, OFFLINE)
"""Online pods come first on their card; while one runs, the driver suspends offline ones there."""

ALL_CORES = 100


class SgpuCard(Struct, frozen=True):
    """What MetaX registers of a card beyond the usual: the QoS it is in ("" for none), its link zone (0 for none)."""

    qos: str = ""
    zone: int = 0


class OwnTask(Struct, frozen=True):
    """A mark on a card: a container of the pod that is being fitted."""


def card_of(device: Device) -> SgpuCard:
    assert isinstance(device.extra, SgpuCard)
    return device.extra


def class_of(pod: Pod) -> str | None:
    """`online`, `offline`, or None for an ordinary pod."""
    found = pod.annotations.get(APP_CLASS)
    return found if found in APP_CLASSES else None


def is_online(pod: Pod) -> bool:
    return class_of(pod) == ONLINE


def qos_of(pod: Pod) -> str:
    return pod.annotations.get(QOS, BEST_EFFORT)


def check_annotations(annotations: Mapping[str, str], count: int) -> None:
    """Raises `BadRequest` for a class or QoS that can't be meant of a container that requests `count` cards."""
    if APP_CLASS in annotations:
        _check_choice(annotations, APP_CLASS, APP_CLASSES)
        if count != 1:
            raise BadRequest("app-class pod must request single device")
    if annotations.get(APP_CLASS) != ONLINE:
        _check_choice(annotations, QOS, QOS_KINDS)


def _check_choice(annotations: Mapping[str, str], key: str, choices: tuple[str, ...]) -> None:
    if annotations.get(key, choices[0]) not in choices:
        raise BadRequest(f"{key} must be set one of [{', '.join(choices)}]")


def classes_on(usage: Usage, newcomer: Pod) -> list[str | None]:
    """The class of each pod on a card, the newcomer included where a container of it is there already."""
    return [*(class_of(holder.pod) for holder in usage.holders), *([class_of(newcomer)] if usage.marks else [])]


def class_fits(candidate: Candidate) -> bool:
    """Ordinary pods join ordinary pods, classed pods classed ones, and none goes offline behind an online one."""
    if candidate.usage.slots == 0:
        return True
    mine = class_of(candidate.fit_request.pod)
    others = set(classes_on(candidate.usage, candidate.fit_request.pod))
    if (mine is None) != (others <= {None}):
        return False
    return not (mine == OFFLINE and ONLINE in others)


def qos_fits(candidate: Candidate) -> bool:
    """Only pods of one QoS share a card; all of a card's cores are nobody's share, which other checks see to."""
    pod, usage = candidate.fit_request.pod, candidate.usage
    if is_online(pod) or usage.slots == 0 or candidate.fit_request.request.cores == ALL_CORES:
        return True
    return _qos_on(candidate.device, usage) in ("", qos_of(pod))


def _qos_on(device: Device, usage: Usage) -> str | None:
    """The QoS of a used card, "" for any; None where the pods on it disagree and the node sides with none of them.

    What the containers of the pod that is being fitted have there is its own QoS.
    """
    kinds = {qos_of(h.pod) for h in usage.holders if h.cores < ALL_CORES and not is_online(h.pod)}
    if len(kinds) == 1:
        return kinds.pop()
    registered = card_of(device).qos
    if kinds:
        return registered if registered in kinds else None
    return "" if usage.marks else registered
