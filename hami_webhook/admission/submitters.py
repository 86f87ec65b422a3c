"""Who submitted a pod, written where nobody can forge it (docs/spec/who.md#1 and #2).

The stamp follows from the review's own user, and not from what the object says: but for accounts that are trusted to
carry on what stood in a template, or to name the user they act for. No rule here reads anything, or knows a quota;
which groups quotas name comes in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Set
from typing import Any

from msgspec import Struct

from hami_webhook.admission.denial import Denied
from hami_webhook.kube.message_text import quoted
from hami_webhook.kube.patch import Operation, pointer
from hami_webhook.kube.stamps import STAMPS, SUBMITTED_BY, SUBMITTED_BY_GROUPS, groups_in, groups_text

_SERVICE_ACCOUNT, _SERVICE_ACCOUNTS = "system:serviceaccount:", "system:serviceaccounts:"
KUBERNETES_CONTROLLERS = frozenset(
    {
        "system:kube-controller-manager",
        *(
            f"{_SERVICE_ACCOUNT}kube-system:{name}-controller"
            for name in ("cronjob", "daemon-set", "deployment", "job", "replicaset", "replication", "statefulset")
        ),
    }
)
"""The users of kube-controller-manager that make pods and workloads of the templates of others."""
LONGEST = 253
"""Characters of a stamp."""
_DIGEST = 40
_MOST_PLACES = 20_000
"""Objects and lists of a workload that are looked through for templates."""


class Stamp(Struct, frozen=True):
    """The values of the annotations of a stamp; None for one that isn't there."""

    subject: str | None = None
    groups: str | None = None

    @classmethod
    def of(cls, annotations: Mapping[str, Any]) -> Stamp:
        """What an object's annotations say."""
        found = (annotations.get(key) for key in STAMPS)
        return cls(*(each if isinstance(each, str) else None for each in found))

    def normalised(self) -> Stamp:
        """The stamp within its bounds, as carriers and portals bring it on."""
        if not self.subject:
            return Stamp()
        return Stamp(subject_name(self.subject), groups_text(groups_in(self.groups)))

    def items(self) -> Iterator[tuple[str, str | None]]:
        """The annotations with their values."""
        yield SUBMITTED_BY, self.subject
        yield SUBMITTED_BY_GROUPS, self.groups


class Submitters(Struct, frozen=True):
    """The user names that are trusted with stamps: `controllers` carry on what stood in a template, `portals` name the
    user they act for.
    """

    controllers: frozenset[str] = frozenset()
    portals: frozenset[str] = frozenset()

    def stamp(self, username: str, groups: Set[str], written: Stamp) -> Stamp:
        """Return the stamp of an object that a user creates.

        `groups` are those of the user's groups that quotas name; `written` is the stamp that the object brings.
        """
        if username in self.controllers or (written.subject and username in self.portals):
            return written.normalised()
        return Stamp(submitter(username), groups_text(groups)) if username else Stamp()


def submitter(username: str) -> str:
    """The subject of a user. The service accounts of a namespace are one: who may use one there, may use them all."""
    if username.startswith(_SERVICE_ACCOUNT):
        return subject_name(_SERVICE_ACCOUNTS + username.removeprefix(_SERVICE_ACCOUNT).partition(":")[0])
    return subject_name(username)


def subject_name(text: str) -> str:
    """A name as stamps have it: of a long one the beginning, and a digest that no other has."""
    if len(text) <= LONGEST:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGEST]
    return f"{text[: LONGEST - _DIGEST - 1]}~{digest}"


def refuse_stamp(written: Stamp, expected: Stamp, groups: Collection[str], *, mutated: bool) -> None:
    """Deny a new pod with another stamp than mutation gives it; `mutated`: it should have been there.

    `groups` are all of the user's. Of these the stamp may name more than this replica knows a quota for: another one,
    which mutated the pod, may know it already.
    """
    if written.subject != expected.subject and (written.subject is not None or mutated):
        found = "it is missing" if written.subject is None else f"the pod says {quoted(written.subject)}"
        wanted = "no value" if expected.subject is None else quoted(expected.subject)
        raise Denied(
            403,
            f"annotation {SUBMITTED_BY} must have {wanted}, but {found}, because mutation was skipped. Remove the "
            "annotation, and the label hami.io/webhook if the pod has one",
        )
    said, due = set(groups_in(written.groups)), set(groups_in(expected.groups))
    if written.subject is None or said == due:  # without a subject, groups mean nothing
        return
    for group in sorted(said.difference(due, groups)):
        raise Denied(
            403,
            f"annotation {SUBMITTED_BY_GROUPS} names group {quoted(group)}, which the user isn't in. Remove the "
            "annotation, and the label hami.io/webhook if the pod has one",
        )
    for group in sorted(due - said):
        raise Denied(
            503,
            f"annotation {SUBMITTED_BY_GROUPS} lacks group {quoted(group)}, which a quota names: mutation was skipped, "
            "or the quota is new. Remove the label hami.io/webhook if the pod has one, and try again",
            retry_after=1,
        )


