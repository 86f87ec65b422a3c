"""Faults to plant in the code that is explored: an expression or a statement of one function is replaced by others.

The place is found in the syntax tree, so comments, lines and quotes may change. What was planted is gone after a run;
functions that exist by then get the new code, and lose it again.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path

from msgspec import Struct

_ROOT = Path(__file__).parents[2] / "hami_webhook"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Change(Struct, frozen=True):
    """In a `function` of a module, as `Class.method`, what is written `before` becomes what is written `after`.

    Both are an expression each, or `before` is a statement and `after` some of them. There `...` stands for the one
    that was there.
    """

    function: str
    before: str
    after: str


class Planted(Struct, frozen=True):
    """A fault: these `changes` of a `module` of `hami_webhook`.

    `scenario` is the one that finds it, with these `accidents`. A fault without one isn't found, as `why` says.
    """

    name: str
    module: str
    changes: Sequence[Change]
    scenario: str = ""
    accidents: Mapping[str, int] = {}
    why: str = ""


@contextmanager
def planted(fault: Planted) -> Iterator[None]:
    """The code with a fault. Raises `LookupError` where a function, or the place in it, isn't there exactly once."""
    path = _ROOT / fault.module
    tree = ast.parse(path.read_text())
    for change in fault.changes:
        try:
            replace(tree, change)
        except LookupError as error:
            raise LookupError(f"{fault.name}: {fault.module}: {error}") from None
    codes = {
        (code.co_qualname, code.co_firstlineno): code
        for code in _codes(compile(tree, str(path), "exec", dont_inherit=True))
    }
    former: list[tuple[types.FunctionType, types.CodeType]] = []
    module = import_module(f"hami_webhook.{fault.module.removesuffix('.py').replace('/', '.')}")
    for each in _functions(vars(module).values(), module.__name__):
        new = codes.get((each.__code__.co_qualname, each.__code__.co_firstlineno))
        if new is not None and new != each.__code__:
            former.append((each, each.__code__))
            each.__code__ = new
    if not former:
        raise LookupError(f"{fault.name}: no function of {fault.module} has another code")
    try:
        yield
    finally:
        for function, code in former:
            function.__code__ = code


def replace(tree: ast.Module, change: Change) -> None:
    """Make a change in a module. Raises `LookupError` where its place isn't there exactly once."""
    functions = [found for name, found in _named(tree, "") if name == change.function]
    if len(functions) != 1:
        raise LookupError(f"{len(functions)} functions are called {change.function}")
    (before,), after = ast.parse(change.before).body, ast.parse(change.after).body
    wanted: ast.AST = before
    if isinstance(before, ast.Expr) and isinstance(after[0], ast.Expr) and len(after) == 1:
        wanted = before.value
    text = ast.dump(wanted)
    found = [put for node, put in _places(functions[0]) if ast.dump(node) == text]
    if len(found) != 1:
        raise LookupError(f"{change.function} has {change.before!r} {len(found)} times")
    found[0](after)
    ast.fix_missing_locations(tree)


def _named(parent: ast.AST, where: str) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(parent):
        if isinstance(child, _Function | ast.ClassDef):
            name = f"{where}.{child.name}".removeprefix(".")
            if isinstance(child, _Function):
                yield name, child
            yield from _named(child, name)
        else:
            yield from _named(child, where)


def _places(root: ast.AST) -> Iterator[tuple[ast.AST, Callable[[list[ast.stmt]], None]]]:
    """All nodes below one, each with a function that puts statements, or the expression that they are, in its place."""
    for parent in ast.walk(root):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, ast.AST):
                yield value, partial(_put, parent, field)
            for index, child in enumerate(value) if isinstance(value, list) else ():
                if isinstance(child, ast.AST):
                    yield child, partial(_put_into, value, index)


def _put(parent: ast.AST, field: str, statements: list[ast.stmt]) -> None:
    setattr(parent, field, _in_place_of(getattr(parent, field), statements)[0])


def _put_into(nodes: list[ast.AST], index: int, statements: list[ast.stmt]) -> None:
    nodes[index : index + 1] = _in_place_of(nodes[index], statements)


def _in_place_of(former: ast.AST, statements: list[ast.stmt]) -> list[ast.AST]:
    """What replaces a node, on its line."""
    if isinstance(former, ast.expr):
        (only,) = statements
        assert isinstance(only, ast.Expr)
        new: list[ast.AST] = [only.value]
    else:
        new = [former if ast.unparse(each) == "..." else each for each in statements]
    for each in new:
        for node in ast.walk(each) if each is not former else ():
            ast.copy_location(node, former)
    return new


def _functions(values: Iterable[object], module: str) -> Iterator[types.FunctionType]:
    """The functions of a module, those of its classes included; what is inside of them is of their code."""
    for value in values:
        found = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        found = getattr(found, "__wrapped__", found)
        if getattr(found, "__module__", "") != module:
            continue
        if isinstance(found, types.FunctionType):
            yield found
        elif isinstance(found, type):
            yield from _functions(vars(found).values(), module)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
