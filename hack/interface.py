"""What users of the program can rely on, read off the code (docs/stability.md).

An item is a line of docs/interface.txt, which `make render` writes; `hack.interface_levels` has the levels.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any

import yaml
from pydantic import BaseModel

from hack.chart_values import Affinity, Resources, Toleration, Values
from hack.interface_levels import KEYS, NOT_KEYS, Writer
from hami_webhook.cli import parser
from hami_webhook.config import SETTINGS
from hami_webhook.config.devices import Chip
from hami_webhook.config.serve_flags import IgnoredFlag
from hami_webhook.controller.idle_pods import COMPUTED, IDLE, QUOTA_IDLE
from hami_webhook.controller.match_conditions import match_conditions
from hami_webhook.device_config import builtin_device_config, builtin_vendors, device_config_model
from hami_webhook.devices import reasons, registry
from hami_webhook.devices.reserved_annotations import PLACEMENT_KEYS
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.objects import QUOTA_RESERVED
from hami_webhook.kubectl.main import parser as kubectl_parser
from hami_webhook.policy.file import PolicyFile
from hami_webhook.policy.selectors import WrittenSelector
from hami_webhook.queueing.words import QUEUE_REASONS
from hami_webhook.quota.accelerator_report import ABOVE_HARD, EXCEEDED, WITHIN_HARD
from hami_webhook.server.cluster_metrics import OLD_NAMES
from hami_webhook.server.usage_metrics import OLD_LABELS as OLD_USAGE_LABELS
from hami_webhook.server.usage_metrics import OLD_NAMES as OLD_USAGE_NAMES
from hami_webhook.simulate.folder_test import WrittenTest
from hami_webhook.simulate.workload_file import WorkloadFile

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hami_webhook"
DEFINITION = ROOT / "manifests" / "base" / "acceleratorquotas.yaml"


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """A `name` that is unique in its `group`, and in `detail` what of it may not change either."""

    group: str
    name: str
    detail: str = ""


@cache
def items() -> list[Item]:
    """All items, sorted. Raises `ValueError` for a key of annotations that the table of levels doesn't know."""
    found = {
        *_resources(),
        *_keys(),
        *commands(),
        *(Item("environment variable", each.env, f"default={each.default}") for each in SETTINGS),
        *_fields("device-config.yaml", device_config_model()),
        *_fields("policy file", PolicyFile),
        *_fields("hami-test.yaml", WrittenTest),
        *_fields("workloads file", WorkloadFile),
        *_fields("chart value", Values),
        *_metrics(),
        *_definition(),
        *_paths(),
        *(Item("event reason", reason) for reason in typing.get_args(EventReason)),
        *(Item("rejection reason", reason) for reason in reasons.LABELS),
        *(Item("webhook", name) for name in match_conditions(builtin_vendors())),
        Item("condition", EXCEEDED),
        *(Item("condition", f"{EXCEEDED}={reason}") for reason in (ABOVE_HARD, WITHIN_HARD)),
        Item("condition", QUOTA_RESERVED),
        *(Item("condition", f"{QUOTA_RESERVED}={reason}") for reason in QUEUE_REASONS),
        Item("condition", QUOTA_IDLE),
        *(Item("condition", f"{QUOTA_IDLE}={reason}") for reason in (COMPUTED, IDLE)),
    }
    return sorted(found)


def commands() -> Iterator[Item]:
    """Verbs, flags and arguments of both programs."""
    yield from _flags("hami-webhook", parser())
    yield from _flags("kubectl hami", kubectl_parser())


def _vendors() -> list[Vendor]:
    """Those of HAMi's chart, and those that it doesn't enable."""
    return [*builtin_vendors().values(), *registry.declared()]


def _resources() -> Iterator[Item]:
    """Resource names as HAMi's chart has them, with the vendor's section of device-config.yaml."""
    for vendor in _vendors():
        yield from (Item("resource name", name, vendor.section_name) for name in vendor.resource_names if name)
    for scheduler in builtin_vendors().foreign:
        yield from (Item("resource name", name, scheduler.key) for name in scheduler.resource_names)


def _declared() -> Iterator[tuple[str, Writer]]:
    """The keys that classes declare, and who writes them; the common word of a chip is shown as CHIP."""
    chips = [part.common_word for part in builtin_device_config().config.parts().values() if isinstance(part, Chip)]
    for vendor in _vendors():
        registration = (vendor.registration.annotation, vendor.registration.handshake)
        writers: dict[Writer, tuple[str, ...]] = {
            "people": (*vendor.keys.lists, *vendor.keys.choices),
            "hami-webhook": (*vendor.keys.owned, *vendor.reserved.keys),
            "others": (*vendor.reserved.kept, *filter(None, registration)),
        }
        for writer, keys in writers.items():
            yield from ((key.replace(vendor.key, "CHIP") if vendor.key in chips else key, writer) for key in keys)
    for scheduler in builtin_vendors().foreign:
        yield from ((key, "people") for key in (*scheduler.keys.lists, *scheduler.keys.choices))
        yield from ((key, "others") for key in scheduler.owned)
    yield from ((key, "hami-webhook") for key in PLACEMENT_KEYS)


