"""What lists and watches keep of an object: the fields that `kube/wire.py` and `kube/claims_wire.py` declare, so that
memory stays small; commands that filter nodes keep those of `kube/scheduling_wire.py` too.

A pod of 10 KB shrinks to less than 1 KB; environment values and images, which may be secrets, are never made into
objects at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.kube import claims_wire, scheduling_wire, wire

_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_DECODERS: Mapping[Kind, msgspec.json.Decoder[Any]] = {
    Kind.PODS: msgspec.json.Decoder(wire.PodObject),
    Kind.NODES: msgspec.json.Decoder(wire.NodeObject),
    Kind.NAMESPACES: msgspec.json.Decoder(wire.NamespaceObject),
    Kind.DEVICES: msgspec.json.Decoder(wire.DeviceObject),
    Kind.RESOURCE_CLAIMS: msgspec.json.Decoder(claims_wire.ResourceClaim),
    Kind.RESOURCE_CLAIM_TEMPLATES: msgspec.json.Decoder(claims_wire.ResourceClaimTemplate),
    Kind.RESOURCE_SLICES: msgspec.json.Decoder(claims_wire.ResourceSlice),
    Kind.DEVICE_CLASSES: msgspec.json.Decoder(claims_wire.DeviceClass),
}
_OF_SCHEDULING: Mapping[Kind, msgspec.json.Decoder[Any]] = {
    **_DECODERS,
    Kind.PODS: msgspec.json.Decoder(scheduling_wire.Pod),
    Kind.NODES: msgspec.json.Decoder(scheduling_wire.Node),
}
_ENCODER = msgspec.json.Encoder()


def decode_kept(kind: Kind, content: msgspec.Raw | bytes) -> JSON:
    """An object from its JSON text: the fields that are kept; all of them, for the reader to refuse, if one of
    those has the wrong type.
    """
    return decode_with(kind, content, _DECODERS)


def decode_for_scheduling(kind: Kind, content: msgspec.Raw | bytes) -> JSON:
    """As `decode_kept`, with what kube-scheduler's filters read."""
    return decode_with(kind, content, _OF_SCHEDULING)


def decode_with(kind: Kind, content: msgspec.Raw | bytes, decoders: Mapping[Kind, msgspec.json.Decoder[Any]]) -> JSON:
    """As `decode_kept`, with the fields that these decoders have."""
    decoder = decoders.get(kind)
    if decoder is None:
        return decode_whole(kind, content)
    try:
        kept: JSON = orjson.loads(_ENCODER.encode(decoder.decode(content)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode_whole(kind, content)
    annotations = kept.get("metadata", {}).get("annotations")
    if annotations:
        annotations.pop(_APPLIED, None)
    return kept


def decode_whole(kind: Kind, content: msgspec.Raw | bytes) -> JSON:
    """An object from its JSON text, of any kind, with all its fields."""
    found: JSON = orjson.loads(bytes(content))
    return found
