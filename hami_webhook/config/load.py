"""Reading device-config.yaml: HAMi's own file, or the ConfigMap that carries it.

Everything a file gets wrong is collected and said with its line; keys nobody knows are warnings, never fatal and never
silent.
"""

import difflib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hami_webhook.config import checks
from hami_webhook.config.devices import AscendChip, DeviceConfig, EnflameSection, VnpusSection
from hami_webhook.config.errors import ConfigError, cut, found
from hami_webhook.config.fields import key_of
from hami_webhook.config.yaml_source import LARGEST_FILE, Located, parse_yaml

FILE_NAME = "device-config.yaml"

_NO_DEFAULT = "default_factory_not_called"  # only ever beside the fault that is its cause


@dataclass(frozen=True, slots=True)
class LoadedDeviceConfig:
    """A device configuration and what was noticed while reading it, one sentence a warning."""

    config: DeviceConfig
    warnings: tuple[str, ...]


def load_device_config(text: str, source: str) -> LoadedDeviceConfig:
    """The configuration in `text`; `source` is what messages call it.

    Raises ConfigError with every fault found: first those of single values, and if there are none those between values.
    """
    document = parse_yaml(text, source)
    document = _inside_config_map(document, source)
    if document is None or document.value in (None, {}):
        raise ConfigError([f"{source}: is empty: all configurations are empty"])
    if not isinstance(document.value, dict):
        raise ConfigError(
            [f"{source}:{document.line}: must be a mapping of vendor sections, found {found(document.plain())}"]
        )
    writing = _Writing()
    data = writing.known(document, DeviceConfig, (), ())
    warnings, faults = list(writing.unknown), []
    try:
        config = DeviceConfig.model_validate(data)
        warnings += [writing.remark(path, sentence) for path, sentence in checks.warnings_of(config, writing.spelling)]
        faults += [writing.remark(path, sentence) for path, sentence in checks.conflicts(config, writing.spelling)]
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_context=False)
        faults += [writing.remark(error["loc"], _sentence(error)) for error in errors if error["type"] != _NO_DEFAULT]
    said = tuple(remark.said(source) for remark in sorted(warnings))
    if faults:
        raise ConfigError([remark.said(source) for remark in sorted(faults)], said)
    return LoadedDeviceConfig(config, said)


def read_device_config(path: str | Path) -> LoadedDeviceConfig:
    """The configuration in a file. Raises ConfigError when it can't be read, isn't UTF-8 or can't be used."""
    return load_device_config(read_text(path), str(path))


def builtin_device_config() -> LoadedDeviceConfig:
    """What HAMi's chart renders with its default values, every vendor enabled."""
    text = resources.files("hami_webhook.config").joinpath(FILE_NAME).read_text(encoding="utf-8")
    return load_device_config(text, f"built-in {FILE_NAME}")


def read_text(path: str | Path) -> str:
    """The UTF-8 text of a configuration file of bounded size. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([f"{path}: can't be read: {reason}"]) from None
    if len(content) > LARGEST_FILE:
        raise ConfigError([f"{path}: is larger than {LARGEST_FILE} bytes, which no ConfigMap can hold"])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}:{line}: is not UTF-8 text (byte 0x{content[error.start]:02x})"]) from None


def _inside_config_map(document: Located | None, source: str) -> Located | None:
    """What a ConfigMap carries under the file's name; any other document is returned as it is."""
    if document is None or not isinstance(document.value, dict) or "kind" not in document.value:
        return document
    kind = document.value["kind"]
    if kind.value != "ConfigMap":
        raise ConfigError(
            [f"{source}:{kind.line}: must be a {FILE_NAME} or a ConfigMap with one, found kind {found(kind.plain())}"]
        )
    data = document.value.get("data", Located({}, kind.line))
    text = data.value.get(FILE_NAME) if isinstance(data.value, dict) else None
    if text is None or not isinstance(text.value, str):
        raise ConfigError([f'{source}:{data.line}: the ConfigMap has no text under data["{FILE_NAME}"]'])
    first_line = text.line
    if text.block:
        return parse_yaml(text.value, source, lambda line: first_line + line)
    return parse_yaml(text.value, source, lambda _: first_line)


class _Remark(NamedTuple):
    """A sentence and where in the file it belongs; remarks sort by line."""

    line: int
    path: str
    sentence: str

    def said(self, source: str) -> str:
        one_line = "".join(
            character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in self.path
        )
        path = f"{cut(one_line)}: " if one_line else ""
        return f"{source}:{self.line}: {path}{self.sentence}"


@dataclass(slots=True)
class _Writing:
    """How the file writes what the models know: the spelling and line of every path, and the keys nobody knows."""

    unknown: list[_Remark] = field(default_factory=list)
    _places: dict[checks.Path, tuple[checks.Path, int]] = field(default_factory=dict)

    def known(self, node: Located, model: type[BaseModel] | None, path: checks.Path, written: checks.Path) -> object:
        """The plain value of a node, without the keys its model doesn't know and without nulls, which say as much as
        no key.
        """
        self._places[path] = (written, node.line)
        if model is None:
            return node.plain()
        if isinstance(node.value, dict):
            return self._known_entries(node.value, model, path, written)
        if isinstance(node.value, list):
            if model is VnpusSection:  # the layout of HAMi 2.7: the list of chips itself
                model, path = AscendChip, (*path, "configs")
            return [self.known(item, model, (*path, index), (*written, index)) for index, item in enumerate(node.value)]
        return node.value

    def _known_entries(
        self, entries: Mapping[str, Located], model: type[BaseModel], path: checks.Path, written: checks.Path
    ) -> dict[str, object]:
        models = {key_of(name): _model_in(field.annotation) for name, field in model.model_fields.items()}
        old_spellings = EnflameSection.OLD_SPELLINGS if model is EnflameSection else {}
        data: dict[str, object] = {}
        for key, entry in entries.items():
            if key in old_spellings:
                self._places.setdefault((*path, old_spellings[key]), ((*written, key), entry.line))
            elif key not in models:
                close = difflib.get_close_matches(key, [*models, *old_spellings], n=1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                self._warn(entry.line, (*written, key), f"unknown key, ignored{hint}")
                continue
            if entry.value is not None:
                data[key] = self.known(entry, models.get(key), (*path, key), (*written, key))
            elif not path:
                self._warn(entry.line, (key,), "the section is empty, so its vendor is disabled")
        return data

    def remark(self, path: checks.Path, sentence: str) -> _Remark:
        """A sentence about a path, with the file's spelling and line; a key that isn't there has its mapping's line."""
        known = next(path[:length] for length in range(len(path), -1, -1) if path[:length] in self._places)
        written, line = self._places[known]
        return _Remark(line, checks.spelt((*written, *path[len(known) :])), sentence)

    def spelling(self, path: checks.Path) -> str:
        """A path as the file writes it."""
        return self.remark(path, "").path

    def _warn(self, line: int, written: checks.Path, sentence: str) -> None:
        self.unknown.append(_Remark(line, checks.spelt(written), sentence))


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model inside `Model`, `Model | None` or `tuple[Model, ...]`, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in typing.get_args(annotation) if (model := _model_in(part))), None)


def _sentence(error: ErrorDetails) -> str:
    match error["type"]:
        case "missing":
            return "is required"
        case "model_type":
            return f"must be a mapping, found {found(error['input'])}"
        case "tuple_type":
            return f"must be a list, found {found(error['input'])}"
        case _:
            return error["msg"]
