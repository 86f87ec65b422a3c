"""The policy file: YAML, or a ConfigMap with it, read into rules. Source: docs/spec/policy.md#1.

A file with any fault is refused as a whole, and every fault is reported with its line and path. Nothing is guessed: an
empty `namespaces` list, or a blank item in a list of devices, is a fault, because a rule would otherwise match more
pods, or restrict them less, than what is written. A vendor that isn't enabled is unknown here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from msgspec import Struct
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from hami_webhook.config.errors import ConfigError
from hami_webhook.config.fields import NAME, ItemsValidator, Text, checked, is_name, refuse
from hami_webhook.config.yaml_source import YamlSource, parse_yaml, refusal, validated
from hami_webhook.devices.keys import PolicyTarget
from hami_webhook.devices.pod_preferences import GPU_POLICY, KNOWN_CARD_POLICIES, NODE_POLICY, WEIGHTS, Weights
from hami_webhook.devices.reserved_annotations import is_scheduler_owned
from hami_webhook.kube.message_text import cut, did_you_mean, found, quoted
from hami_webhook.kube.names import LONGEST_SUBDOMAIN, SUBDOMAIN, is_subdomain
from hami_webhook.kube.yaml_reader import Path
from hami_webhook.policy.rules import GENERAL_CHOICES, NAMESPACE, DeviceBounds, PolicyRule, PolicyRules
from hami_webhook.policy.selectors import WrittenSelector

_MOST_SHOWN = 10


class _VendorKeys(Struct, frozen=True):
    """The backends, choices and lists of the enabled vendors, against which a file is checked."""

    vendors: Mapping[str, PolicyTarget]
    choices: tuple[str, ...]
    lists: Mapping[str, str]
    """Where the content of a vendor's list key belongs in a rule."""

    @classmethod
    def of(cls, vendors: Mapping[str, PolicyTarget]) -> _VendorKeys:
        lists: dict[str, str] = {}
        for backend, vendor in vendors.items():
            for field, keys in _list_keys(vendor):
                for key in keys:
                    lists.setdefault(key, f"devices.{backend}.{field}")
        vendor_choices = (key for vendor in vendors.values() for key in vendor.keys.choices)
        return cls(vendors, tuple(dict.fromkeys((*GENERAL_CHOICES, *vendor_choices))), lists)


def _list_keys(vendor: PolicyTarget) -> tuple[tuple[str, tuple[str, ...]], ...]:
    keys = vendor.keys
    return (
        ("allowUUIDs", keys.use_uuid),
        ("denyUUIDs", keys.nouse_uuid),
        ("allowTypes", keys.use_type),
        ("denyTypes", keys.nouse_type),
    )


def _known(info: ValidationInfo) -> _VendorKeys:
    assert isinstance(info.context, _VendorKeys)
    return info.context


def _rule_name(value: object) -> str:
    if not isinstance(value, str) or not is_name(value):
        refuse(f"must be a name of 1 to 63 letters, digits, -, _ or ., found {found(value)}")
    if value == NAMESPACE:
        refuse(f"must not be {quoted(NAMESPACE)}, which stands for the Namespace's own annotations")
    return value


_GLOB_TOKEN = re.compile(r"[-a-z0-9*?]|\[!?(?P<letters>[-a-z0-9]+)\]")
_GLOB_RANGE = re.compile(r"([a-z0-9])-([a-z0-9])")


def _glob(value: object) -> str:
    if not isinstance(value, str) or not value:
        refuse(f"must be a namespace's name or a pattern such as research-*, found {found(value)}")
    position = 0
    while position < len(value):
        token = _GLOB_TOKEN.match(value, position)
        if token is None:
            what = "a [ that doesn't start a set" if value[position] == "[" else quoted(value[position])
            refuse(
                f"must be a namespace's name or a pattern of a-z, 0-9, -, *, ? and sets such as [a-f] or [!a-f], found "
                f"{found(value)} with {what} at position {position + 1}"
            )
        for low, high in _GLOB_RANGE.findall(token["letters"] or ""):
            if low > high:
                refuse(f"must be a pattern whose sets run upwards, found {found(value)} with {low}-{high}")
        position = token.end()
    return value


def _globs(value: object) -> object:
    if value is None or value == []:
        refuse(f"must name at least one namespace (leave the key out for all of them), found {_listed(value)}")
    return value


def _listed(value: object) -> str:
    return "an empty list" if value == [] else found(value)


