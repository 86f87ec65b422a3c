"""What policy demands of a pod's annotations: at its admission, at its updates, and again when it is placed.

Source: docs/spec/policy.md. Choices (a scheduler policy, a device mode, …) have this precedence: enforced by the last
matching rule, the pod's own, the Namespace's, the default of the first matching rule. Allow lists are boundaries that a
pod can tighten and never loosen; deny lists add up.

What the chapter leaves open is decided so:

- An annotation that is there but empty is a value of its own where it is a choice (`nvidia.com/vgpu-mode: ""` means
  something), on the pod and on the Namespace alike; where it is a list, blank is no list, as for every reader of lists.
- "Left with nothing" includes a list all of whose items policy denies, and a pod without a list for which the
  boundaries leave nothing: an empty list would mean no constraint at all. What a pod denies itself is its own matter.
- Of several matching rules with a `schedulerName` the last one counts, as with `enforce`: users can't override either.
- A pod that meets a rule already isn't changed by it, so the rule hasn't acted and isn't named.
- Pods of another scheduler are governed by what that one reads, whatever their scheduler's name is; `schedulerName` is
  for the pods we place. Volcano looks at no deny list of types beside an allow list: such a denial is its to break.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from hami_webhook.config.errors import cut
from hami_webhook.devices.keys import DeviceKeys, Governed
from hami_webhook.devices.pod_preferences import split_list
from hami_webhook.kube.objects import Namespace
from hami_webhook.policy.rules import GENERAL_CHOICES, NAMESPACE, DeviceBounds, Rule

MOST_NAMES = 10


class PolicyViolation(Exception):
    """A pod can't be had under policy; `sources` are the Namespace and the rules that demand it, as in sentences."""

    def __init__(self, message: str, sources: Iterable[str]) -> None:
        super().__init__(message)
        self.sources = tuple(dict.fromkeys(sources))

    @property
    def attributed(self) -> str:
        """The message with the names of its sources, for readers who don't know which policies there are."""
        return f"{self}, by {', '.join(self.sources)}"


@dataclass(frozen=True, slots=True)
class Changes:
    """What policy changes of a pod's annotations: the new values, a sentence for each, and who made them.

    `rules` has the names of the rules that changed something, in the file's order, after `namespace` where the
    Namespace's annotations did.
    """

    annotations: Mapping[str, str]
    sentences: tuple[str, ...]
    rules: tuple[str, ...]


def required_changes(
    annotations: Mapping[str, str], namespace: Namespace, rules: Sequence[Rule], asked: Collection[Governed]
) -> Changes:
    """What must change of a pod's annotations for the demands of its Namespace and of the rules that match it.

    `asked` are the vendors whose cards the pod asks for; without any, nothing changes. What changed once changes no
    more. Raises `PolicyViolation` if a list leaves the pod with nothing.
    """
    changes = _ChangeWriter(annotations)
    _write_choices(changes, namespace, rules, asked)
    for listing in _listings(namespace, rules, asked):
        listing.write(changes)
    return Changes(
        changes.written,
        tuple(changes.sentences),
        tuple(name for name in (NAMESPACE, *(rule.name for rule in rules)) if name in changes.acted),
    )


def check(
    annotations: Mapping[str, str],
    namespace: Namespace,
    rules: Sequence[Rule],
    asked: Collection[Governed],
    keys: Set[str] | None = None,
) -> None:
    """Raise `PolicyViolation` if a pod's annotations are looser than policy.

    Enforced values must be there, every allow list within every boundary, and every denied device or type denied.
    Defaults are the pod's own matter by now. `keys`: only what these annotation keys take part in is checked.
    """
    for key, folds in _choice_keys(asked).items():
        enforced = _enforced(key, rules) if keys is None or key in keys else None
        if enforced is not None and not _same(annotations.get(key), enforced.value, folds=folds):
            found = annotations.get(key)
            instead = "it isn't set" if found is None else f"found {_shown(found)}"
            source = enforced.source.text
            raise PolicyViolation(f"{key}: must be {_shown(enforced.value)} by {source}: {instead}", [source])
    for listing in _listings(namespace, rules, asked):
        if keys is None or not keys.isdisjoint(listing.keys):
            listing.check(annotations)


def governed_keys(vendors: Iterable[Governed]) -> frozenset[str]:
    """The annotation keys of these vendors that policy can set or bound."""
    own = (key for vendor in vendors for key in (*vendor.keys.choices, *vendor.keys.lists))
    return frozenset((*GENERAL_CHOICES, *own))


