"""The kinds of values in a device-config.yaml, each with a sentence for values of another kind.

Names follow Kubernetes' rules for qualified names, DNS subdomains and label values; ranges are those of the vendors'
pages in docs/spec.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NoReturn

import hami_webhook.light_imports  # noqa: F401  it comes before the first model

# isort: split
from pydantic import BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from hami_webhook.kube.message_text import found
from hami_webhook.kube.names import LONGEST_SUBDOMAIN, SUBDOMAIN, is_subdomain

MAX_INT32 = 2**31 - 1
MAX_PERCENT = 100

_LONGEST_NAME = 63
NAME = rf"[A-Za-z0-9]([-A-Za-z0-9_.]{{0,{_LONGEST_NAME - 2}}}[A-Za-z0-9])?"
_NAME = re.compile(NAME)
_QUOTA_PREFIX = "limits."
_LONGEST_COMMON_WORD = _LONGEST_NAME - len("-devices-to-allocate")
# Go's encoding/json and HAMi's structs write these words in capitals; the other words of a key are plain camel case.
_CAPITALISED = {
    "cpu": "CPU",
    "drs": "DRS",
    "gcu": "GCU",
    "gpu": "GPU",
    "hcu": "HCU",
    "vcore": "VCore",
    "vcount": "VCount",
    "vgcu": "VGCU",
    "vmemory": "VMemory",
}


def is_name(text: str, longest: int = _LONGEST_NAME) -> bool:
    """Whether `text` is the name part of a qualified name, which is also what a non-empty label value must be."""
    return len(text) <= longest and _NAME.fullmatch(text) is not None


def is_qualified(text: str) -> bool:
    """Whether `text` is `name` or `domain/name`, as the key of a label or annotation."""
    domain, slash, name = text.rpartition("/")
    return is_name(name) and (is_subdomain(domain) if slash else True)


def key_of(field: str) -> str:
    """The key in the file of a model's field: `resource_vcount_name` is `resourceVCountName`."""
    first, *rest = field.split("_")
    return first + "".join(_CAPITALISED.get(word, word.capitalize()) for word in rest)


def refuse(sentence: str) -> NoReturn:
    """Raise the error that pydantic collects, with `sentence` as its message."""
    raise PydanticCustomError("config", "{sentence}", {"sentence": sentence})


def checked(check: Callable[..., object], **schema: Any) -> BeforeValidator:
    """A validator, and what a JSON schema can say of the values that it takes (docs/schemas)."""
    return BeforeValidator(check, json_schema_input_type=Annotated[Any, WithJsonSchema(schema)])


class Section(BaseModel):
    """A frozen part of device-config.yaml: snake_case fields here, the file's own camelCase keys there."""

    model_config = ConfigDict(
        defer_build=True, frozen=True, extra="forbid", alias_generator=key_of, populate_by_name=True
    )

    def resource_names(self) -> dict[str, str]:
        """The non-empty resource names of this section, by their key in the file."""
        names = {
            key_of(field): getattr(self, field) for field in type(self).model_fields if field.startswith("resource_")
        }
        return {key: name for key, name in names.items() if name}


def _resource_name(value: object) -> str:
    if not isinstance(value, str):
        refuse(f"must be a resource name such as nvidia.com/gpu, or empty, found {found(value)}")
    if not value:
        return value
    domain, slash, name = value.rpartition("/")
    if domain.startswith(("limits.", "requests.")):
        refuse(f"must be the resource itself, without {domain.split('.')[0]}. in front, found {found(value)}")
    if not (slash and is_name(name) and is_subdomain(_QUOTA_PREFIX + domain)):
        refuse(f"must be a resource name of the form domain/name, or empty, found {found(value)}")
    return value


def _runtime_class_name(value: object) -> str:
    if not isinstance(value, str) or (value and not is_subdomain(value)):
        refuse(f"must be the name of a RuntimeClass (lower case, digits, - and .), or empty, found {found(value)}")
    return value


def _common_word(value: object) -> str:
    if not isinstance(value, str) or not is_name(value, _LONGEST_COMMON_WORD):
        refuse(
            f"must be 1 to {_LONGEST_COMMON_WORD} letters, digits, -, _ or . that begin and end with a letter or digit "
            f"(it is part of annotation keys), found {found(value)}"
        )
    return value


