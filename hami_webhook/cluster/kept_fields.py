"""What lists and watches keep of an object: the fields that `kube/wire.py` declares, so that memory stays small.

A pod of 10 KB shrinks to less than 1 KB; environment values and images, which may be secrets, are never made into
objects at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.kube import wire

_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_DECODERS: Mapping[Kind, msgspec.json.Decoder[Any]] = {
    Kind.PODS: msgspec.json.Decoder(wire.PodObject),
    Kind.NODES: msgspec.json.Decoder(wire.NodeObject),
    Kind.NAMESPACES: msgspec.json.Decoder(wire.NamespaceObject),
    Kind.DEVICES: msgspec.json.Decoder(wire.DeviceObject),
}
_ENCODER = msgspec.json.Encoder()


def decode_kept(kind: Kind, content: msgspec.Raw | bytes) -> JSON:
    """An object from its JSON text: the fields that are kept; all of them, for the reader to refuse, if one of
    those has the wrong type.
    """
    decoder = _DECODERS.get(kind)
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
