"""A configuration file: one YAML document of bounded size, whose values know their lines. A document is validated into
a model.

The ConfigMap that carries a file is read as the file in it; lines stay those of the outer file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, get_args

from msgspec import Struct
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hami_webhook.config.errors import ConfigError, Remark, sentence_of
from hami_webhook.kube import yaml_reader
from hami_webhook.kube.message_text import cut, did_you_mean, path_text, quoted
from hami_webhook.kube.yaml_reader import Document, Limits, YamlError, YamlProblem, read_documents

_Model = TypeVar("_Model", bound=BaseModel)

LARGEST_FILE = 1 << 20
"""Bytes: what a ConfigMap can hold."""
LIMITS = Limits(depth=40, values=50_000, unique_keys=True, single=True)

_SENTENCES: dict[YamlProblem, Callable[[Any], str]] = {
    YamlProblem.SYNTAX: lambda complaint: f"is not valid YAML: {complaint}",
    YamlProblem.TAG: lambda tag: f"is not valid YAML: the tag {cut(tag)} isn't one of Kubernetes' YAML",
    YamlProblem.KEY: lambda _: "a key must be text, not a list or mapping",
    YamlProblem.DUPLICATE_KEY: lambda key: f"the key {quoted(key)} is there twice in one mapping",
    YamlProblem.UNDEFINED_ALIAS: lambda _: "is not valid YAML: found undefined alias",
    YamlProblem.RECURSIVE_ALIAS: lambda _: "contains itself through an alias",
    YamlProblem.MERGE: lambda _: "<< must be followed by a mapping or a list of mappings",
    YamlProblem.DEPTH: lambda depth: f"is nested more than {depth} levels deep",
    YamlProblem.VALUES: lambda values: f"expands to more than {values} values",
}


class YamlSource(Struct, frozen=True):
    """The document of a file. `name` is what messages call the file; the value of an empty file is None.

    `line_in_file` turns a line of the document into a line of the file that it was found in.
    """

    name: str
    document: Document
    line_in_file: Callable[[int], int] = int

    @property
    def value(self) -> Any:
        """The plain value."""
        return self.document.value

    def line_at(self, path: Iterable[str | int]) -> int:
        """The line of a path in the file; where it leads to nothing, that of the innermost value around it."""
        return self.line_in_file(self.document.line_at(tuple(path)))

    def remark(self, path: yaml_reader.Path, sentence: str, *, quote_keys: bool = False) -> Remark:
        """A sentence about the value at a path."""
        return Remark(self.line_at(path), path_text(path, quote_keys=quote_keys), sentence)

    def inner_file(self, path: yaml_reader.Path) -> YamlSource:
        """The file in the text at a path, as a ConfigMap carries it. Raises ConfigError."""
        text = self.document.value
        for step in path:
            text = text[step]
        first_line = self.line_at(path)
        block = self.document.line_at(path) in self.document.block_lines
        return parse_yaml(text, self.name, lambda line: first_line + line if block else first_line)


def parse_yaml(text: str, source: str, line_in_file: Callable[[int], int] = int) -> YamlSource:
    """The one document of `text`. Raises ConfigError for anything else than one bounded YAML document.

    `source` is what messages call the file.
    """
    try:
        if len(text.encode()) > LARGEST_FILE:
            raise ConfigError([f"{source}: {_TOO_LARGE}"])
        documents = list(read_documents(text, LIMITS))
    except (YamlError, UnicodeEncodeError) as error:
        raise ConfigError([_sentence(error, text, source, line_in_file)]) from None
    return YamlSource(source, documents[0] if documents else Document(None, 1), line_in_file)


def validated(
    file: YamlSource,
    model: type[_Model],
    *,
    context: object = None,
    describe: Callable[[object], str] | None = None,
) -> _Model:
    """The file's document as a model. Raises ConfigError with every fault, each with its line, and what would be right.

    An error of a mapping's key is put at its entry. `describe` names a value, `found` unless given.
    """
    try:
        return model.model_validate({} if file.value is None else file.value, context=context)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_context=False)
        found = [(_value_path(error["loc"]), _sentence_at(error, model, describe)) for error in errors]
    raise refusal(file, found)


def refusal(file: YamlSource, findings: Iterable[tuple[yaml_reader.Path, str]]) -> ConfigError:
    """The error for sentences about values of a file, in its order."""
    faults = sorted(file.remark(path, sentence, quote_keys=True) for path, sentence in findings)
    return ConfigError([fault.located(file.name) for fault in faults])


def _value_path(location: yaml_reader.Path) -> yaml_reader.Path:
    return location[:-1] if location and location[-1] == "[key]" else location


def _sentence_at(error: ErrorDetails, model: type[BaseModel], describe: Callable[[object], str] | None) -> str:
    if error["type"] != "extra_forbidden":
        return sentence_of(error, missing="is required, but missing", describe=describe)
    *path, key = error["loc"]
    keys = [field.alias or name for name, field in _model_at(model, path).model_fields.items()]
    return f"is an unknown key{did_you_mean(str(key), keys)}; known are {', '.join(keys)}"


def _model_at(model: type[BaseModel], path: Iterable[str | int]) -> type[BaseModel]:
    """The model of the mapping at a path; indices, and keys that somebody chose, lead to no other one."""
    for step in path:
        fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
        model = model_in(fields.get(str(step))) or model
    return model


def model_in(annotation: object) -> type[BaseModel] | None:
    """The model inside `Model`, `Model | None`, `tuple[Model, ...]` or `dict[str, Model]`, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := model_in(part))), None)


def read_text(path: str | Path) -> str:
    """The UTF-8 text of a configuration file of bounded size. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([f"{path}: can't be read: {reason}"]) from None
    if len(content) > LARGEST_FILE:
        raise ConfigError([f"{path}: {_TOO_LARGE}"])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}:{line}: is not UTF-8 text (byte 0x{content[error.start]:02x})"]) from None


_TOO_LARGE = f"is larger than {LARGEST_FILE} bytes, which no ConfigMap can hold"


def _sentence(error: YamlError | UnicodeEncodeError, text: str, source: str, line_in_file: Callable[[int], int]) -> str:
    if isinstance(error, UnicodeEncodeError) or error.problem is YamlProblem.CHARACTER:
        complaint = error if isinstance(error, UnicodeEncodeError) else error.__cause__
        return f"{source}: is not valid YAML: {cut(' '.join(str(complaint).split()))}"
    hint = " (it looks like a Helm template: render it first)" if "{{" in text else ""
    return f"{source}:{line_in_file(error.line)}: {_SENTENCES[error.problem](error.detail)}{hint}"