def _device(value: object) -> str:
    if not isinstance(value, str):
        refuse(f"must be text, found {found(value)}; put it in quotes")
    if not value.strip():
        refuse(f"must not be blank, found {found(value)}")
    if "," in value:
        refuse(f"must be one item without commas (write one list item for each), found {found(value)}")
    return value.strip()


def _choice_key(value: str, info: ValidationInfo) -> str:
    known = _known(info)
    if value not in known.choices:
        refuse(_no_choice(value, known))
    return value


def _no_choice(value: str, known: _VendorKeys) -> str:
    if is_scheduler_owned(value) or any(value in vendor.keys.owned for vendor in known.vendors.values()):
        return "is written by the scheduler alone: no policy can set it"
    if value in known.lists:
        return f"is a list, not a choice: write its items under {known.lists[value]}"
    return f"is no choice of an enabled vendor{did_you_mean(value, known.choices)}; choices are {_few(known.choices)}"


def _backend_key(value: str, info: ValidationInfo) -> str:
    backends = _known(info).vendors
    if value not in backends:
        refuse(f"is no enabled backend key{did_you_mean(value, backends)}; known are {_few(backends)}")
    return value


def _scheduler_name(value: object) -> str:
    if not isinstance(value, str) or not is_subdomain(value):
        refuse(
            "must be a scheduler's name, a DNS-1123 subdomain (lower case, digits, - and ., at most 253), "
            f"found {found(value)}"
        )
    return value


def _few(items: Iterable[str]) -> str:
    names = list(items)
    text = ", ".join(names[:_MOST_SHOWN]) or "none"
    return text if len(names) <= _MOST_SHOWN else f"{text} … and {len(names) - _MOST_SHOWN} more"


_Device = Annotated[str, checked(_device, type="string", pattern=r"^[^,]*[^,\s][^,]*$")]
_Devices = tuple[_Device, ...]
_Choices = dict[Annotated[str, BeforeValidator(_choice_key)], Text]
_Glob = Annotated[str, checked(_glob, type="string", pattern=f"^({_GLOB_TOKEN.pattern.replace('?P<letters>', '')})+$")]


_VARIABLE = r"[-._a-zA-Z][-._a-zA-Z0-9]*"


