"""`hami-test.yaml`: what the test of a folder runs on, and what it expects. Source: docs/spec/cli.md#test."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from msgspec import Struct
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from hami_webhook.config import ConfigError, parse_yaml, read_text
from hami_webhook.config.fields import NAME, Flag, SchedulerName, Text, Word, checked, is_name, one_of, refuse
from hami_webhook.config.yaml_source import YamlSource, validated
from hami_webhook.kube.message_text import found
from hami_webhook.kube.objects import parse_time
from hami_webhook.simulate.expectations import Difference, as_written, differences
from hami_webhook.simulate.results import Outcome
from hami_webhook.terminal import formatted

FILE_NAME = "hami-test.yaml"
_EXPECTED = "expected"


def _time(value: object) -> float:
    try:
        return parse_time(value if isinstance(value, str) else "")
    except ValueError:
        refuse(f"must be an RFC 3339 time such as 2026-01-31T12:00:00Z, found {found(value)}")


def _namespace(value: object) -> str:
    if not isinstance(value, str) or not is_name(value):
        refuse(f"must be the name of a namespace, found {found(value)}")
    return value


def _user(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        refuse(f"must be the name of a user, as the API server has it, found {found(value)}")
    return value


Namespace = Annotated[str, checked(_namespace, type="string", pattern=f"^{NAME}$", maxLength=63)]


class _WrittenSection(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _entry(name: str, keys: Sequence[str]) -> type[_WrittenSection]:
    """An expectation of something with a name; values of any kind may be expected under the other keys."""
    values: dict[str, Any] = dict.fromkeys(keys, (Any, None))
    return create_model(name, __base__=_WrittenSection, **{**values, "name": (Word, ...)})


WrittenPod = _entry("WrittenPod", [*Outcome("", "", True, waits="it waits").as_json()])
WrittenQuota = _entry("WrittenQuota", ["namespace", "name", "hard", "used"])


class WrittenExpectations(_WrittenSection):
    """What is expected, in the form of the JSON result of `simulate`."""

    pods: tuple[WrittenPod, ...] = ()  # type: ignore[valid-type]  # made from the result's keys
    quotas: tuple[WrittenQuota, ...] = ()  # type: ignore[valid-type]  # as above


class WrittenTest(_WrittenSection):
    """The whole file. Files are named from its folder; None stands for the files that have their usual name."""

    description: Text = ""
    cluster: tuple[Word, ...] | None = None
    pods: tuple[Word, ...] | None = None
    config: Word | None = None
    policy: Word | None = None
    workloads: Word | None = None
    namespace: Namespace = "default"
    as_: Annotated[str, checked(_user, type="string", minLength=1)] = Field("", alias="as")
    as_groups: tuple[Word, ...] = Field((), alias="asGroups")
    scheduler_name: SchedulerName = Field(default="hami-scheduler", alias="schedulerName")
    node_scheduler_policy: Annotated[str, one_of("binpack", "spread")] = Field("binpack", alias="nodeSchedulerPolicy")
    gpu_scheduler_policy: Word = Field("spread", alias="gpuSchedulerPolicy")
    preemption: Flag = True
    now: Annotated[float, checked(_time, type="string", format="date-time")] | None = None
    exact: Flag = False
    expected: Annotated[
        WrittenExpectations,
        BeforeValidator(
            lambda value: {} if value is None else value, json_schema_input_type=WrittenExpectations | None
        ),
    ] = WrittenExpectations()


class FolderTest(Struct, frozen=True):
    """The test of a folder. `name` is the folder's, from where the tests are."""

    name: str
    path: Path
    text: str
    source: YamlSource
    written: WrittenTest

    @classmethod
    def read(cls, path: Path, name: str) -> FolderTest:
        """The test in a file. Raises ConfigError with every fault."""
        return cls.parse(path, name, read_text(path))

    @classmethod
    def parse(cls, path: Path, name: str, text: str) -> FolderTest:
        """The test in a text. Raises ConfigError with every fault."""
        source = parse_yaml(text, str(path))
        return cls(name, path, text, source, validated(source, WrittenTest))

    @property
    def expected(self) -> Mapping[str, Sequence[Any]]:
        """What is written under `expected`, as it is written."""
        return (self.source.value or {}).get(_EXPECTED) or {}

    @property
    def expects_nothing(self) -> bool:
        """Whether the test can't fail, whatever comes out."""
        return not any(self.expected.values())

    @property
    def pod_files(self) -> list[str]:
        """Raises ConfigError if none are named and pods.yaml isn't there."""
        found = self._files(self.written.pods, "pods.yaml")
        if self.written.pods is None and not found:
            raise ConfigError([f"{self.path}: has no pods: write them into pods.yaml, or list their files under pods"])
        return found

    @property
    def cluster_files(self) -> list[str]:
        """Empty if the files of the pods hold the cluster, too."""
        return self._files(self.written.cluster, "cluster.yaml")

    @property
    def config_file(self) -> str | None:
        """None for the built-in configuration."""
        return self._file(self.written.config, "device-config.yaml")

    @property
    def workload_file(self) -> str | None:
        """None for the kinds that are known."""
        return self._file(self.written.workloads, "workloads.yaml")

    @property
    def policy_file(self) -> str | None:
        return self._file(self.written.policy, "policy.yaml")

    def _file(self, written: str | None, usual: str) -> str | None:
        return next(iter(self._files(None if written is None else [written], usual)), None)

    def _files(self, written: Sequence[str] | None, usual: str) -> list[str]:
        """The files that are written, else the one with the usual name if it is there."""
        folder = self.path.parent
        if written is None:
            written = [usual] if (folder / usual).exists() else []
        return [os.path.normpath(folder / name) for name in written]

    def differences(self, result: Mapping[str, Any]) -> list[Difference]:
        """Where a run's JSON result isn't as expected."""
        return list(differences(dict(self.expected), result, exact=self.written.exact))

    def line_of(self, difference: Difference) -> int:
        """The line in the file of what is expected."""
        return self.source.line_at((_EXPECTED, *difference.path))

    def write(self) -> None:
        """Put the text into the file. Raises ConfigError."""
        try:
            self.path.write_text(self.text, encoding="utf-8", newline="")
        except OSError as error:
            raise ConfigError([f"{self.path}: can't be written: {error.strerror}"]) from None

    def updated(self, result: Mapping[str, Any]) -> FolderTest:
        """The test that expects what came out: of that what is written, or all if `exact` is set or nothing is written.

        Comments stay, except in the entries that change. An entry for what didn't come out stays as it is. Raises
        ConfigError where the text can't be changed in places.
        """
        try:
            return self.parse(self.path, self.name, self._updated_text(result))
        except (yaml.MarkedYAMLError, ConfigError) as error:
            why = error.context if isinstance(error, yaml.MarkedYAMLError) else error
            raise ConfigError([f"{self.path}: --update can't change it, so change it by hand: {why}"]) from error

    def _updated_text(self, result: Mapping[str, Any]) -> str:
        exact = self.written.exact or self.expects_nothing
        expected = as_written(dict(self.expected), result, exact=exact)
        if exact:
            return _with_section(self.text, expected)
        changed = {
            (_EXPECTED, section, index): new
            for section, entries in self.expected.items()
            if entries
            for index, (old, new) in enumerate(zip(entries, expected[section], strict=True))
            if json.dumps(old) != json.dumps(new)
        }
        return _with_entries(self.text, changed)


