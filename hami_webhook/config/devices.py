"""What the sections of device-config.yaml are made of (docs/spec/core.md#2.2, docs/adding-a-vendor.md#the-module).

A section is a frozen model next to the vendor or the integration that reads it, and says there what its resource names
mean, what must hold between its values and what it warns of. A key that is absent has the value its page of docs/spec
gives for that, most often an empty resource name, which matches nothing. Keys only device plugins read are fields too,
so that HAMi's own file raises no warning.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import model_validator

from hami_webhook.config.fields import CommonWord, Number, ResourceName, Section, Text, key_of, refuse
from hami_webhook.kube.yaml_reader import Path

PERCENT = "percent of a card"
FACTOR_MIB = "{factor} MiB"
"""The unit of a memory resource whose section has a `factor`."""

SECTION_SWITCHES: Mapping[str, str] = {"vnpus": "enable_ascend", "iluvatars": "enable_iluvatar"}
"""The sections that `serve` ignores without a switch, by the name of that setting: vendors' own plugins use the same
resource names."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a request for a resource means, and in which unit, in which `{factor}` is the section's.

    Without `is_charged` no quota key is made of the name.
    """

    meaning: str
    unit: str
    is_charged: bool = True


class DeviceSection(Section):
    """A section of device-config.yaml, or an entry of one; a resource name is a field `resource_…` with a `Meaning`.

    `OLD_SPELLINGS`: keys that older files have, each with what it is called now. `LIST_KEY`: the key whose list older
    files have in place of the section. `COUNT_KEYS`: keys of counts, each with the keys that are useless without it, so
    that it is said if only these are set. `MAY_NAME_NOTHING`: the section has an effect without any resource name.
    `APART_FROM`: a section that may have none of this one's resource names.
    """

    OLD_SPELLINGS: ClassVar[Mapping[str, str]] = {}
    LIST_KEY: ClassVar[str] = ""
    COUNT_KEYS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    MAY_NAME_NOTHING: ClassVar[bool] = False
    APART_FROM: ClassVar[str] = ""

    @property
    def factor(self) -> int:
        """MiB of one unit of the memory resource."""
        return 1

    @classmethod
    def meanings(cls) -> Mapping[str, Meaning]:
        """What each resource name means, by its key in the file."""
        found = {key_of(name): field.metadata for name, field in cls.model_fields.items()}
        return {key: each for key, metadata in found.items() for each in metadata if isinstance(each, Meaning)}

    @classmethod
    def unexplained(cls) -> list[str]:
        """The fields of resource names that say nothing of their meaning."""
        return [
            name
            for name in cls.model_fields
            if name.startswith("resource_") and key_of(name) not in cls.meanings() and not cls.MAY_NAME_NOTHING
        ]

    def parts(self) -> Mapping[Path, "DeviceSection"]:
        """The section itself, or the chips that it lists, by their path below it."""
        return {(): self}

    def faults(self) -> Iterator[tuple[str, str]]:
        """What can't be between the values of a part: keys, each with a sentence."""
        yield from ()

    def remarks(self) -> Iterator[tuple[str, str]]:
        """What is known but without effect in a part: keys, each with a sentence."""
        yield from ()

    def notes(self) -> Iterator[str]:
        """What the settings of a part do to pods, for `config check`: a sentence each."""
        yield from ()

    def remarks_on_parts(self) -> Iterator[tuple[str, str]]:
        """What is known but without effect in a section whose parts are chips: keys, each with a sentence."""
        yield from ()

    def notes_on_parts(self) -> Iterator[str]:
        """The same of a section whose parts are chips, for each of them."""
        yield from ()

    @model_validator(mode="before")
    @classmethod
    def _older_layouts(cls, written: object) -> object:
        """The same names in today's layout. Of two spellings neither wins, so two values are a fault."""
        if cls.LIST_KEY and isinstance(written, (list, tuple)):
            return {cls.LIST_KEY: written}
        if not cls.OLD_SPELLINGS or not isinstance(written, Mapping):
            return written
        names = dict(written)
        for old, new in cls.OLD_SPELLINGS.items():
            if old in names:
                value = names.pop(old)
                if names.setdefault(new, value) != value:
                    refuse(f"{old} is the old spelling of {new}, and they differ; keep only {new}")
        return names


class Factored(DeviceSection):
    """A section whose memory resource has a configurable unit."""

    memory_factor: Number = 0

    @property
    def factor(self) -> int:
        """MiB of one unit of the memory resource; 0 counts as 1."""
        return self.memory_factor or 1


class CountMemoryCore(DeviceSection):
    """A section with the three names most vendors have."""

    resource_count_name: Annotated[ResourceName, Meaning("number of cards", "cards")] = ""
    resource_memory_name: Annotated[ResourceName, Meaning("memory of each card", FACTOR_MIB)] = ""
    resource_core_name: Annotated[ResourceName, Meaning("compute of each card", PERCENT)] = ""


class Chip(DeviceSection):
    """An entry of a list of chips: a backend of its own, whose key is `common_word`."""

    chip_name: Text = ""
    common_word: CommonWord


def runtime_class_note(name: str) -> Iterator[str]:
    """What a section's RuntimeClass does to pods; nothing for none."""
    if name:
        yield f"pods without a runtime class get {name}"


MEMORY_PERCENTAGE = Meaning("memory of each card, as a share of it", PERCENT, is_charged=False)


class DeviceConfig(Section):
    """A whole device-config.yaml, with a field for each section that is known: its model, or a tuple of chips.

    A section that is None, or an empty tuple, is absent and its vendor disabled. `backends` are the backend keys of
    each section; what they and their annotations are called, `reserved_words`, no chip may be called.
    """

    backends: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    reserved_words: ClassVar[frozenset[str]] = frozenset()

    def section(self, name: str) -> Any:
        """The section, None where it is absent or not known; a tuple for a list of chips."""
        return getattr(self, name, None)

    def without(self, sections: Iterable[str]) -> "DeviceConfig":
        """The configuration as if the file lacked these sections."""
        fields = type(self).model_fields
        return self.model_copy(update={name: fields[name].default for name in sections if name in fields})

    def parts(self) -> dict[Path, DeviceSection]:
        """Every section that names resources, and every entry of a list of chips, by its path in the file."""
        found: dict[Path, DeviceSection] = {}
        for name in type(self).model_fields:
            section = self.section(name)
            if isinstance(section, tuple):
                found |= {(name, index): chip for index, chip in enumerate(section)}
            elif section is not None:
                found |= {(name, *path): part for path, part in section.parts().items()}
        return found
