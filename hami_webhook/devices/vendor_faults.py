"""Count and log unexpected exceptions of vendors' rules; each affects only the node on which it occurred.

Registrations of nodes and annotations of pods are untrusted data. If a rule fails on such data, that node refuses the
pod, and all other nodes answer as usual (docs/spec/core.md#7.5).
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict

from hami_webhook.devices.reasons import NODE_INTERNAL_ERROR, Rejection

logger = logging.getLogger(__name__)

_MOST_LOGGED = 4096
"""As many pairs of a node and a line of code are remembered as logged."""


class VendorFaults:
    """`counts` has the faults so far, by the step they were met in: `registration`, `usage`, `fit` or `score`.

    The program logs a traceback once per node and line of code, however often pods meet the same fault.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._logged: OrderedDict[tuple[str, str, str, int], None] = OrderedDict()

    def record(self, step: str, node: str, error: Exception) -> Rejection:
        """Count a fault and log it; the node's refusal."""
        self.counts[step] += 1
        key = (step, node, *_place(error))
        if key not in self._logged:
            logger.error("the rules of a vendor failed on a node (%s)", step, extra={"node": node}, exc_info=error)
        self._logged[key] = None
        self._logged.move_to_end(key)
        if len(self._logged) > _MOST_LOGGED:
            self._logged.popitem(last=False)
        return Rejection(bare=NODE_INTERNAL_ERROR)


def _place(error: Exception) -> tuple[str, int]:
    """The file and the line that raised."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return ("", 0) if traceback is None else (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