def _with_section(text: str, expected: object) -> str:
    """The text of a file with other expectations."""
    section = formatted({_EXPECTED: expected}, "yaml") + "\n"
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return text + section
    for key, value in root.value:
        if key.value == _EXPECTED:
            return text[: key.start_mark.index] + section.rstrip() + text[_end(text, value) :]
    return f"{text.rstrip()}\n{section}"


def _with_entries(text: str, changed: Mapping[tuple[str, str, int], object]) -> str:
    """The text of a file with other entries at some paths."""
    places = []
    for (*keys, index), entry in changed.items():
        node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
        for key in keys:
            node = next(value for name, value in node.value if name.value == key)
        places.append((node.value[index], entry))
    for node, entry in sorted(places, key=lambda place: place[0].start_mark.index, reverse=True):
        indent = "\n" + " " * node.start_mark.column
        new = json.dumps(entry, ensure_ascii=False) if node.flow_style else formatted(entry, "yaml")
        text = text[: node.start_mark.index] + new.replace("\n", indent) + text[_end(text, node) :]
    return text


def _end(text: str, node: yaml.Node) -> int:
    """Where a node ends, without the comments and empty lines after it that the parser counts in."""
    lines = text[node.start_mark.index : node.end_mark.index].split("\n")
    while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
        lines.pop()
    return node.start_mark.index + len("\n".join(lines))