_GROUPS: dict[Writer, str] = {
    "people": "annotation or label of people",
    "hami-webhook": "annotation or label of hami-webhook",
    "others": "annotation or label of device plugins and other schedulers",
}
"""The groups of keys by who writes them."""


def _keys() -> Iterator[Item]:
    """Keys of annotations and labels: those that classes declare, and those that stand in the code."""
    writers = dict(_declared())
    resources = {item.name for item in _resources()}
    unknown = set()
    for key in {*writers, *_literals(PACKAGE.rglob("*.py"), _KEY)} - resources:
        entry = next((each for each in KEYS if fnmatchcase(key, each.pattern)), None)
        if entry is not None:
            yield Item(_GROUPS[entry.writer], key, entry.on)
        elif key in writers:
            yield Item(_GROUPS[writers[key]], key)
        elif not any(fnmatchcase(key, pattern) for pattern in NOT_KEYS):
            unknown.add(key)
    if unknown:
        names = ", ".join(sorted(unknown))
        raise ValueError(f"hack/interface_levels.py doesn't say who writes {names}: add them to KEYS, or to NOT_KEYS")


_DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+"
_KEY = re.compile(rf"{_DOMAIN}/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def _literals(modules: Iterable[Path], pattern: re.Pattern[str]) -> set[str]:
    """The string constants of modules that match; parts of f-strings are none."""
    found = set()
    for text in map(Path.read_text, modules):
        nodes = list(ast.walk(ast.parse(text))) if pattern.search(text) else ()
        parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        found |= {
            node.value
            for node in nodes
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in parts
            and pattern.fullmatch(node.value)
        }
    return found


def _flags(
    verb: str, found: argparse.ArgumentParser, above: Mapping[str, object] = MappingProxyType({})
) -> Iterator[Item]:
    """The verbs below a verb, their flags and arguments, and the values of those that take a few only.

    `above` are the defaults of the flags that may stand before the verb as well.
    """
    settings = {flag: setting for setting in SETTINGS for flag in setting.flags}
    above = {**above, **{each.dest: each.default for each in found._actions if each.default != argparse.SUPPRESS}}
    for action in found._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield Item("verb", f"{verb} {name}")
                yield from _flags(f"{verb} {name}", below, above)
        elif not isinstance(action, argparse._HelpAction | argparse._VersionAction):
            for option in action.option_strings or [str(action.metavar)]:
                setting = settings.get(option) if verb == "hami-webhook serve" else None
                group = "flag" if action.option_strings else "argument"
                group += " without effect" if isinstance(action, IgnoredFlag) else ""
                default = above.get(action.dest, action.default) if setting is None else setting.default
                yield Item(group, f"{verb} {option}", _taken(action, default))
            if action.option_strings:
                yield from (Item(group, f"{verb} {option}={choice}") for choice in action.choices or ())


def _taken(action: argparse.Action, default: object) -> str:
    """What a flag or an argument takes, and its default."""
    if action.nargs == 0:
        return "switch"
    several = "list" if isinstance(action, argparse._AppendAction) or action.nargs in ("+", "*") else "value"
    if action.required or action.nargs == "*":  # as argparse says of the latter up to Python 3.12
        return f"{several} required"
    return f"{several} default={default or ''}" if action.option_strings else f"{several} optional"


def _fields(group: str, model: type[BaseModel], path: str = "") -> Iterator[Item]:
    """The keys of a file that a model reads, with those of what is in them."""
    for name, field in model.model_fields.items():
        yield from _field(group, f"{path}{field.alias or name}", field.annotation)


def _field(group: str, path: str, annotation: Any) -> Iterator[Item]:
    """A key with the kind of its value, its values where it takes a few only, and the keys below it."""
    origin, below = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from _field(group, path, below[0])
    elif origin in (types.UnionType, typing.Union):
        yield from (each for part in below if part is not NoneType for each in _field(group, path, part))
    elif origin is typing.Literal:
        yield Item(group, path, "text")
        yield from (Item(group, f"{path}={choice}") for choice in below)
    elif origin in (tuple, list):
        yield from _field(group, f"{path}[]", below[0])
    elif origin is dict:
        yield from _field(group, f"{path}.KEY", below[1])
    elif annotation in _TYPES:
        yield Item(group, path, _TYPES[annotation])
    else:
        yield from _fields(group, annotation, f"{path}.")


_TYPES: dict[Any, str] = {
    Any: "anything",
    object: "anything",
    str: "text",
    bool: "true or false",
    int: "number",
    float: "number",
    WrittenSelector: "LabelSelector",
    Affinity: "Affinity",
    Resources: "ResourceRequirements",
    Toleration: "Toleration",
}
"""What a key holds, in words; of Kubernetes' own types their name."""


def _definition() -> Iterator[Item]:
    """The versions of AcceleratorQuotas, and the fields of each."""
    definition = yaml.safe_load(DEFINITION.read_text())["spec"]
    for version in definition["versions"]:
        found = [word for word, holds in (("served", version["served"]), ("stored", version["storage"])) if holds]
        yield Item("AcceleratorQuota", version["name"], " ".join(found))
        for part in ("spec", "status"):
            schema = version["schema"]["openAPIV3Schema"]["properties"][part]
            yield from _properties(f"{version['name']} {part}", schema)


def _properties(path: str, schema: dict[str, Any]) -> Iterator[Item]:
    if "items" in schema:
        yield from _properties(f"{path}[]", schema["items"])
    elif isinstance(schema.get("additionalProperties"), dict):
        yield from _properties(f"{path}.KEY", schema["additionalProperties"])
    elif "properties" not in schema:
        yield Item("AcceleratorQuota", path, schema.get("type", "number or text"))
        yield from (Item("AcceleratorQuota", f"{path}={choice}") for choice in schema.get("enum", ()))
    for name, below in schema.get("properties", {}).items():
        yield from _properties(f"{path}.{name}", below)


_SERVED_BY = {
    "server/app.py": "webhook",
    "server/extender_app.py": "extender",
    "server/probes.py": "every process",
    "kubectl/ui/pages.py": "kubectl hami ui",
}
"""The modules with routes, and whose they are."""


def _paths() -> Iterator[Item]:
    for module, role in _SERVED_BY.items():
        paths = _literals([PACKAGE / module], re.compile(r"/[-a-z]*(/{.*)?"))
        yield from (Item("path", f"{role} {path}") for path in paths)


_METRICS = {
    "Family": "gauge",
    "Gauge": "gauge",
    "GaugeMetricFamily": "gauge",
    "Counter": "counter",
    "CounterMetricFamily": "counter",
    "Histogram": "histogram",
    "durations": "histogram",
}
"""What makes a metric of its name, its documentation and its labels, and of which type."""
_PREFIXED = {"_gauge": "gauge", "_counter": "counter", "counter": "counter"}
"""Functions of modules that put the rest of the name in front, and take labels one by one."""
_MAKERS = frozenset(("RequestMetrics", *_METRICS, *_PREFIXED))
_PREFIXES = {"process_metrics": "hami_webhook_", "extender_metrics": "hami_webhook_extender_"}


def _metrics() -> Iterator[Item]:
    """Metrics with the names that `/metrics` has, and without the series that a histogram is made of."""
    labels: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        calls = ast.walk(ast.parse(text)) if any(f"{maker}(" in text for maker in _MAKERS) else ()
        for call in (node for node in calls if isinstance(node, ast.Call)):
            function = getattr(call.func, "id", getattr(call.func, "attr", ""))
            for name, kind, names in _made_by(function, call, path) if function in _MAKERS else ():
                group = "metric" if name.startswith("hami_") else "metric of --legacy-metrics"
                labels[name] = set(names)
                yield Item(group, f"{name}_total" if kind == "counter" else name, f"{kind}, {_labels(names)}")
    for name, old in OLD_USAGE_NAMES.items():
        kept = {OLD_USAGE_LABELS.get(label, label) for label in labels[name]}
        yield Item("metric of --legacy-metrics", old, f"gauge, {_labels(kept)}")
    for name, (old, renamed) in OLD_NAMES.items():
        kept = {"zone", *(now for label, now in renamed.items() if label in labels[name])}
        yield Item("metric of --legacy-metrics", old, f"gauge, {_labels(kept)}")


def _made_by(function: str, call: ast.Call, path: Path) -> Iterator[tuple[str, str, Iterable[str]]]:
    """The name, the type and the labels of the metrics that a call makes."""
    arguments = [_value(node, path) for node in call.args]
    named = {keyword.arg: _value(keyword.value, path) for keyword in call.keywords}
    if function == "RequestMetrics":
        yield f"{arguments[1]}s", "counter", ("path", "code")
        yield f"{arguments[1]}_seconds", "histogram", ("path",)
    elif not arguments or not isinstance(arguments[0], str):
        return  # a function that makes metrics for others
    elif function in _PREFIXED and path.stem in _PREFIXES:
        labels = [label for label in arguments[2:] if isinstance(label, str)]
        yield f"{_PREFIXES[path.stem]}{arguments[0]}", _PREFIXED[function], labels
    elif function in _METRICS:
        kind = "counter" if named.get("is_counter") else _METRICS[function]
        yield arguments[0], kind, arguments[2] if len(arguments) > 2 else named.get("labels") or ()


def _value(node: ast.expr, path: Path) -> Any:
    """What an expression of literals and of the module's constants is; None for any other."""
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    try:
        return eval(compile(ast.Expression(node), str(path), "eval"), {"__builtins__": {}}, vars(module))
    except (NameError, AttributeError, TypeError):
        return None


def _labels(names: Iterable[str]) -> str:
    return f"labels: {' '.join(sorted(names)) or 'none'}"
