"""Reading device-config.yaml: HAMi's own file, or the ConfigMap that carries it. Then come checks between values:
section 2 of the vendors' pages in docs/spec, docs/spec/quota.md#2.

Everything that is wrong in a file is collected and reported with its line; unknown keys are warnings, never fatal and
never silent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ValidationError

from hami_webhook.config.devices import Chip, DeviceConfig, DeviceSection
from hami_webhook.config.errors import ConfigError, Remark, sentence_of
from hami_webhook.config.fields import key_of
from hami_webhook.config.yaml_source import YamlSource, model_in, parse_yaml
from hami_webhook.kube.message_text import did_you_mean, found, path_text, quoted
from hami_webhook.kube.yaml_reader import Path as ValuePath

FILE_NAME = "device-config.yaml"

_NOT_SERVED = {"remotegpu": "ignored: GPUs of other nodes aren't supported, and pods that request them wait"}
"""Sections of HAMi's that mean nothing here, with what that comes to."""
_NO_DEFAULT = "default_factory_not_called"  # only ever next to the fault that is its cause


@dataclass(frozen=True, slots=True)
class LoadedDeviceConfig:
    """A device configuration and what was noticed while reading it, one sentence a warning."""

    config: DeviceConfig
    warnings: tuple[str, ...]


@lru_cache(maxsize=4)
def load(text: str, source: str, model: type[DeviceConfig]) -> LoadedDeviceConfig:
    """The configuration in `text` with the sections that `model` has; `source` is what messages call it.

    Raises ConfigError with every fault found: first those of single values, and if there are none those between values.
    """
    file = _device_config_in(parse_yaml(text, source))
    if file.value in (None, {}):
        raise ConfigError([f"{source}: is empty: all configurations are empty"])
    if not isinstance(file.value, dict):
        sentence = f"must be a mapping of vendor sections, found {found(file.value)}"
        raise ConfigError([file.remark((), sentence).located(source)])
    known = _KnownKeys(file)
    data = known.data(file.value, model, (), ())
    warnings, faults = list(known.unknown), list[Remark]()
    try:
        config = model.model_validate(data)
        warnings += known.remarks(warnings_of(config, known.path_in_file))
        faults += known.remarks(conflicts(config, known.path_in_file))
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_context=False)
        faults += known.remarks((error["loc"], sentence_of(error)) for error in errors if error["type"] != _NO_DEFAULT)
    noticed = tuple(remark.located(source) for remark in sorted(warnings))
    if faults:
        raise ConfigError([remark.located(source) for remark in sorted(faults)], noticed)
    return LoadedDeviceConfig(config, noticed)


def builtin_text() -> str:
    """The file that HAMi's chart renders with its default values, every vendor enabled."""
    return Path(__file__).with_name(FILE_NAME).read_text(encoding="utf-8")


def _device_config_in(file: YamlSource) -> YamlSource:
    """The file that a ConfigMap carries under the file's name; any other document is returned unchanged."""
    if not isinstance(file.value, dict) or "kind" not in file.value:
        return file
    if file.value["kind"] != "ConfigMap":
        kind = found(file.value["kind"])
        sentence = f"must be a {FILE_NAME} or a ConfigMap with one, found kind {kind}"
        raise ConfigError([f"{file.name}:{file.line_at(('kind',))}: {sentence}"])
    data = file.value.get("data")
    if not isinstance(data, dict) or not isinstance(data.get(FILE_NAME), str):
        line = file.line_at(("data",) if "data" in file.value else ("kind",))
        raise ConfigError([f'{file.name}:{line}: the ConfigMap has no text under data["{FILE_NAME}"]'])
    return file.inner_file(("data", FILE_NAME))


@dataclass(slots=True)
class _KnownKeys:
    """The keys of a file that the models know, where the file has each of them, and its unknown keys.

    The models have one layout and the file may have an older one, so that a path in the models (`path`) isn't always
    the path in the file (`written`).
    """

    file: YamlSource
    unknown: list[Remark] = field(default_factory=list)
    _written: dict[ValuePath, ValuePath] = field(default_factory=dict)

    def data(self, value: object, model: type[BaseModel] | None, path: ValuePath, written: ValuePath) -> object:
        """A value without the keys that its model doesn't know and without nulls, which mean the same as no key."""
        self._written[path] = written
        if model is not None and isinstance(value, dict):
            return self._entries(value, model, path, written)
        if model is not None and isinstance(value, list):
            if issubclass(model, DeviceSection) and model.LIST_KEY:
                path = (*path, model.LIST_KEY)
                model = _models_of(model)[model.LIST_KEY]
            return [self.data(item, model, (*path, index), (*written, index)) for index, item in enumerate(value)]
        return value

    def _entries(
        self, entries: Mapping[str, object], model: type[BaseModel], path: ValuePath, written: ValuePath
    ) -> dict[str, object]:
        models = _models_of(model)
        old_spellings = model.OLD_SPELLINGS if issubclass(model, DeviceSection) else {}
        data: dict[str, object] = {}
        for key, value in entries.items():
            if key in old_spellings:
                self._written.setdefault((*path, old_spellings[key]), (*written, key))
            elif key not in models:
                hint = did_you_mean(key, [*models, *old_spellings])
                sentence = (None if path else _NOT_SERVED.get(key)) or f"unknown key, ignored{hint}"
                self.unknown.append(self.file.remark((*written, key), sentence))
                continue
            if value is not None:
                data[key] = self.data(value, models.get(key), (*path, key), (*written, key))
            elif not path:
                self.unknown.append(self.file.remark((key,), "the section is empty, so its vendor is disabled"))
        return data

    def remarks(self, sentences: Iterable[tuple[ValuePath, str]]) -> Iterator[Remark]:
        """Remarks for sentences about paths in the models."""
        return (self.file.remark(self._in_file(path), sentence) for path, sentence in sentences)

    def path_in_file(self, path: ValuePath) -> str:
        """A path in the models as the file has it, as text."""
        return path_text(self._in_file(path))

    def _in_file(self, path: ValuePath) -> ValuePath:
        known = next(path[:length] for length in range(len(path), -1, -1) if path[:length] in self._written)
        return (*self._written[known], *path[len(known) :])


