"""What the commands have in common: faults of the command line in one line, and results as JSON or YAML."""

from __future__ import annotations

import argparse
import json
from typing import NoReturn

import yaml


class Parser(argparse.ArgumentParser):
    """Reports a fault of the command line in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class UsageError(Exception):
    """Unusable input: one line for stderr, exit status 2."""


class _PlainDumper(yaml.SafeDumper):
    """YAML without anchors: a value that occurs twice is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def formatted(result: object, output: str) -> str:
    """Plain values as `json` or `yaml`, without a newline at the end."""
    if output == "json":
        return json.dumps(result, indent=2, ensure_ascii=False)
    return yaml.dump(result, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True).rstrip("\n")
