"""What a piece of work costs in things that can be counted: the same on every machine, however busy it is."""

from __future__ import annotations

import gc
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

TraceFunction = Callable[[FrameType, str, object], "TraceFunction | None"]
_OWN = "hami_webhook"
_GOES_ON = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


@contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Counts the calls of the program's own functions, by `module:qualified name`, while the block runs.

    Comprehensions are not functions to the reader, and are left out. A coroutine or generator counts once, however
    often it goes on: some pause when a slice of time is over, which a slow machine reaches sooner. No garbage is
    collected meanwhile: what goes with earlier objects calls our functions, too.
    """
    counts: Counter[str] = Counter()
    begun: set[FrameType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code.co_name.startswith("<") or frame in begun:
            return
        package, _, module = frame.f_globals.get("__name__", "").partition(".")
        if package == _OWN:
            counts[f"{module}:{frame.f_code.co_qualname}"] += 1
            if frame.f_code.co_flags & _GOES_ON:
                begun.add(frame)

    with _profiled(note):
        yield counts


@contextmanager
def ordered_calls(left_out: Collection[str] = ()) -> Iterator[list[tuple[str, str]]]:
    """Lists the calls of the program's own functions in their order: the modules of the caller and of the called one.

    The caller is the nearest own function, and empty where an event loop calls. Lambdas count, as they are what one
    package hands to another; all else is as in `counted_calls`. Modules that are `left_out` stand for another program:
    neither their functions count, nor what these call.
    """
    calls: list[tuple[str, str]] = []
    begun: set[FrameType] = set()
    outside: set[FrameType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_name
        module = _own_module(frame)
        if event != "call" or not module or frame in begun or (name.startswith("<") and name != "<lambda>"):
            return
        if frame.f_code.co_flags & _GOES_ON:
            begun.add(frame)
        caller = frame.f_back
        while caller is not None and not _own_module(caller):
            caller = caller.f_back
        # a comprehension is a frame of its own on Python 3.11, which nothing noted
        if module in left_out or caller in outside or (caller is not None and _own_module(caller) in left_out):
            outside.add(frame)
        else:
            calls.append(("" if caller is None else _own_module(caller), module))

    with _profiled(note):
        yield calls


@contextmanager
def _profiled(note: Callable[[FrameType, str, object], None]) -> Iterator[None]:
    """Have `note` called with each call; no garbage is collected meanwhile, as that calls functions, too."""
    before = sys.getprofile()
    gc.disable()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
        gc.enable()


def _own_module(frame: FrameType) -> str:
    package, _, module = frame.f_globals.get("__name__", "").partition(".")
    return module if package == _OWN else ""


@contextmanager
def counted_opcodes(file: str) -> Iterator[list[int]]:
    """Counts the bytecode instructions run in functions of one source file while the block runs: `counts[0]`."""
    counts = [0]

    def trace(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        if not frame.f_code.co_filename.endswith(file):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            counts[0] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield counts
    finally:
        sys.settrace(before)
