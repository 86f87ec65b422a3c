"""Evaluation of policy on a pod's annotations: at its admission, at its updates, and again when it is placed.

Source: docs/spec/policy.md. Choices (a scheduler policy, a device mode, …) have this precedence: enforced by the last
matching rule, the pod's own, the Namespace's, the default of the first matching rule. Allow lists are boundaries that a
pod can tighten and never loosen; deny lists add up.

What docs/spec/policy.md leaves open is decided as follows:

- An empty annotation is a value where it is a choice (`nvidia.com/vgpu-mode: ""` has a meaning), on the pod and on the
  Namespace; where it is a list, blank means no list, and a list of empty items only (`,`) one that allows nothing, as
  for every reader of lists.
- "Left with nothing" includes a list all of whose items policy denies, and a pod without a list for which the
  boundaries leave nothing: an empty list would be no constraint at all. Items that a pod denies itself don't count.
- Of several matching rules with a `schedulerName` the last one counts, as with `enforce`: users can't override either.
- A rule that a pod meets already changes nothing and isn't named.
- Pods of another scheduler are governed by the annotations that it reads, whatever their scheduler's name is;
  `schedulerName` is for the pods that we place. Volcano ignores a deny list of types where there is an allow list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set

from msgspec import Struct

from hami_webhook.devices.keys import DeviceKeys, PolicyTarget
from hami_webhook.devices.pod_preferences import split_list
from hami_webhook.kube.message_text import cut
from hami_webhook.kube.objects import Namespace
from hami_webhook.policy.rules import GENERAL_CHOICES, NAMESPACE, DeviceBounds, PolicyRule

MOST_NAMES = 10


class PolicyViolation(Exception):
    """A pod that policy forbids; `sources` are the Namespace and the rules that forbid it, as sentences name them."""

    def __init__(self, message: str, sources: Iterable[str]) -> None:
        super().__init__(message)
        self.sources = tuple(dict.fromkeys(sources))

    @property
    def attributed(self) -> str:
        """The message with the names of its sources."""
        return f"{self}, by {', '.join(self.sources)}"


class Changes(Struct, frozen=True):
    """The changes of policy to a pod's annotations: the new values, a sentence for each, and their sources.

    `rules` has the names of the rules that changed something, in the file's order, after `namespace` where the
    Namespace's annotations did.
    """

    annotations: Mapping[str, str]
    sentences: tuple[str, ...]
    rules: tuple[str, ...]


def required_changes(
    annotations: Mapping[str, str],
    namespace: Namespace,
    rules: Sequence[PolicyRule],
    requested: Collection[PolicyTarget],
) -> Changes:
    """The changes that the Namespace and the matching rules require of a pod's annotations.

    `requested` are the vendors whose cards the pod requests; without any, nothing changes. The function is idempotent.
    Raises `PolicyViolation` if a list leaves the pod with nothing.
    """
    changes = _ChangeWriter(annotations)
    _write_choices(changes, namespace, rules, requested)
    for pair in _list_pairs(namespace, rules, requested):
        pair.write(changes)
    return Changes(
        changes.written,
        tuple(changes.sentences),
        tuple(name for name in (NAMESPACE, *(rule.name for rule in rules)) if name in changes.actors),
    )


def check(
    annotations: Mapping[str, str],
    namespace: Namespace,
    rules: Sequence[PolicyRule],
    requested: Collection[PolicyTarget],
    keys: Set[str] | None = None,
) -> None:
    """Raise `PolicyViolation` if a pod's annotations are looser than policy.

    Enforced values must be set, every allow list within every boundary, and every denied device or type denied.
    Defaults aren't checked. `keys`: only rules on these annotation keys are checked.
    """
    for key, folds in _choice_keys(requested).items() if rules else ():
        enforced = _enforced(key, rules) if keys is None or key in keys else None
        if enforced is not None and not _same(annotations.get(key), enforced.value, folds=folds):
            found = annotations.get(key)
            instead = "it isn't set" if found is None else f"found {_on_one_line(found)}"
            source = enforced.source.text
            raise PolicyViolation(f"{key}: must be {_on_one_line(enforced.value)} by {source}: {instead}", [source])
    for pair in _list_pairs(namespace, rules, requested):
        if keys is None or not keys.isdisjoint(pair.keys):
            pair.check(annotations)


def governed_keys(vendors: Iterable[PolicyTarget]) -> frozenset[str]:
    """The annotation keys of these vendors that policy can set or bound."""
    own = (key for vendor in vendors for key in (*vendor.keys.choices, *vendor.keys.lists))
    return frozenset((*GENERAL_CHOICES, *own))


class _Source(Struct, frozen=True):
    """The Namespace or a rule: its name in `Changes.rules`, and its name in sentences."""

    actor: str
    text: str

    @classmethod
    def of_namespace(cls, namespace: Namespace) -> _Source:
        return cls(NAMESPACE, f"namespace {namespace.name}")

    @classmethod
    def of_rule(cls, rule: PolicyRule) -> _Source:
        return cls(rule.name, f"policy {rule.name}")


class _ChangeWriter:
    """Collects the changes to one pod's annotations, and their sources."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self.annotations = dict(annotations)
        self.written: dict[str, str] = {}
        self.actors: set[str] = set()
        self.sentences: list[str] = []

    def write(self, key: str, value: str, what: str, sources: Iterable[_Source]) -> None:
        """Set an annotation; `what` describes the change."""
        self.annotations[key] = self.written[key] = value
        by = {source.actor: source.text for source in sources}
        self.actors.update(by)
        self.sentences.append(f"{key} {what} by {', '.join(by.values())}")