def _variable(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_VARIABLE or not re.fullmatch(_VARIABLE, value):
        refuse(f"must be the name of an environment variable such as CUDA_DISABLE_CONTROL, found {found(value)}")
    return value


_LONGEST_VARIABLE = 253
_Variable = Annotated[str, checked(_variable, type="string", pattern=f"^{_VARIABLE}$", maxLength=_LONGEST_VARIABLE)]


class _FileSection(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")


class WrittenMatch(_FileSection):
    """Which pods a rule is about."""

    namespaces: Annotated[tuple[_Glob, ...], ItemsValidator(_globs)] = ()
    namespace_selector: WrittenSelector = Field(default=WrittenSelector(), alias="namespaceSelector")
    pod_selector: WrittenSelector = Field(default=WrittenSelector(), alias="podSelector")


class WrittenBounds(_FileSection):
    """One vendor's lists."""

    allow_uuids: _Devices = Field(default=(), alias="allowUUIDs")
    deny_uuids: _Devices = Field(default=(), alias="denyUUIDs")
    allow_types: _Devices = Field(default=(), alias="allowTypes")
    deny_types: _Devices = Field(default=(), alias="denyTypes")

    def bounds(self) -> DeviceBounds:
        return DeviceBounds(self.allow_uuids, self.deny_uuids, self.allow_types, self.deny_types)


class WrittenRule(_FileSection):
    """One rule."""

    name: Annotated[
        str, checked(_rule_name, type="string", pattern=f"^{NAME}$", maxLength=63, **{"not": {"const": NAMESPACE}})
    ]
    match: WrittenMatch = WrittenMatch()
    default: _Choices = {}
    enforce: _Choices = {}
    devices: dict[Annotated[str, BeforeValidator(_backend_key)], WrittenBounds] = {}
    scheduler_name: Annotated[
        str | None, checked(_scheduler_name, type="string", pattern=f"^{SUBDOMAIN}$", maxLength=LONGEST_SUBDOMAIN)
    ] = Field(default=None, alias="schedulerName")
    deny_env: tuple[_Variable, ...] = Field(default=(), alias="denyEnv")

    def rule(self) -> PolicyRule:
        return PolicyRule(
            name=self.name,
            namespaces=self.match.namespaces,
            namespace_selector=self.match.namespace_selector.selector(),
            pod_selector=self.match.pod_selector.selector(),
            default=self.default,
            enforce=self.enforce,
            devices={backend: written.bounds() for backend, written in self.devices.items()},
            scheduler_name=self.scheduler_name,
            deny_env=frozenset(self.deny_env),
        )


class PolicyFile(_FileSection):
    """The whole file."""

    policies: Annotated[
        tuple[WrittenRule, ...],
        BeforeValidator(
            lambda value: () if value is None else value, json_schema_input_type=tuple[WrittenRule, ...] | None
        ),
    ] = ()

    @classmethod
    def parse(cls, text: str, source: str, vendors: Mapping[str, PolicyTarget]) -> PolicyRules:
        """The rules in `text`, checked against the enabled `vendors`; none if there is nothing in it.

        `source` is what messages call the file. Raises ConfigError with every fault: first those of single values, and
        if there are none those between values.
        """
        file = _policy_file_in(parse_yaml(text, source))
        if file.value is None:
            return PolicyRules.EMPTY
        known = _VendorKeys.of(vendors)
        written = validated(file, cls, context=known, describe=_listed)
        if findings := list(written._conflicts(known)):
            raise refusal(file, findings)
        return PolicyRules(tuple(rule.rule() for rule in written.policies))

    def _conflicts(self, known: _VendorKeys) -> Iterator[tuple[Path, str]]:
        """Faults that no single value shows, each with its path and a sentence."""
        first: dict[str, int] = {}
        for index, rule in enumerate(self.policies):
            path: Path = ("policies", index)
            if first.setdefault(rule.name, index) != index:
                yield (*path, "name"), f"{quoted(rule.name)} is already the name of policies[{first[rule.name]}]"
            for part, choices in (("default", rule.default), ("enforce", rule.enforce)):
                try:
                    Weights.parse(choices.get(WEIGHTS, "slot=1,core=1,memory=1"))
                except ValueError as why:
                    example = "such as slot=1,core=1,memory=2"
                    yield (*path, part, WEIGHTS), f"must be weights {example}, found {found(choices[WEIGHTS])}: {why}"
                for key, text in choices.items():
                    for word in _unknown_words(key, text):
                        known_words = f"{did_you_mean(word, _WORDS[key])}; known are {_few(_WORDS[key])}"
                        yield (*path, part, key), f"{quoted(word)} is no scheduling policy{known_words}"
            for backend, bounds in rule.devices.items():
                lists = bounds.model_dump(by_alias=True)
                for field, keys in _list_keys(known.vendors[backend]):
                    if lists[field] and not keys:
                        yield (*path, "devices", backend, field), f"can't be held to: {backend} has no such list"


_WORDS = {GPU_POLICY: KNOWN_CARD_POLICIES, NODE_POLICY: ("binpack", "spread")}
"""The values that two choices may have; any other acts as a default, which nobody means who writes one."""


def _unknown_words(key: str, text: str) -> list[str]:
    """The items of a choice's value that it doesn't know; a node's policy is one, a card's may be several."""
    words = text.split(",") if key == GPU_POLICY else [text]
    return [word.strip() for word in words if key in _WORDS and word.strip() not in _WORDS[key]]


def _policy_file_in(file: YamlSource) -> YamlSource:
    """The file that a ConfigMap carries under its one data key; any other document is returned unchanged."""
    if not isinstance(file.value, dict) or "kind" not in file.value:
        return file

    kind = file.value["kind"]
    if kind != "ConfigMap":
        raise refusal(file, [(("kind",), f"must be ConfigMap, or not be there, found {found(kind)}")])
    data = file.value.get("data")
    entries = data if isinstance(data, dict) else {}
    if len(entries) != 1:
        names = f"{len(entries)}: {_few(cut(key) for key in entries)}" if entries else found(data or None)
        sentence = f"data: must hold exactly one key, the policy file, found {names}"
        raise ConfigError([f"{file.name}:{file.line_at(('data',) if 'data' in file.value else ('kind',))}: {sentence}"])
    ((key, text),) = entries.items()
    if not isinstance(text, str):
        raise refusal(file, [(("data", key), f"must be text, found {found(text)}; begin it with |")])
    return file.inner_file(("data", key))
