"""How the pods of a run are reviewed, and the UIDs that they get: the same in each run."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.review import API_VERSIONS, Review
from hami_webhook.kube.wire import MalformedObject, ReviewedPod, convert

_UID_SPACE = uuid.UUID("8f1f5d1c-6a0e-5a55-9d0a-3c5b7a0d6f10")


def uid_of(namespace: str, name: str) -> str:
    """The UID of a pod that a run makes."""
    return str(uuid.uuid5(_UID_SPACE, f"{namespace}/{name}"))


def review_of(raw: Mapping[str, Any], namespace: str, name: str, user: str, groups: Sequence[str] = ()) -> Review:
    """The review of a new pod of a user in these groups. Raises `Denied` (400) where a field is mistyped."""
    try:
        pod = convert(raw, ReviewedPod, "pod")
    except MalformedObject as error:
        raise Denied(400, f"the pod can't be read: {error}") from error
    return Review(
        api_version=API_VERSIONS[0],
        uid=str(uuid.uuid5(_UID_SPACE, f"review {namespace}/{name}")),
        operation="CREATE",
        kind="Pod",
        subresource="",
        namespace=namespace,
        name=name,
        object=pod,
        old_object=ReviewedPod(),
        username=user,
        groups=groups,
    )