def _label_value(value: object) -> str:
    if not isinstance(value, str) or not is_name(value):
        refuse(f"must be a label value of 1 to {_LONGEST_NAME} letters, digits, -, _ or ., found {found(value)}")
    return value


def _scheduler_name(value: object) -> str:
    if not isinstance(value, str) or not is_subdomain(value):
        refuse(f"must be the name of a scheduler (lower case, digits, - and .), found {found(value)}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        refuse(f"must be text, found {found(value)}; put it in quotes")
    return value


def _word(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        refuse(f"must be text that isn't blank, found {found(value)}")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        quotes = " without quotes" if value in ("true", "false") else ""
        refuse(f"must be true or false{quotes}, found {found(value)}")
    return value


def _flag_or_text(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value not in ("true", "false"):
        refuse(f'must be true or false, or one of the texts "true" and "false", found {found(value)}')
    return value == "true"


def _ratio(value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or not 0 < value <= MAX_PERCENT
    ):
        refuse(f"must be a number above 0 and at most {MAX_PERCENT}, found {found(value)}")
    return float(value)


def whole_number(least: int, most: int) -> BeforeValidator:
    """A validator for whole numbers in a closed range; text that reads like a number isn't one."""

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            hint = "; remove the quotes" if isinstance(value, str) and value.strip().isdigit() else ""
            refuse(f"must be a whole number from {least} to {most}, found {found(value)}{hint}")
        return value

    return checked(check, type="integer", minimum=least, maximum=most)


def one_of(*choices: str) -> BeforeValidator:
    """A validator for one of a few words."""

    def check(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            words = [choice or '""' for choice in choices]
            refuse(f"must be {', '.join(words[:-1])} or {words[-1]}, found {found(value)}")
        return value

    return checked(check, enum=list(choices))


class ItemsValidator(BeforeValidator):
    """A validator for lists that need at least one entry, which it says to JSON schemas."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(core), "minItems": 1}


def not_empty(what: str) -> ItemsValidator:
    """A validator for lists that need at least one entry."""

    def check(value: object) -> object:
        if isinstance(value, Sequence) and not value:
            refuse(f"must name at least one {what}, found an empty list")
        return value

    return ItemsValidator(check)


def text_check(check: Callable[[str], str | None], pattern: str) -> BeforeValidator:
    """A validator for text; `check` returns what is wrong with it, or None, as `pattern` has it for JSON schemas."""

    def check_text(value: object) -> str:
        text = _word(value)
        complaint = check(text)
        if complaint is not None:
            refuse(f"{complaint}, found {found(text)}")
        return text

    return checked(check_text, type="string", pattern=pattern)


_DNS = f"^{SUBDOMAIN}$"
_LABEL_NAME = f"^{NAME}$"

ResourceName = Annotated[str, checked(_resource_name, type="string", pattern=f"^({SUBDOMAIN}/{NAME})?$")]
RuntimeClassName = Annotated[str, checked(_runtime_class_name, type="string", pattern=f"^({SUBDOMAIN})?$")]
CommonWord = Annotated[str, checked(_common_word, type="string", pattern=_LABEL_NAME, maxLength=_LONGEST_COMMON_WORD)]
LabelValue = Annotated[str, checked(_label_value, type="string", pattern=_LABEL_NAME, maxLength=_LONGEST_NAME)]
SchedulerName = Annotated[str, checked(_scheduler_name, type="string", pattern=_DNS, maxLength=LONGEST_SUBDOMAIN)]
Text = Annotated[str, checked(_text, type="string")]
Word = Annotated[str, checked(_word, type="string", pattern=r"\S")]
Flag = Annotated[bool, checked(_flag, type="boolean")]
FlagOrText = Annotated[bool, checked(_flag_or_text, enum=[True, False, "true", "false"])]
Ratio = Annotated[float, checked(_ratio, type="number", exclusiveMinimum=0, maximum=MAX_PERCENT)]
Number = Annotated[int, whole_number(0, MAX_INT32)]
Positive = Annotated[int, whole_number(1, MAX_INT32)]
Percent = Annotated[int, whole_number(0, MAX_PERCENT)]
LogLevel = Annotated[int, whole_number(0, 10)]
MixedNameSets = Annotated[Literal["warn", "deny"], one_of("warn", "deny")]
