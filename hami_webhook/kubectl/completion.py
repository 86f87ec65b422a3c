"""Shell completion of `kubectl hami`, by kubectl's convention for plugins.

kubectl's completion for bash, zsh and fish runs `kubectl_complete-hami` with the words so far, the last of which is to
be completed. Candidates are lines, each with a tab and its help; the last line is cobra's directive.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from hami_webhook.kubectl.main import parser

_NO_FILES, _FILES = ":4", ":0"
"""Cobra's directives: whether the shell may complete with names of files."""


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
    verb: argparse.ArgumentParser = parser()
    while before:
        word, *before = before
        action = next((each for each in verb._actions if word in each.option_strings), None)
        if action is not None and action.nargs != 0:
            if not before:  # the value of the flag is what is to be completed
                yield from ((each, "") for each in action.choices or () if each.startswith(last))
                return
            before = before[1:]
        verb = _verbs(verb).get(word, verb)
    if last.startswith("-"):
        for action in verb._actions:
            yield from ((flag, action.help or "") for flag in action.option_strings if flag.startswith(last))
        return
    for action in verb._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                if choice.dest.startswith(last):
                    yield choice.dest, choice.help or ""


def _verbs(verb: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The verbs below a verb."""
    return next((dict(each.choices) for each in verb._actions if isinstance(each, argparse._SubParsersAction)), {})
