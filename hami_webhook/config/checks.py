"""Checks between the values of a device-config.yaml: conflicts make it unusable, improbable values are warnings.

The rules are those of the vendors' pages in docs/spec (section 2 each) and of docs/spec/quota.md#2. Paths are those of
`DeviceConfig.parts`.
"""

from collections.abc import Callable, Iterator

from hami_webhook.config.devices import Chip, DeviceConfig, DeviceSection
from hami_webhook.kube.message_text import did_you_mean, quoted
from hami_webhook.kube.yaml_reader import Path

Finding = tuple[Path, str]
"""A path and a sentence about it."""
PathText = Callable[[Path], str]
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
    users: dict[str, Path] = {}
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
    owners: dict[str, Path] = {}
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
