"""Packages of which only what is used is imported: each takes a part of the time in which a command starts."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from sys import modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp as aiohttp


def defer(name: str) -> None:
    """Have a package, whose own code does nothing but import its modules, run only once something else is asked of it.

    Nothing happens where it was imported before, or isn't installed.
    """
    spec = None if name in modules else find_spec(name)
    if spec is None or spec.loader is None:
        return
    package = module_from_spec(spec)
    loader = spec.loader

    def run(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if find_spec(module := f"{name}.{attribute}") is not None:
            return import_module(module)
        del package.__getattr__
        loader.exec_module(package)
        return getattr(package, attribute)

    package.__getattr__ = run  # type: ignore[method-assign]  # what PEP 562 says of modules
    modules[name] = package


def _without_plugins() -> None:
    """Have pydantic look for no plugins, for which it reads the metadata of every package that is installed."""
    loader = ModuleType("pydantic.plugin._loader")
    loader.get_plugins = tuple  # type: ignore[attr-defined]  # it is an empty module yet
    modules.setdefault(loader.__name__, loader)


defer("prometheus_client")  # its HTTP servers
_without_plugins()


def _without_certificates() -> ModuleType:
    """aiohttp, without the certificates of the system, which it reads for connections that name no others."""
    before = {name: os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
    os.environ.update(dict.fromkeys(before, os.devnull))
    try:
        return import_module("aiohttp")
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def __getattr__(name: str) -> ModuleType:
    """`aiohttp`, and the Kubernetes client for who imports this before it, without what isn't used of them.

    That is 250 modules and 12 MB of the client, its synchronous half included: a third of a command's start.
    """
    if name != "aiohttp":
        raise AttributeError(name)
    for package in ("kubernetes", "kubernetes.aio", "kubernetes.aio.utils"):
        defer(package)
    return _without_certificates()
