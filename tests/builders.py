"""Pods, nodes and quotas as the API has them, short to write.

Amounts have short names (`gpu`, `mem`, `percent`, `cores` of NVIDIA) or their own (`**{"amd.com/gpu": 1}`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hami_webhook.kube.objects import Node, Pod

JSON = dict[str, Any]
GPU, MEM, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
PERCENT, PRIORITY = "nvidia.com/gpumem-percentage", "nvidia.com/priority"
REGISTER, SCORES = "hami.io/node-nvidia-register", "hami.io/node-nvidia-score"
ALLOCATED = "hami.io/vgpu-devices-allocated"
_SHORT = {"gpu": GPU, "mem": MEM, "cores": CORES, "percent": PERCENT}


def card(uuid: str, memory: object = 40960, **fields: object) -> JSON:
    """What NVIDIA's device plugin registers of a card of 40 GiB, changed where given; a field of None is left out."""
    made: JSON = {"id": uuid, "count": 10, "devmem": memory, "devcore": 100, "type": "NVIDIA A100-SXM4-40GB"}
    made |= {"numa": 0, "mode": "hami-core", "health": True, **fields}
    return {key: value for key, value in made.items() if value is not None}


def node(
    name: str = "n1",
    *cards: JSON,
    scores: JSON | None = None,
    labels: JSON | None = None,
    capacity: Mapping[str, object] | None = None,
    unhealthy: Mapping[str, Sequence[str]] | None = None,
    **annotations: str,
) -> JSON:
    """A node with these NVIDIA cards; `scores` as `{"GPU-1": {"GPU-2": 100}}`, `unhealthy` as `{"GPU-1": ["lost"]}`.

    Its capacity is ten slots a card unless given; annotations are written as `**{"hami.io/…": text}`.
    """
    written: JSON = {}
    if cards:
        written[REGISTER] = json.dumps([{"index": index, **each} for index, each in enumerate(cards)])
        capacity = {GPU: 10 * len(cards)} if capacity is None else capacity
    if scores is not None:
        written[SCORES] = json.dumps([{"uuid": uuid, "score": score} for uuid, score in scores.items()])
    if unhealthy is not None:
        written["hami.io/unhealthy-cards"] = json.dumps({uuid: {"causes": each} for uuid, each in unhealthy.items()})
    amounts = {key: str(amount) for key, amount in (capacity or {}).items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}, "annotations": {**written, **annotations}},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def _limits(**amounts: object) -> JSON:
    """Amounts by the resources' own names, numbers as the API server sends them; without those that are None."""
    given = {_SHORT.get(key, key): amount for key, amount in amounts.items() if amount is not None}
    return {key: str(amount) if type(amount) is int else amount for key, amount in given.items()}


def container(
    name: str = "main", /, limits: object = None, requests: object = None, *, sidecar: object = False, **fields: Any
) -> JSON:
    """A container that is limited to the amounts given; `limits`, `requests` and other fields stand as written."""
    amounts, fields = _amounts(fields)
    resources: JSON = {} if limits is None else {"limits": limits}
    if amounts:
        resources["limits"] = amounts
    if requests is not None:
        resources["requests"] = _limits(**requests) if isinstance(requests, dict) else requests
    if sidecar:
        fields["restartPolicy"] = "Always"
    return {"name": name, "image": "registry.invalid/none", "resources": resources, **fields}


def pod(
    name: str = "p",
    *containers: JSON,
    namespace: str = "default",
    uid: str = "",
    annotations: JSON | None = None,
    labels: JSON | None = None,
    init: Sequence[JSON] = (),
    status: JSON | None = None,
    **fields: Any,
) -> JSON:
    """A pod of these containers, or of one with the amounts given; with `init` alone it has no others.

    Other fields are its spec's, unless they are "". Containers of the same name are numbered.
    """
    amounts, spec = _amounts(fields)
    meta = {"name": name, "namespace": namespace, "uid": uid, "annotations": annotations, "labels": labels}
    apps = _numbered(containers or ([container(**amounts)] if amounts or not init else []), ())
    made: JSON = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {key: value for key, value in meta.items() if value},
        "spec": {"containers": apps, **{key: value for key, value in spec.items() if value != ""}},
    }
    if init:
        made["spec"]["initContainers"] = _numbered(init, apps)
    return made if status is None else {**made, "status": status}


def bound_pod(name: str, on: str, allocated: str, *containers: JSON, **fields: Any) -> JSON:
    """A pod that runs on a node and holds what an allocated annotation says; `;` ends a container in it."""
    made = pod(name, *(containers or [container() for _ in range(allocated.count(";"))]), nodeName=on, **fields)
    made["metadata"]["annotations"] = {
        "hami.io/vgpu-node": on,
        ALLOCATED: allocated,
        **made["metadata"].get("annotations", {}),
    }
    return {"status": {"phase": "Running"}, **made}


def quota(
    name: str = "gpu-quota",
    *,
    namespace: str = "default",
    used: Mapping[str, object] | None = None,
    spec: JSON | None = None,
    **hard: object,
) -> JSON:
    """A ResourceQuota; `gpu`, `mem` and `cores` are keys such as `limits.nvidia.com/gpu`, in `used` too."""
    keys = {key: str(amount) for key, amount in _quota_keys(hard).items()}
    made: JSON = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hard": keys, **(spec or {})},
    }
    if used is not None:
        shown = dict.fromkeys(keys, 0) | _quota_keys(used)
        made["status"] = {"hard": keys, "used": {key: str(amount) for key, amount in shown.items()}}
    return made


def accelerator_quota(
    name: str = "all",
    selector: JSON | None = None,
    spec: JSON | None = None,
    *,
    status: JSON | None = None,
    **hard: object,
) -> JSON:
    """An AcceleratorQuota, of all namespaces unless there is a selector."""
    made: JSON = {
        "apiVersion": "hami.io/v1alpha1",
        "kind": "AcceleratorQuota",
        "metadata": {"name": name},
        "spec": {"namespaceSelector": selector or {}, "hard": _quota_keys(hard), **(spec or {})},
    }
    return made if status is None else {**made, "status": status}


def read_pod(*arguments: Any, **fields: Any) -> Pod:
    return Pod.from_object(pod(*arguments, **fields))


def read_node(*arguments: Any, **fields: Any) -> Node:
    return Node.from_object(node(*arguments, **fields))


def _amounts(fields: JSON) -> tuple[JSON, JSON]:
    """The amounts among the fields, and the rest."""
    amounts = {key for key in fields if key in _SHORT or "/" in key or key in ("cpu", "memory")}
    named = _limits(**{key: value for key, value in fields.items() if key in amounts})
    return named, {key: value for key, value in fields.items() if key not in amounts}


def _quota_keys(amounts: Mapping[str, object]) -> JSON:
    return {f"limits.{_SHORT[key]}" if key in _SHORT else key: amount for key, amount in amounts.items()}


def _numbered(containers: Sequence[JSON], others: Iterable[JSON]) -> list[JSON]:
    taken = {each["name"] for each in others}
    numbered: list[JSON] = []
    for each in containers:
        name, number = each["name"], 0
        while name in taken:
            number += 1
            name = f"{each['name']}-{number}"
        taken.add(name)
        numbered.append({**each, "name": name})
    return numbered
