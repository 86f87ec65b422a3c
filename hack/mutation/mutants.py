"""Small faults in the functions of a module, one at a time: what a test should notice.

A mutant is known by its module, the function it is in, what is replaced by what, and its number among those that are
the same way, so a list of them outlives changes elsewhere in the module.
"""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SWAPPED: Mapping[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Add,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One fault. `lines` are those that a test must reach to notice it; `apply` changes the tree it was found in."""

    path: str
    where: str
    change: str
    number: int
    line: int
    lines: range
    tree: ast.Module
    apply: Callable[[], None]

    @property
    def name(self) -> str:
        return f"{self.path}::{self.where} {self.change} #{self.number}"


@dataclass(frozen=True)
class _Fault:
    change: str
    line: int
    apply: Callable[[], None]


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """All mutants of a module, in the order of its text."""
    tree = ast.parse(path.read_text())
    name = path.relative_to(root).as_posix()
    found: list[Mutant] = []
    seen: Counter[tuple[str, str]] = Counter()
    for where, statement in _statements(tree, ""):
        for fault in _faults(statement):
            seen[where, fault.change] += 1
            number = seen[where, fault.change]
            lines = _lines(statement)
            found.append(Mutant(name, where, fault.change, number, fault.line, lines, tree, fault.apply))
    return found


def sampled(by_module: Mapping[str, Sequence[Mutant]], size: int, seed: int) -> list[Mutant]:
    """About `size` mutants, shuffled: of each module in proportion to how many it has.

    At least two of each module, if `size` is enough for that.
    """
    total = sum(map(len, by_module.values()))
    least = 2 if size >= 2 * len(by_module) else 0
    found = []
    for path, mutants in sorted(by_module.items()):
        count = min(len(mutants), max(least, round(size * len(mutants) / max(1, total))))
        found += random.Random(f"{seed}:{path}").sample(mutants, count)
    random.Random(seed).shuffle(found)
    return found


def _statements(parent: ast.AST, where: str, *, in_function: bool = False) -> Iterator[tuple[str, ast.stmt]]:
    """The statements that functions in and below a node run, with the function each is in."""
    for child in ast.iter_child_nodes(parent):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{where}.{child.name}".removeprefix(".")
            yield from _statements(child, inner, in_function=in_function or not isinstance(child, ast.ClassDef))
            continue
        if in_function and isinstance(child, ast.stmt) and not isinstance(child, ast.Assert):
            yield where, child
        yield from _statements(child, where, in_function=in_function)


def _lines(statement: ast.stmt) -> range:
    """The lines of a statement; of one with a body, those of its head."""
    body = getattr(statement, "body", None)
    end = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return range(statement.lineno, max(end, statement.lineno) + 1)


def _faults(statement: ast.stmt) -> Iterator[_Fault]:
    yield from _removal(statement)
    if isinstance(statement, ast.Return) and statement.value is not None and not _is_empty(statement.value):
        yield _set(statement, "value", ast.Constant(None), f"{ast.unparse(statement)} -> return None")
    if isinstance(statement, ast.If | ast.While):
        yield from _negated(statement, statement.test)
    for node in _expressions(statement):
        yield from _of_expression(node)


def _is_empty(value: ast.expr) -> bool:
    """Whether callers that ask for truth alone can't tell the value from None."""
    return ast.unparse(value) in ("None", "False", "0", "''", "()", "[]", "{}", "frozenset()")


def _removal(statement: ast.stmt) -> Iterator[_Fault]:
    """The statement left out, where the function still makes sense without it."""
    is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Expr | ast.AugAssign | ast.Raise | ast.Delete) and not is_docstring:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Yield):
            return
        change = f"{ast.unparse(statement)} -> pass"
        yield _Fault(change, statement.lineno, lambda: _become(statement, ast.Pass()))
    elif isinstance(statement, ast.Continue):
        yield _Fault("continue -> break", statement.lineno, lambda: _become(statement, ast.Break()))
    elif isinstance(statement, ast.Break):
        yield _Fault("break -> continue", statement.lineno, lambda: _become(statement, ast.Continue()))


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement that run with it: no inner statement, annotation or docstring."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop(0)
        if node is not statement:
            yield node
        for name, value in ast.iter_fields(node):
            if name == "annotation":
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.stmt):
                    pending.append(child)


def _of_expression(node: ast.AST) -> Iterator[_Fault]:
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            yield _set(node, "ops", [*node.ops[:index], _swapped(operator), *node.ops[index + 1 :]])
    elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in _SWAPPED:
        yield _set(node, "op", _swapped(node.op))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        change = f"{ast.unparse(node)} -> {ast.unparse(node.operand)}"
        yield _set(node, "operand", ast.UnaryOp(ast.Not(), node.operand), change)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield _set(node, "op", ast.UAdd())
    elif isinstance(node, ast.IfExp):
        yield from _negated(node, node.test)
    elif isinstance(node, ast.comprehension):
        for index, condition in enumerate(node.ifs):
            others = node.ifs[:index] + node.ifs[index + 1 :]
            yield _set(node, "ifs", others, f"if {ast.unparse(condition)} -> (all)", condition.lineno)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SWAPPED_CALLS:
        yield _set(node, "func", ast.Name(_SWAPPED_CALLS[node.func.id], ast.Load()))
    elif isinstance(node, ast.Constant):
        yield from _constant(node)


def _negated(owner: ast.IfExp | ast.If | ast.While, test: ast.expr) -> Iterator[_Fault]:
    """A condition turned round, where that isn't what another fault does."""
    if not isinstance(test, ast.Compare | ast.UnaryOp):
        change = f"if {ast.unparse(test)}: negated"
        yield _set(owner, "test", ast.UnaryOp(ast.Not(), test), change)


def _constant(node: ast.Constant) -> Iterator[_Fault]:
    value = node.value
    if isinstance(value, bool):
        yield _set(node, "value", not value)
    elif isinstance(value, int | float):
        yield _set(node, "value", value + 1)
    elif isinstance(value, str):
        yield _set(node, "value", f"{value}XX", f"{value!r} -> {value + 'XX'!r}")


def _set(node: ast.AST, field: str, value: object, change: str = "", line: int = 0) -> _Fault:
    """Another value for a field of a node; what that changes is told by the node before and after, if not given."""
    if not change:
        former, text = getattr(node, field), ast.unparse(node)
        setattr(node, field, value)
        change = f"{text} -> {ast.unparse(node)}"
        setattr(node, field, former)

    def apply() -> None:
        setattr(node, field, value)
        ast.fix_missing_locations(node)

    return _Fault(change, line or getattr(node, "lineno", 0), apply)


def _swapped(operator: ast.AST) -> ast.AST:
    return _SWAPPED[type(operator)]()


def _become(statement: ast.stmt, other: ast.stmt) -> None:
    """Turns a statement into another in place, whichever list it stands in."""
    place = {name: getattr(statement, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
    statement.__class__ = other.__class__
    statement.__dict__.clear()
    statement.__dict__.update(place)