@dataclass(frozen=True, slots=True)
class _Source:
    """Who demands something: its name in `Changes.rules`, and its name in sentences."""

    actor: str
    text: str

    @classmethod
    def of_namespace(cls, namespace: Namespace) -> _Source:
        return cls(NAMESPACE, f"namespace {namespace.name}")

    @classmethod
    def of_rule(cls, rule: Rule) -> _Source:
        return cls(rule.name, f"policy {rule.name}")


class _ChangeWriter:
    """The changes made to one pod's annotations, and who made them."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self.annotations = dict(annotations)
        self.written: dict[str, str] = {}
        self.acted: set[str] = set()
        self.sentences: list[str] = []

    def write(self, key: str, value: str, what: str, sources: Iterable[_Source]) -> None:
        """Set an annotation; `what` says what that does to it."""
        self.annotations[key] = self.written[key] = value
        by = {source.actor: source.text for source in sources}
        self.acted.update(by)
        self.sentences.append(f"{key} {what} by {', '.join(by.values())}")


# choices


@dataclass(frozen=True, slots=True)
class _Choice:
    value: str
    source: _Source


def _choice_keys(asked: Collection[Governed]) -> Mapping[str, bool]:
    """The choices that mean something to those asked, and whether blanks and case mean nothing in them."""
    general = any(vendor.keys.general for vendor in asked)
    found = dict.fromkeys(GENERAL_CHOICES if general else (), False)
    return found | {key: vendor.keys.folds_choices for vendor in asked for key in vendor.keys.choices}


def _enforced(key: str, rules: Sequence[Rule]) -> _Choice | None:
    rule = next((rule for rule in reversed(rules) if key in rule.enforce), None)
    return None if rule is None else _Choice(rule.enforce[key], _Source.of_rule(rule))


def _defaulted(key: str, namespace: Namespace, rules: Sequence[Rule]) -> _Choice | None:
    if key in namespace.annotations:
        return _Choice(namespace.annotations[key], _Source.of_namespace(namespace))
    rule = next((rule for rule in rules if key in rule.default), None)
    return None if rule is None else _Choice(rule.default[key], _Source.of_rule(rule))


def _same(one: str | None, other: str, *, folds: bool) -> bool:
    """Whether a pod's own choice and another mean the same."""
    return (one or "").strip().lower() == other.strip().lower() if folds else one == other


def _write_choices(
    changes: _ChangeWriter, namespace: Namespace, rules: Sequence[Rule], asked: Collection[Governed]
) -> None:
    for key, folds in _choice_keys(asked).items():
        own = changes.annotations.get(key)
        if folds and own is not None and not own.strip():
            own = None
        choice = _enforced(key, rules) or (_defaulted(key, namespace, rules) if own is None else None)
        if choice is not None and not _same(own, choice.value, folds=folds):
            changes.write(key, choice.value, f"set to {_shown(choice.value)}", [choice.source])


# lists


@dataclass(frozen=True, slots=True)
class _Items:
    """How the items of a list compare."""

    fold: Callable[[str], str]
    within: Callable[[str, Sequence[str]], bool]
    """Whether all that the item means is meant by one of those, too."""

    def lists(self, annotations: Mapping[str, str], keys: Sequence[str]) -> list[tuple[str, ...]]:
        """The lists under `keys` that aren't blank."""
        return [items for key in keys if (items := self.unique(split_list(annotations.get(key, ""))))]

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


@dataclass(frozen=True, slots=True)
class _Demand:
    """A boundary, or denied items, and who set them."""

    items: tuple[str, ...]
    source: _Source


