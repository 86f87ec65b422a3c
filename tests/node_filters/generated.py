"""Random clusters and pods that touch every filter that is judged, for a stock kube-scheduler and for us."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

JSON = dict[str, Any]

ZONE, RACK, SIZE, HOST = "zone", "rack", "size", "kubernetes.io/hostname"
KEYS = (ZONE, RACK, HOST)
TAINTS = (
    ("node.kubernetes.io/not-ready", "", "NoSchedule"),
    ("node.kubernetes.io/unreachable", "", "NoExecute"),
    ("team", "a", "NoSchedule"),
    ("team", "b", "NoExecute"),
    ("spot", "", "PreferNoSchedule"),
)
APPS, TRACKS = ("web", "db", "job"), ("canary", "stable")
PORTS = {"main": (80, 443), "side": (81, 82), "init-0": (90, 91), "init-1": (92,), "init-2": (93,)}
OVERHEAD = "with-overhead"
"""A RuntimeClass with the overhead of 300m and 100Mi."""


class Generator:
    """Objects for some namespaces, from a seed."""

    def __init__(self, seed: int, namespaces: Sequence[str]) -> None:
        self._random = Random(seed)
        self._namespaces = namespaces
        self.node_names = [f"filters-{number:02d}" for number in range(12)]

    def _maybe(self, chance: float) -> bool:
        return self._random.random() < chance

    def _one(self, values: Sequence[Any]) -> Any:
        return self._random.choice(values)

    def _some(self, values: Sequence[Any], least: int = 1) -> list[Any]:
        return self._random.sample(values, self._random.randint(least, len(values)))

    def nodes(self) -> list[JSON]:
        return [self._node(name) for name in self.node_names]

    def _node(self, name: str) -> JSON:
        labels = {HOST: name}
        if self._maybe(0.85):
            labels[ZONE] = self._one("abc")
        if self._maybe(0.6):
            labels[RACK] = self._one("12")
        if self._maybe(0.6):
            labels[SIZE] = self._one(("1", "5", "10", "large", "-3"))
        spec: JSON = {}
        if self._maybe(0.1):
            spec["unschedulable"] = True
        if self._maybe(0.3):
            chosen = self._some(TAINTS)[:2]
            spec["taints"] = [{"key": key, "value": value, "effect": effect} for key, value, effect in chosen]
        offered = {
            "cpu": self._one(("2", "4", "7500m")),
            "memory": self._one(("4Gi", "8Gi", "5000M")),
            "ephemeral-storage": self._one(("10Gi", "50Gi")),
            "pods": self._one(("3", "6", "110")),
            "hugepages-2Mi": self._one(("0", "64Mi")),
        }
        if self._maybe(0.5):
            offered["example.com/widget"] = self._one(("1", "4"))
        return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": offered}}

    def placed(self, name: str) -> JSON:
        """A pod that is on a node."""
        pod = self._pod(name, terms=0.3)
        pod["spec"]["nodeName"] = self._one(self.node_names)
        return pod

    def waiting(self, name: str, **spec: Any) -> JSON:
        """A pod that waits."""
        pod = self._pod(name, terms=0.2)
        if self._maybe(0.25):
            pod["spec"]["topologySpreadConstraints"] = [
                self._constraint(key) for key in self._some((ZONE, RACK, HOST))[:2]
            ]
        pod["spec"] |= spec
        return pod

    def _pod(self, name: str, terms: float) -> JSON:
        labels = {"app": self._one(APPS)} if self._maybe(0.9) else {}
        if self._maybe(0.5):
            labels["track"] = self._one(TRACKS)
        spec: JSON = {"containers": [self._container("main"), *([self._container("side")] if self._maybe(0.2) else [])]}
        if self._maybe(0.2):
            spec["initContainers"] = [
                {**self._container(f"init-{number}"), **({"restartPolicy": "Always"} if self._maybe(0.5) else {})}
                for number in range(self._random.randint(1, 3))
            ]
        if self._maybe(0.1):
            spec["runtimeClassName"] = OVERHEAD
        if self._maybe(0.1):
            spec["resources"] = {self._one(("requests", "limits")): {"cpu": "20", "memory": "20Gi"}}
        if self._maybe(0.05):
            spec["hostNetwork"] = True
        if self._maybe(0.4):
            spec["tolerations"] = [self._toleration() for _ in range(self._random.randint(1, 3))]
        if self._maybe(0.15):
            spec["nodeSelector"] = {self._one((ZONE, RACK)): self._one("ab12")}
        affinity: JSON = {}
        if self._maybe(0.25):
            required = {"nodeSelectorTerms": [self._node_term() for _ in range(self._random.randint(1, 2))]}
            affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        for kind in ("podAffinity", "podAntiAffinity"):
            if self._maybe(terms):
                found = [self._pod_term() for _ in range(self._random.randint(1, 2))]
                affinity[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": found}
        if affinity:
            spec["affinity"] = affinity
        meta = {"name": name, "namespace": self._one(self._namespaces), "labels": labels}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    def _container(self, name: str) -> JSON:
        amounts: dict[str, Callable[[], str]] = {
            "cpu": lambda: self._one(("100m", "1", "1500m", "3")),
            "memory": lambda: self._one(("100Mi", "1Gi", "3G", "1500000000")),
            "ephemeral-storage": lambda: self._one(("1Gi", "20Gi")),
        }
        requests = {key: amount() for key, amount in amounts.items() if self._maybe(0.4)}
        limits: JSON = {}
        if self._maybe(0.15):
            limits["example.com/widget"] = self._one(("1", "2"))
        if self._maybe(0.05) and {"cpu", "memory"} & requests.keys():
            limits["hugepages-2Mi"] = "32Mi"
        container: JSON = {
            "name": name,
            "image": "registry.invalid/none",
            "resources": {"requests": requests, "limits": limits},
        }
        if self._maybe(0.15):
            number = self._one(PORTS[name])
            port: JSON = {"containerPort": number, "hostPort": number}
            if self._maybe(0.4):
                port["hostIP"] = self._one(("10.1.1.1", "10.1.1.2"))
            if self._maybe(0.3):
                port["protocol"] = "UDP"
            container["ports"] = [port]
        return container

    def _toleration(self) -> JSON:
        if self._maybe(0.1):
            return {"operator": "Exists"}
        key, value, effect = self._one(TAINTS)
        found: JSON = {"key": key, "operator": "Exists"} if self._maybe(0.4) else {"key": key, "value": value}
        if self._maybe(0.5):
            found["effect"] = effect
        if self._maybe(0.1):
            return {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
        return found

    def _node_term(self) -> JSON:
        term: JSON = {"matchExpressions": [self._expression() for _ in range(self._random.randint(1, 2))]}
        if self._maybe(0.25):
            operator = self._one(("In", "In", "NotIn"))
            fields: JSON = {"key": "metadata.name", "operator": operator, "values": [self._one(self.node_names)]}
            term["matchFields"] = [fields]
            if self._maybe(0.2):
                term["matchFields"].append({**fields, "values": [self._one(self.node_names)]})
            if self._maybe(0.5):
                del term["matchExpressions"]
        return term

    def _expression(self) -> JSON:
        operator = self._one(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
        if operator in ("Gt", "Lt"):
            return {"key": self._one((SIZE, RACK)), "operator": operator, "values": [self._one(("0", "4", "nine"))]}
        found: JSON = {"key": self._one((ZONE, RACK, SIZE)), "operator": operator}
        return {**found, "values": self._some(("a", "b", "1", "5"))} if operator in ("In", "NotIn") else found

    def _selector(self) -> JSON:
        if self._maybe(0.1):
            return {}
        if self._maybe(0.5):
            return {"matchLabels": {"app": self._one(APPS)}}
        operator = self._one(("In", "NotIn", "Exists", "DoesNotExist"))
        found: JSON = {"key": "app", "operator": operator}
        if operator in ("In", "NotIn"):
            found["values"] = self._some(APPS)
        return {"matchExpressions": [found]}

    def _pod_term(self) -> JSON:
        term: JSON = {"labelSelector": self._selector(), "topologyKey": self._one(KEYS)}
        if self._maybe(0.3):
            term["namespaces"] = self._some(self._namespaces)
        if self._maybe(0.3):
            term["namespaceSelector"] = self._one(({}, {"matchLabels": {"stage": self._one(("test", "live"))}}))
        if self._maybe(0.2):
            term[self._one(("matchLabelKeys", "mismatchLabelKeys"))] = ["track"]
        return term

    def _constraint(self, key: str) -> JSON:
        found: JSON = {
            "maxSkew": self._random.randint(1, 3),
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": self._selector(),
        }
        if self._maybe(0.3):
            found["minDomains"] = self._random.randint(1, 4)
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if self._maybe(0.4):
                found[policy] = self._one(("Honor", "Ignore"))
        if self._maybe(0.2):
            found["matchLabelKeys"] = ["track"]
        return found
