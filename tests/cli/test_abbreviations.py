"""No parser takes an abbreviated flag: what one version takes for `--extender-bind-address` is another's own flag."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_webhook.cli import parser as hami_webhook
from hami_webhook.doctor import installation
from hami_webhook.kubectl.main import parser as kubectl_hami

ROOT = Path(__file__).parents[2]
GIVEN = {"--want": "1x1", "--prometheus": "http://prometheus:9090"}
"""Values of flags that a verb can't do without."""


def parsers(found: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser with those of its verbs, at any depth."""
    yield found
    for action in found._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def wanted(found: argparse.ArgumentParser) -> list[str]:
    """What a parser can't do without: a value for each argument, a verb of its own, and each required flag."""
    words = []
    for action in found._actions:
        if isinstance(action, argparse._SubParsersAction):
            verb, below = next(iter(action.choices.items()))
            words += [verb, *wanted(below)]
        elif action.option_strings and action.required:
            flag = action.option_strings[0]
            words += [flag, GIVEN.get(flag, "1")]
        elif not action.option_strings and action.nargs != "?":
            words += [next(iter(action.choices)) if action.choices else "x"]
    return words


PARSERS = [*parsers(hami_webhook()), *parsers(kubectl_hami()), installation._parser()]


@pytest.mark.parametrize("found", PARSERS, ids=[each.prog for each in PARSERS])
def test_a_flag_cut_short_is_refused(found: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]) -> None:
    needed = wanted(found)
    flags = [flag for action in found._actions for flag in action.option_strings if flag.startswith("--")]
    for flag in flags:
        short = flag[:-1]
        if short in ("-", "--", *flags):
            continue
        *_, unknown = found.parse_known_args([*needed, f"{short}=1"])
        assert unknown == [f"{short}=1"], flag
    assert capsys.readouterr().err == ""


def test_a_flag_of_another_version_is_no_prefix_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        hami_webhook().parse_args(["serve", "--extender-bind-addr=127.0.0.1:9444"])
    assert "unrecognized arguments: --extender-bind-addr=127.0.0.1:9444" in capsys.readouterr().err


def test_a_parser_of_hack_is_made_without() -> None:
    taking = []
    for path in sorted((ROOT / "hack").rglob("*.py")):
        for each in ast.walk(ast.parse(path.read_text())):
            if not isinstance(each, ast.Call) or not isinstance(each.func, ast.Attribute):
                continue
            named = {keyword.arg: ast.unparse(keyword.value) for keyword in each.keywords}
            if each.func.attr in ("ArgumentParser", "add_parser") and named.get("allow_abbrev") != "False":
                taking.append(f"{path.relative_to(ROOT)}:{each.lineno}")
    assert taking == []