@dataclass(frozen=True, slots=True)
class _Listing:
    """One pair of a vendor's lists (devices or types): its keys, of which the first are written, and the demands."""

    kind: _Items
    allow_keys: tuple[str, ...]
    deny_keys: tuple[str, ...]
    boundaries: tuple[_Demand, ...]
    denials: tuple[_Demand, ...]
    namespace: str

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.allow_keys, *self.deny_keys)

    def write(self, changes: _ChangeWriter) -> None:
        """Cut the pod's lists down to the boundaries, add the denials. Raises `PolicyViolation` if nothing is left."""
        given = self.kind.lists(changes.annotations, self.allow_keys)
        own = self._in_all(given)
        allow = tuple(item for item in own if self._inside(item)) if given else self._common()
        denied = self.kind.unique(item for denial in self.denials for item in denial.items)
        if (allow or self.boundaries) and all(self.kind.within(item, denied) for item in allow):
            demands = (*self.boundaries, *self.denials)
            raise PolicyViolation(self._nothing_left(given, denied), (demand.source.text for demand in demands))
        if allow != own:
            if given:
                what = f"cut down to {_named(allow)}"
                sources = [b.source for b in self.boundaries if not all(self.kind.within(i, b.items) for i in own)]
            else:
                what = f"set to {_named(allow)}"
                sources = [boundary.source for boundary in self.boundaries]
            changes.write(self.allow_keys[0], ",".join(allow), what, sources)
        own_deny = self._denied_by(changes.annotations)
        added = self.kind.without(denied, own_deny)
        if added:
            what = f"{'extended with' if own_deny else 'set to'} {_named(added)}"
            sources = [denial.source for denial in self.denials if self.kind.without(denial.items, own_deny)]
            changes.write(self.deny_keys[0], ",".join((*own_deny, *added)), what, sources)

    def check(self, annotations: Mapping[str, str]) -> None:
        """Raise `PolicyViolation` if the pod's lists allow what a boundary doesn't, or don't deny what is denied."""
        given = self.kind.lists(annotations, self.allow_keys)
        own = self._in_all(given)
        for boundary in self.boundaries:
            allowed = f"{boundary.source.text} allows only {_named(boundary.items)}"
            if not given:
                raise PolicyViolation(f"{self.allow_keys[0]}: must be set: {allowed}", [boundary.source.text])
            outside = [item for item in own if not self.kind.within(item, boundary.items)]
            if outside:
                text = f"{self.allow_keys[0]}: must not name {_named(outside)}: {allowed}"
                raise PolicyViolation(text, [boundary.source.text])
        own_deny = self._denied_by(annotations)
        for denial in self.denials:
            missing = [item for item in denial.items if not self.kind.within(item, own_deny)]
            if missing:
                text = f"{self.deny_keys[0]}: must name {_named(missing)}, denied by {denial.source.text}"
                raise PolicyViolation(text, [denial.source.text])

    def _in_all(self, lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """What lists under several keys allow together, as the readers of the lists see it."""
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
        if usable:
            why = [f"allowed: {_named(usable)}"]
        else:
            why = [f"{boundary.source.text} allows only {_named(boundary.items)}" for boundary in self.boundaries]
        if hits:
            why.append(f"denied: {_named(hits)}")
        nothing = f"none of {_named(wanted)}" if wanted else "nothing"
        short = self.allow_keys[0].rpartition("/")[2]
        return f"{short}: {nothing} is allowed in namespace {self.namespace} ({'; '.join(why)})"


_Lists = Callable[[DeviceBounds], tuple[str, ...]]
_SIDES: tuple[tuple[_Items, Callable[[DeviceKeys], tuple[tuple[str, ...], tuple[str, ...]]], _Lists, _Lists], ...] = (
    (_UUIDS, lambda keys: (keys.use_uuid, keys.nouse_uuid), lambda b: b.allow_uuids, lambda b: b.deny_uuids),
    (_TYPES, lambda keys: (keys.use_type, keys.nouse_type), lambda b: b.allow_types, lambda b: b.deny_types),
)


def _listings(namespace: Namespace, rules: Sequence[Rule], asked: Collection[Governed]) -> Iterator[_Listing]:
    """The demands on every pair of lists of the asked vendors; vendors that share their keys share one pair."""
    for kind, keys_of, allow_of, deny_of in _SIDES:
        sharing: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for vendor in asked:
            sharing.setdefault(keys_of(vendor.keys), []).append(vendor.key)
        for (allow_keys, deny_keys), backends in sharing.items():
            source = _Source.of_namespace(namespace)
            boundaries = [_Demand(items, source) for items in kind.lists(namespace.annotations, allow_keys)]
            denials = [_Demand(items, source) for items in kind.lists(namespace.annotations, deny_keys)]
            for rule in rules:
                source = _Source.of_rule(rule)
                for bounds in (rule.devices[backend] for backend in backends if backend in rule.devices):
                    if allow_keys and allow_of(bounds):
                        boundaries.append(_Demand(allow_of(bounds), source))
                    if deny_keys and deny_of(bounds):
                        denials.append(_Demand(deny_of(bounds), source))
            if boundaries or denials:
                yield _Listing(kind, allow_keys, deny_keys, tuple(boundaries), tuple(denials), namespace.name)


# what is said


def _shown(text: str) -> str:
    """A value on one line, cut where it is absurdly long."""
    line = "".join(letter if letter.isprintable() else " " for letter in cut(text))
    return line if line.strip() else f'"{line}"'


def _named(items: Sequence[str]) -> str:
    """A list for a sentence, at most `MOST_NAMES` of it."""
    text = ", ".join(_shown(item) for item in items[:MOST_NAMES])
    return text if len(items) <= MOST_NAMES else f"{text} … and {len(items) - MOST_NAMES} more"
