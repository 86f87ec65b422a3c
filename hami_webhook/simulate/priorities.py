"""The priority of new pods, as the API server's admission plugin Priority sets it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.loading import LoadedObject, LoadError
from hami_webhook.kube.scheduling_wire import PriorityClassObject
from hami_webhook.kube.wire import MalformedObject, convert

_SYSTEM = {
    "system-cluster-critical": PriorityClassObject(value=2_000_000_000),
    "system-node-critical": PriorityClassObject(value=2_000_001_000),
}


class PriorityClasses:
    """The PriorityClasses of a run. Without any a pod keeps the priority that it has written itself."""

    def __init__(self, loaded: Iterable[LoadedObject] = ()) -> None:
        """Raises `LoadError` for a class that can't be read."""
        self._classes: dict[str, PriorityClassObject] = {}
        for item in loaded:
            try:
                self._classes[item.name] = convert(item.object, PriorityClassObject, "priorityclass")
            except MalformedObject as error:
                raise LoadError(f"{item.where}: PriorityClass {item.name!r}: {error}") from error
        defaults = [(each.value, name) for name, each in self._classes.items() if each.global_default]
        self._default = min(defaults)[1] if defaults else ""

    def applied(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """The manifest of a new pod with the priority of its class. Raises `Denied` where the API server refuses it."""
        spec = manifest.get("spec")
        if not self._classes or not isinstance(spec, Mapping):
            return manifest
        name = spec.get("priorityClassName") or self._default
        if not isinstance(name, str) or not name:
            return manifest
        found = self._classes.get(name) or _SYSTEM.get(name)
        forbidden = f'pods "{manifest["metadata"]["name"]}" is forbidden: '
        if found is None:
            raise Denied(403, f"{forbidden}no PriorityClass with name {name} was found")
        if (given := spec.get("priority")) not in (None, found.value):
            raise Denied(
                403,
                f"{forbidden}the integer value of priority ({given}) must not be provided in pod spec; "
                f"priority admission controller computed {found.value} from the given PriorityClass name",
            )
        policy = found.preemption_policy or "PreemptLowerPriority"
        settled = {"priorityClassName": name, "priority": found.value, "preemptionPolicy": policy}
        return {**manifest, "spec": {**spec, **settled}}