# choices


class _RequiredValue(Struct, frozen=True):
    value: str
    source: _Source


def _choice_keys(requested: Collection[PolicyTarget]) -> Mapping[str, bool]:
    """The choices of the requested vendors, and whether blanks and case are ignored in them."""
    general = any(vendor.keys.general for vendor in requested)
    found = dict.fromkeys(GENERAL_CHOICES if general else (), False)
    return found | {key: vendor.keys.folds_choices for vendor in requested for key in vendor.keys.choices}


def _enforced(key: str, rules: Sequence[PolicyRule]) -> _RequiredValue | None:
    rule = next((rule for rule in reversed(rules) if key in rule.enforce), None)
    return None if rule is None else _RequiredValue(rule.enforce[key], _Source.of_rule(rule))


def _defaulted(key: str, namespace: Namespace, rules: Sequence[PolicyRule]) -> _RequiredValue | None:
    if key in namespace.annotations:
        return _RequiredValue(namespace.annotations[key], _Source.of_namespace(namespace))
    rule = next((rule for rule in rules if key in rule.default), None)
    return None if rule is None else _RequiredValue(rule.default[key], _Source.of_rule(rule))


def _same(one: str | None, other: str, *, folds: bool) -> bool:
    """Whether a pod's own choice and another mean the same."""
    return (one or "").strip().lower() == other.strip().lower() if folds else one == other


def _write_choices(
    changes: _ChangeWriter, namespace: Namespace, rules: Sequence[PolicyRule], requested: Collection[PolicyTarget]
) -> None:
    for key, folds in _choice_keys(requested).items():
        own = changes.annotations.get(key)
        if folds and own is not None and not own.strip():
            own = None
        choice = _enforced(key, rules) or (_defaulted(key, namespace, rules) if own is None else None)
        if choice is not None and not _same(own, choice.value, folds=folds):
            changes.write(key, choice.value, f"set to {_on_one_line(choice.value)}", [choice.source])


# lists


class _Items(Struct, frozen=True):
    """How the items of a list compare."""

    fold: Callable[[str], str]
    within: Callable[[str, Sequence[str]], bool]
    """Whether one of the other items covers the item."""

    def lists(self, annotations: Mapping[str, str], keys: Sequence[str]) -> list[tuple[str, ...]]:
        """The lists under `keys` that aren't blank; those of empty items only (`,`) are empty."""
        texts = [text for key in keys if (text := annotations.get(key, "")).strip()]
        return [self.unique(split_list(text)) for text in texts]

    def unique(self, items: Iterable[str]) -> tuple[str, ...]:
        """The items without repeats, as first written."""
        found: dict[str, str] = {}
        for item in items:
            found.setdefault(self.fold(item), item)
        return tuple(found.values())

    def without(self, items: Iterable[str], taken: Sequence[str]) -> tuple[str, ...]:
        """The items that aren't written in `taken`."""
        known = {self.fold(item) for item in taken}
        return tuple(item for item in items if self.fold(item) not in known)