class _Template(Struct, frozen=True):
    """A PodTemplateSpec in a workload, and the JSON Pointer to it."""

    pointer: str
    obj: Mapping[str, Any]

    @property
    def annotations(self) -> Mapping[str, Any]:
        meta = self.obj.get("metadata")
        found = meta.get("annotations") if isinstance(meta, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    @property
    def stamp(self) -> Stamp:
        return Stamp.of(self.annotations)

    @property
    def unstamped(self) -> tuple[object, ...]:
        """All that it says but its stamp."""
        meta = self.obj.get("metadata")
        others = (
            {key: value for key, value in meta.items() if key != "annotations"} if isinstance(meta, Mapping) else {}
        )
        annotations = {key: value for key, value in self.annotations.items() if key not in STAMPS}
        rest = {key: value for key, value in self.obj.items() if key != "metadata"}
        # a time of creation that was never set is written as null by some clients, and by others not at all
        return {key: value for key, value in others.items() if value is not None}, annotations, rest

    def stamped(self, stamp: Stamp) -> Iterator[Operation]:
        """The operations that give it this stamp."""
        changed = {key: text for key, text in stamp.items() if text != self.annotations.get(key)}
        meta, place = self.obj.get("metadata"), f"{self.pointer}/metadata"
        if not changed:
            return
        if not isinstance(meta, Mapping):
            yield {"op": "add", "path": place, "value": {"annotations": changed}}
        elif not isinstance(meta.get("annotations"), Mapping):
            yield {"op": "add", "path": f"{place}/annotations", "value": changed}
        else:
            for key, text in changed.items():
                path = place + pointer("annotations", key)
                yield {"op": "remove", "path": path} if text is None else {"op": "add", "path": path, "value": text}


def stamped_templates(
    spec: Any,
    old_spec: Any,
    username: str,
    groups: Set[str],
    submitters: Submitters | None,
    schedulers: Collection[str] = (),
) -> list[Operation]:
    """The JSON Patch that stamps the pod templates of a workload that may ask for devices.

    `spec` is the workload's, and `old_spec` that before, if any. `schedulers` are those that pods ask for devices by
    annotation. `groups` are as `Submitters.stamp` takes them; `submitters` is None where nobody is stamped.

    An unchanged template keeps its stamp, even if the request changes it: scaling a workload, or editing its labels,
    doesn't change the submitter. Raises `Denied` for an object in which templates can't be searched.
    """
    before = {each.pointer: each for each in _templates(old_spec)}
    operations: list[Operation] = []
    for each in _templates(spec):
        former, stamp, written = before.get(each.pointer), Stamp(), each.stamp
        if submitters is not None and _may_ask_for_devices(each.obj["spec"], schedulers):
            stamp = submitters.stamp(username, groups, written)
            brings = written.subject is not None
            says = username in submitters.controllers or (username in submitters.portals and brings)
            if former is not None and not says and _differ_in_stamps_only(former, each):
                stamp = former.stamp
        # of pods that cost nothing, what somebody wrote there means nothing
        operations += each.stamped(stamp)
    return operations


def _differ_in_stamps_only(former: _Template, template: _Template) -> bool:
    """Raises `Denied` for templates that are nested too deeply to be compared."""
    try:
        return former.unstamped == template.unstamped
    except RecursionError as error:
        raise Denied(422, "a pod template is nested too deeply to be compared; nest its fields less deeply") from error


def _templates(spec: Any) -> list[_Template]:
    """The pod templates in a workload's spec: whatever has a `spec` with containers, wherever it stands."""
    found: list[_Template] = []
    left: list[tuple[str, Any]] = [("/spec", spec)]
    seen = 0
    while left:
        place, value = left.pop()
        seen += 1
        if seen > _MOST_PLACES:
            raise Denied(
                422, f"the object has more than {_MOST_PLACES} objects and lists: too many to find pod templates"
            )
        if isinstance(value, Mapping):
            spec = value.get("spec")
            if isinstance(spec, Mapping) and isinstance(spec.get("containers"), list):
                found.append(_Template(place, value))
                continue
            items: Iterator[tuple[Any, Any]] = iter(value.items())
        elif isinstance(value, list):
            items = iter(enumerate(value))
        else:
            continue
        left += ((place + pointer(key), each) for key, each in items if isinstance(each, Mapping | list))
    return sorted(found, key=lambda each: each.pointer)


def _may_ask_for_devices(spec: Mapping[str, Any], schedulers: Collection[str]) -> bool:
    """Whether a PodSpec names extended resources or claims, or one of the schedulers."""
    if spec.get("resourceClaims") or spec.get("schedulerName") in schedulers:
        return True
    for field in ("containers", "initContainers"):
        containers = spec.get(field)
        for container in containers if isinstance(containers, list) else ():
            resources = container.get("resources") if isinstance(container, Mapping) else None
            for part in ("limits", "requests"):
                amounts = resources.get(part) if isinstance(resources, Mapping) else None
                if isinstance(amounts, Mapping) and any("/" in name for name in amounts):
                    return True
    return False
