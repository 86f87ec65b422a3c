"""Writes the manual pages of the command lines, of the parsers themselves: `python -m hack.man_pages FOLDER`.

hami-webhook(1) and kubectl-hami(1) have every verb with its arguments. A release has them.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from hami_webhook import __version__, cli
from hami_webhook.kubectl.main import parser as kubectl_parser

DESCRIPTIONS = {
    "hami-webhook": "admission webhook, quota controller and scheduler extender for shared accelerators",
    "kubectl-hami": "show what teams have of shared accelerators, and why pods wait",
}
STATUSES = {
    "0": "Done.",
    "1": "Something was found that the verb looks for, such as a fault, a difference, or with --strict a pod that "
    "was denied.",
    "2": "The arguments or the files they name can't be used; standard error says what would be right.",
}
SEE_ALSO = {"hami-webhook": "kubectl-hami", "kubectl-hami": "hami-webhook"}


def escaped(text: str) -> str:
    """Text as troff prints it: no line of it is a request."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    text = "".join(each if each.isascii() else rf"\[u{ord(each):04X}]" for each in text)
    text = re.sub(r",(?=\S)", r",\\:", text)  # a long list may be broken
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def bold(text: str) -> str:
    return rf"\fB{escaped(text)}\fR"


def italic(text: str) -> str:
    return rf"\fI{escaped(text)}\fR"


def leaves(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """The parsers of verbs that have none below them, each with its help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, verb in action.choices.items():
                below = list(leaves(verb))
                yield from below or [(verb, helps[name])]


def metavar(action: argparse.Action) -> str:
    """What stands for an argument's value; empty if it takes none."""
    if action.nargs == 0:
        return ""
    name = action.metavar if isinstance(action.metavar, str) else None
    if name is None:
        name = "|".join(action.choices) if action.choices else action.dest.upper()
    return name


def value(action: argparse.Action) -> str:
    """The value as a usage line has it."""
    name = italic(metavar(action))
    return {"?": f"[{name}]", "*": f"[{name}]...", "+": f"{name}..."}.get(str(action.nargs), name)


def synopsis(verb: argparse.ArgumentParser) -> str:
    """The verb with its arguments, optional flags as one word."""
    words = [bold(verb.prog)]
    words += [
        f"{bold(each.option_strings[-1])} {value(each)}" if each.option_strings else value(each)
        for each in verb._actions
        if each.required or not each.option_strings
    ]
    return " ".join([words[0], r"[\fIOPTION\fR]...", *words[1:]])


def arguments(verb: argparse.ArgumentParser) -> Iterator[str]:
    """A verb's arguments with their help, as paragraphs."""
    formatter = verb._get_formatter()
    for action in verb._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        names = ", ".join(map(bold, action.option_strings)) or value(action)
        if action.option_strings and metavar(action):
            names += f" {value(action)}"
        yield f".TP\n{names}\n{escaped(formatter._expand_help(action)) if action.help else chr(92) + '&'}"


def page(name: str, parser: argparse.ArgumentParser, date: str) -> str:
    """The manual page of a program."""
    lines = [f'.TH {name.upper()} 1 "{date}" "hami\\-webhook {__version__}" "User Commands"', ".nh", ".ad l"]
    lines += [".SH NAME", rf"{escaped(name)} \- {escaped(DESCRIPTIONS[name])}"]
    lines += [".SH SYNOPSIS", rf"{bold(parser.prog)} \fIVERB\fR [\fIARGUMENT\fR]..."]
    lines += [".SH DESCRIPTION", escaped(parser.description or "")]
    lines += [".SH VERBS"]
    for verb, text in leaves(parser):
        description = verb.description or f"{text[0].upper()}{text[1:]}."
        lines += [f".SS {escaped(verb.prog.removeprefix(parser.prog).strip())}", synopsis(verb)]
        lines += [".PP", escaped(description), *arguments(verb)]
    lines += [".SH EXIT STATUS"]
    for status, meaning in STATUSES.items():
        lines += [".TP", bold(status), escaped(meaning)]
    lines += [".SH SEE ALSO", rf"{bold(SEE_ALSO[name])}(1), {bold('kubectl')}(1)"]
    return "\n".join(lines) + "\n"


def write(folder: Path, epoch: int) -> None:
    """Write both pages, as of `epoch` (Unix seconds)."""
    date = datetime.fromtimestamp(epoch, UTC).date().isoformat()
    for name, parser in (("hami-webhook", cli.parser()), ("kubectl-hami", kubectl_parser())):
        (folder / f"{name}.1").write_text(page(name, parser, date))


if __name__ == "__main__":
    write(Path(sys.argv[1]), 0)