def _models_of(model: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    """The models of a model's fields, by their key in the file."""
    return {key_of(name): model_in(field.annotation) for name, field in model.model_fields.items()}


Finding = tuple[ValuePath, str]
"""A path and a sentence about it."""
PathText = Callable[[ValuePath], str]
"""Writes a path as the file has it."""


def conflicts(config: DeviceConfig, in_file: PathText) -> Iterator[Finding]:
    """Faults that no single value has, each with its path and a sentence, in which `in_file` writes other paths."""
    if not any(part.resource_names() for part in config.parts().values()):
        yield (), "all configurations are empty: no section names a resource"
    yield from _names_used_twice_in_a_part(config)
    yield from _common_words(config, in_file)
    yield from _names_of_sections_apart(config, in_file)
    yield from _vendors_of_drivers(config)
    for path, part in config.parts().items():
        for key, sentence in part.faults():
            yield (*path, key), sentence


def warnings_of(config: DeviceConfig, in_file: PathText) -> Iterator[Finding]:
    """Values that are probably mistakes or have no effect, each with its path and a sentence."""
    users: dict[str, ValuePath] = {}
    for path, part in config.parts().items():
        names = part.resource_names()
        if not names and not part.MAY_NAME_NOTHING:
            yield path, "names no resource, so it has no effect"
        for count, others in part.COUNT_KEYS.items():
            if count not in names and any(other in names for other in others):
                yield (*path, count), "is empty, so no pod can request these devices by count"
        for key, name in names.items():
            first = users.setdefault(name, path)
            if first != path:
                yield (
                    (*path, key),
                    f"{name} is also a resource of {in_file(first)}: a pod's request for it is charged to both",
                )
        for key, sentence in part.remarks():
            yield (*path, key), sentence
    for name in type(config).model_fields:
        section = config.section(name)
        for key, sentence in section.remarks_on_parts() if isinstance(section, DeviceSection) else ():
            yield (name, key), sentence


def _names_used_twice_in_a_part(config: DeviceConfig) -> Iterator[Finding]:
    for path, part in config.parts().items():
        first_key: dict[str, str] = {}
        for key, name in part.resource_names().items():
            if name in first_key:
                yield (*path, key), f"{name} is already the {first_key[name]}; give each its own name"
            first_key.setdefault(name, key)


def _common_words(config: DeviceConfig, in_file: PathText) -> Iterator[Finding]:
    owners: dict[str, ValuePath] = {}
    for path, part in config.parts().items():
        if not isinstance(part, Chip):
            continue
        word = part.common_word
        if word in config.reserved_words:
            yield (
                (*path, "commonWord"),
                f"{quoted(word)} is the name of another vendor's annotations; choose another word",
            )
        if word in owners:
            yield (
                (*path, "commonWord"),
                f"{quoted(word)} is already the commonWord of {in_file(owners[word])}; it must be unique",
            )
        owners.setdefault(word, path)


def _names_of_sections_apart(config: DeviceConfig, in_file: PathText) -> Iterator[Finding]:
    parts = config.parts()
    for path, part in parts.items():
        apart = ((to, other) for to, other in parts.items() if to[0] == part.APART_FROM)
        others = {name: to for to, other in apart for name in other.resource_names().values()}
        for key, name in part.resource_names().items():
            if name in others:
                yield (
                    (*path, key),
                    f"{name} is already used by {in_file(others[name])}; a name can't be used by both sections",
                )


def _vendors_of_drivers(config: DeviceConfig) -> Iterator[Finding]:
    """Of the section `dra`, vendors that there aren't."""
    chips = (part.common_word for part in config.parts().values() if isinstance(part, Chip))
    known = [*chips, *(word for words in config.backends.values() for word in words)]
    section = config.section("dra")
    for index, row in enumerate(section.devices if section is not None else ()):
        if row.vendor not in known:
            sentence = f"must be the key of a vendor, found {quoted(row.vendor)}{did_you_mean(row.vendor, known)}"
            yield ("dra", "devices", index, "vendor"), sentence