def _contains_one_of(item: str, parts: Sequence[str]) -> bool:
    folded = item.lower()
    return any(part.lower() in folded for part in parts)


_UUIDS = _Items(fold=lambda item: item, within=lambda item, boundary: item in boundary)
_TYPES = _Items(fold=lambda item: item.lower(), within=_contains_one_of)


class _SourcedItems(Struct, frozen=True):
    """A boundary, or denied items, and their source."""

    items: tuple[str, ...]
    source: _Source

    @property
    def allows(self) -> str:
        """What a boundary leaves, for a sentence."""
        return f"{self.source.text} allows {f'only {_item_list(self.items)}' if self.items else 'nothing'}"


class _ListPair(Struct, frozen=True):
    """An allow and a deny list of a vendor (devices or types), and policy on them; the first keys are written."""

    kind: _Items
    allow_keys: tuple[str, ...]
    deny_keys: tuple[str, ...]
    boundaries: tuple[_SourcedItems, ...]
    denials: tuple[_SourcedItems, ...]
    namespace: str

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.allow_keys, *self.deny_keys)

    def write(self, changes: _ChangeWriter) -> None:
        """Restrict the pod's lists to the boundaries, add the denials. Raises `PolicyViolation` if nothing is left."""
        given = self.kind.lists(changes.annotations, self.allow_keys)
        own = self._in_all(given)
        allow = tuple(item for item in own if self._inside(item)) if given else self._common()
        denied = self.kind.unique(item for denial in self.denials for item in denial.items)
        if (allow or self.boundaries) and all(self.kind.within(item, denied) for item in allow):
            requirements = (*self.boundaries, *self.denials)
            raise PolicyViolation(
                self._nothing_left(given, denied), (rule_items.source.text for rule_items in requirements)
            )
        if allow != own:
            if given:
                what = f"cut down to {_item_list(allow)}"
                sources = [b.source for b in self.boundaries if not all(self.kind.within(i, b.items) for i in own)]
            else:
                what = f"set to {_item_list(allow)}"
                sources = [boundary.source for boundary in self.boundaries]
            changes.write(self.allow_keys[0], ",".join(allow), what, sources)
        own_deny = self._denied_by(changes.annotations)
        added = self.kind.without(denied, own_deny)
        if added:
            what = f"{'extended with' if own_deny else 'set to'} {_item_list(added)}"
            sources = [denial.source for denial in self.denials if self.kind.without(denial.items, own_deny)]
            changes.write(self.deny_keys[0], ",".join((*own_deny, *added)), what, sources)

    def check(self, annotations: Mapping[str, str]) -> None:
        """Raise `PolicyViolation` if the pod's lists allow what a boundary doesn't, or don't deny what is denied."""
        given = self.kind.lists(annotations, self.allow_keys)
        own = self._in_all(given)
        for boundary in self.boundaries:
            allowed = boundary.allows
            if not any(given):
                raise PolicyViolation(f"{self.allow_keys[0]}: must be set: {allowed}", [boundary.source.text])
            outside = [item for item in own if not self.kind.within(item, boundary.items)]
            if outside:
                text = f"{self.allow_keys[0]}: must not name {_item_list(outside)}: {allowed}"
                raise PolicyViolation(text, [boundary.source.text])
        own_deny = self._denied_by(annotations)
        for denial in self.denials:
            missing = [item for item in denial.items if not self.kind.within(item, own_deny)]
            if missing:
                text = f"{self.deny_keys[0]}: must name {_item_list(missing)}, denied by {denial.source.text}"
                raise PolicyViolation(text, [denial.source.text])

    def _in_all(self, lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """The items that lists under several keys allow together, as the readers of the lists combine them."""
        first, *others = lists or [()]
        for other in others:
            foreign = set(self.kind.without(first, other))
            first = tuple(item for item in first if item not in foreign)
        return first

    def _inside(self, item: str) -> bool:
        return all(self.kind.within(item, boundary.items) for boundary in self.boundaries)

    def _common(self) -> tuple[str, ...]:
        """The items of any boundary that satisfy every other one."""
        return self.kind.unique(item for boundary in self.boundaries for item in boundary.items if self._inside(item))

    def _denied_by(self, annotations: Mapping[str, str]) -> tuple[str, ...]:
        return self.kind.unique(item for items in self.kind.lists(annotations, self.deny_keys) for item in items)

    def _nothing_left(self, given: Sequence[tuple[str, ...]], denied: tuple[str, ...]) -> str:
        wanted = self.kind.unique(item for items in given for item in items)
        common = self._common()
        usable = self.kind.unique(item for item in common if not self.kind.within(item, denied))
        shown = (wanted or common)[:MOST_NAMES]
        hits = [item for item in denied if any(self.kind.within(one, [item]) for one in shown)]
        allowed = [f"allowed: {_item_list(usable)}"]
        why = allowed if usable else [boundary.allows for boundary in self.boundaries]
        if hits:
            why.append(f"denied: {_item_list(hits)}")
        nothing = f"none of {_item_list(wanted)}" if wanted else "nothing"
        short = self.allow_keys[0].rpartition("/")[2]
        if given and not wanted:
            return f"{short}: it names nothing; in namespace {self.namespace} {'; '.join(why)}"
        return f"{short}: {nothing} is allowed in namespace {self.namespace} ({'; '.join(why)})"


_Lists = Callable[[DeviceBounds], tuple[str, ...]]
_SIDES: tuple[tuple[_Items, Callable[[DeviceKeys], tuple[tuple[str, ...], tuple[str, ...]]], _Lists, _Lists], ...] = (
    (_UUIDS, lambda keys: (keys.use_uuid, keys.nouse_uuid), lambda b: b.allow_uuids, lambda b: b.deny_uuids),
    (_TYPES, lambda keys: (keys.use_type, keys.nouse_type), lambda b: b.allow_types, lambda b: b.deny_types),
)


def _list_pairs(
    namespace: Namespace, rules: Sequence[PolicyRule], requested: Collection[PolicyTarget]
) -> Iterator[_ListPair]:
    """The pairs of lists of the requested vendors with their rules; vendors that share keys share one pair."""
    if not rules and not any(key in namespace.annotations for vendor in requested for key in vendor.keys.lists):
        return
    for kind, keys_of, allow_of, deny_of in _SIDES:
        sharing: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for vendor in requested:
            sharing.setdefault(keys_of(vendor.keys), []).append(vendor.key)
        for (allow_keys, deny_keys), backends in sharing.items():
            source = _Source.of_namespace(namespace)
            boundaries = [_SourcedItems(items, source) for items in kind.lists(namespace.annotations, allow_keys)]
            denials = [_SourcedItems(items, source) for items in kind.lists(namespace.annotations, deny_keys)]
            for rule in rules:
                source = _Source.of_rule(rule)
                for bounds in (rule.devices[backend] for backend in backends if backend in rule.devices):
                    if allow_keys and allow_of(bounds):
                        boundaries.append(_SourcedItems(allow_of(bounds), source))
                    if deny_keys and deny_of(bounds):
                        denials.append(_SourcedItems(deny_of(bounds), source))
            if boundaries or denials:
                yield _ListPair(kind, allow_keys, deny_keys, tuple(boundaries), tuple(denials), namespace.name)


# sentences


def _on_one_line(text: str) -> str:
    """A value on one line, shortened when long."""
    line = "".join(letter if letter.isprintable() else " " for letter in cut(text))
    return line if line.strip() else f'"{line}"'


def _item_list(items: Sequence[str]) -> str:
    """A list for a sentence, at most `MOST_NAMES` of it."""
    text = ", ".join(_on_one_line(item) for item in items[:MOST_NAMES])
    return text if len(items) <= MOST_NAMES else f"{text} … and {len(items) - MOST_NAMES} more"
