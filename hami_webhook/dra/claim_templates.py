"""The ResourceClaimTemplates that limits become: their form, their names, and the annotation that carries them.

Source: docs/spec/dra.md#8. A template's name is a digest of its content, so an annotation can't give a name another
content, even if a tenant wrote it. The reader accepts only what conversion writes: no `adminAccess`, no driver
parameters, and only configured classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from hami_webhook.config.drivers import DriverDevices
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.objects import Namespace, Pod

TEMPLATE_SPECS = "hami.io/claim-template-specs"
"""The annotation of a converted pod: the specs of its templates by their names, as JSON."""
LONGEST_SPECS = 64 * 1024
"""Characters of that annotation; a longer one isn't read."""
MOST_SPECS = 64
"""Specs in it; one with more isn't read."""
CLAIMS = "hami.io/claims"
"""The label of a namespace whose pods' limits become claims (`convert`), or don't (`off`)."""
OFF, LABELLED, CONVERT = "off", "labelled", "convert"
"""In which namespaces limits become claims: none; those with the label `convert`; all but those with `off`."""
_PREFIX, _DIGITS = "hami-", 16


class _Form(Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A JSON object of just these members."""


class Cel(_Form, frozen=True):
    expression: str


class Selector(_Form, frozen=True):
    cel: Cel


class Capacity(_Form, frozen=True):
    requests: dict[str, str]


class Devices(_Form, frozen=True):
    """`count` devices of a class; with a name an alternative of `first_available`."""

    device_class_name: str
    count: int
    name: str | None = None
    selectors: tuple[Selector, ...] = ()
    capacity: Capacity | None = None


class DevicesRequest(_Form, frozen=True):
    name: str
    exactly: Devices | None = None
    first_available: tuple[Devices, ...] = ()


class Constraint(_Form, frozen=True):
    """All devices of the claim have the same value of an attribute, or different ones."""

    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DevicesClaim(_Form, frozen=True):
    requests: tuple[DevicesRequest, ...]
    constraints: tuple[Constraint, ...] = ()


class TemplateSpec(_Form, frozen=True):
    """What a template's claims request, its `spec.spec`."""

    devices: DevicesClaim

    @property
    def name(self) -> str:
        """The name of the template."""
        content = msgspec.json.encode(self, order="sorted")
        return f"{_PREFIX}{hashlib.sha256(content).hexdigest()[:_DIGITS]}"

    @property
    def classes(self) -> set[str]:
        """The DeviceClasses that it requests devices of."""
        requests = self.devices.requests
        of_requests = [(request.exactly,) if request.exactly else request.first_available for request in requests]
        return {each.device_class_name for alternatives in of_requests for each in alternatives}

    @property
    def template(self) -> wire.ResourceClaimTemplate:
        """The template as it is read from the API."""
        return msgspec.convert({"spec": {"spec": msgspec.to_builtins(self)}}, wire.ResourceClaimTemplate)


def converts(mode: str, namespace: Namespace) -> bool:
    """Whether limits of a namespace's pods become claims."""
    label = namespace.labels.get(CLAIMS)
    return label == CONVERT if mode == LABELLED else mode == CONVERT and label != OFF


def annotation_of(specs: Iterable[TemplateSpec]) -> str:
    """The annotation of a pod with these templates."""
    return msgspec.json.encode({spec.name: spec for spec in specs}, order="sorted").decode()


def declared_templates(pod: Pod, rows: Iterable[DriverDevices]) -> Mapping[str, TemplateSpec]:
    """Return, by name, the templates to which a pod refers and which its annotation declares, if name and content
    match.
    """
    text = pod.annotations.get(TEMPLATE_SPECS)
    if text is None or len(text) > LONGEST_SPECS:
        return {}
    try:
        written = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    if len(written) > MOST_SPECS:
        return {}
    classes = {name for row in rows if row.convert for name in row.device_classes}
    referred = {each.template for each in pod.resource_claims}
    found = {}
    for name in written.keys() & referred:
        content = written[name]
        try:
            spec = msgspec.json.decode(content, type=TemplateSpec)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        if spec.name == name and spec.classes <= classes:
            found[name] = spec
    return found
