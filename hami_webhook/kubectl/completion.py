"""Shell completion of `kubectl hami`, by kubectl's convention for plugins.

kubectl's completion for bash, zsh and fish runs `kubectl_complete-hami` with the words so far, the last of which is to
be completed. Candidates are lines, each with a tab and its help; the last line is cobra's directive.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from urllib.parse import quote

from msgspec import Struct

from hami_webhook.cluster.api import ClusterError, Forbidden, Kind, NotFound
from hami_webhook.kubectl.main import parser

_NO_FILES, _FILES = ":4", ":0"
"""Cobra's directives: whether the shell may complete with names of files."""
_WAIT = 3.0
"""Seconds that somebody at a shell waits for names."""
_MOST_NAMES = 500
"""Names of a kind that are read."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the candidates for the last word."""
    words = list(sys.argv[1:] if argv is None else argv) or [""]
    candidates = list(complete(words))
    for text, explanation in candidates:
        print(f"{text}\t{explanation}" if explanation else text)
    print(_NO_FILES if candidates else _FILES)
    return 0


def complete(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What the last of the words may become, with its help."""
    *before, last = words
    line = _Line.of(before)
    if line.unset is not None:
        found: Iterable[tuple[str, str]] = ((each, "") for each in _values(line.unset, line.flags))
    elif last.startswith("-"):
        actions = line.verb._actions
        found = ((flag, action.help or "") for action in actions for flag in action.option_strings)
    else:
        kinds = () if line.named else _NAMED.get(line.verb.prog.split()[-1], ())
        found = [*_helps(line.verb), *((each, "") for each in _names(kinds, line.flags))]
    return (candidate for candidate in found if candidate[0].startswith(last))


class _Line(Struct):
    """What words on a command line say: the verb, the flags, whether an object is named, and the flag whose value comes
    next.
    """

    verb: argparse.ArgumentParser
    flags: dict[str, str] = {}
    named: bool = False
    unset: argparse.Action | None = None

    @classmethod
    def of(cls, words: Iterable[str]) -> _Line:
        line = cls(parser())
        for word in words:
            line._read(word)
        return line

    def _read(self, word: str) -> None:
        if self.unset is not None:
            self.flags[self.unset.dest], self.unset = word, None
            return
        flag, equals, value = word.partition("=")
        action = next((each for each in self.verb._actions if flag in each.option_strings), None)
        if action is None:
            verbs = _verbs(self.verb)
            self.named = word not in verbs
            self.verb = verbs.get(word, self.verb)
        elif equals:
            self.flags[action.dest] = value
        elif action.nargs != 0:
            self.unset = action


def _helps(verb: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """The verbs below a verb, with their help."""
    for action in verb._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from ((choice.dest, choice.help or "") for choice in action._choices_actions)


_NAMED: Mapping[str, Sequence[Kind]] = {
    "quota": (Kind.RESOURCE_QUOTAS, Kind.ACCELERATOR_QUOTAS),
    "nodes": (Kind.NODES,),
    "cards": (Kind.NODES,),
    "node": (Kind.NODES,),
    "pods": (Kind.PODS,),
    "pod": (Kind.PODS,),
}
"""The kinds whose objects a verb names."""


def _values(action: argparse.Action, flags: Mapping[str, str]) -> Sequence[str]:
    """What a flag may be set to, as far as that is known."""
    if action.dest == "namespace":
        return _names((Kind.NAMESPACES,), flags)
    return [str(each) for each in action.choices or ()]


def _names(kinds: Sequence[Kind], flags: Mapping[str, str]) -> Sequence[str]:
    """The names of the objects of the cluster that the flags name; none where they can't be read."""
    # imported here: verbs and flags are completed at once
    from hami_webhook.cluster.connect import connect, names_of
    from hami_webhook.cluster.kubernetes import KubernetesCluster

    if not kinds:
        return ()

    async def names() -> Sequence[str]:
        kubeconfig, context = flags.get("kubeconfig") or os.environ.get("KUBECONFIG", ""), flags.get("context", "")
        namespace = flags.get("namespace") or names_of(kubeconfig, context).namespace
        found = []
        async with KubernetesCluster(await connect(kubeconfig, context), timeout=_WAIT) as cluster:
            for kind in kinds:
                with suppress(Forbidden, NotFound):
                    space = f"/namespaces/{quote(namespace, safe='')}" if kind.namespaced else ""
                    query = {"limit": str(_MOST_NAMES)}
                    listing = await cluster.call("GET", f"{kind.prefix}{space}/{kind.value}", query=query)
                    prefix = f"{kind.singular}/" if kind is Kind.ACCELERATOR_QUOTAS else ""
                    found += [f"{prefix}{each['metadata']['name']}" for each in listing.get("items") or ()]
        return found

    try:
        return asyncio.run(names())
    except ClusterError:
        return ()


def _verbs(verb: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The verbs below a verb."""
    return next((dict(each.choices) for each in verb._actions if isinstance(each, argparse._SubParsersAction)), {})
