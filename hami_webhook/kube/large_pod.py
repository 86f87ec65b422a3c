"""A pod of which the largest maps are looked at before they are decoded: each takes half a microsecond for a name.

Decoding can't be interrupted, and other reviews wait for it. What is passed over costs a hundredth of that.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from hami_webhook.kube.wire import ObjectMeta, ReviewedPod, ReviewedPodSpec, Texts

_TEXTS = msgspec.json.Decoder(Texts | None)
_ANYTHING = msgspec.json.Decoder()


_NULL = msgspec.Raw(b"null")


class _LargeMeta(ObjectMeta, frozen=True):
    labels: msgspec.Raw = _NULL  # type: ignore[assignment]  # until `LargePod.read` replaces it
    annotations: msgspec.Raw = _NULL  # type: ignore[assignment]  # as well


class _LargeSpec(ReviewedPodSpec, frozen=True):
    node_selector: msgspec.Raw = _NULL  # type: ignore[assignment]  # as well
    overhead: msgspec.Raw = _NULL


class LargePod(ReviewedPod, frozen=True):
    """The same fields, of which the maps with free names are JSON text."""

    metadata: _LargeMeta | None = None
    spec: _LargeSpec | None = None

    def most_names(self) -> int:
        """How many names these maps have at most: of four quotes each, as far as the values have none."""
        meta, spec = self.metadata or _LargeMeta(), self.spec or _LargeSpec()
        texts = (meta.labels, meta.annotations, spec.node_selector, spec.overhead)
        return sum(bytes(text).count(b'"') for text in texts) // 4

    def read(self) -> ReviewedPod:
        """The pod with these maps decoded. Raises `msgspec.DecodeError`."""
        meta, spec = self.metadata, self.spec
        if meta is not None:
            meta = replace(meta, labels=_TEXTS.decode(meta.labels), annotations=_TEXTS.decode(meta.annotations))
        if spec is not None:
            selector, overhead = _TEXTS.decode(spec.node_selector), _ANYTHING.decode(spec.overhead)
            spec = replace(spec, node_selector=selector, overhead=overhead)
        return replace(self, metadata=meta, spec=spec)
