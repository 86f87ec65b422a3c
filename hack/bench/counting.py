"""What a piece of work costs in things that can be counted: the same on every machine, however busy it is."""

from __future__ import annotations

import gc
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
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

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(note)
    try:
        yield counts
    finally:
        sys.setprofile(before)
        gc.enable()


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
