"""Where the driver may be interrupted by an exception out of nowhere, and where that would hurt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_DRIVER = frozenset({"pymongo", "bson", "gridfs"})
_WAITING = "pymongo.network_layer"
"""While it speaks to a server the driver expects anything: whatever is raised closes the connection."""


def may_interrupt(frame: FrameType | None) -> bool:
    """Say whether an exception may be raised in this frame.

    Between a question and its answer the driver would give the connection back to its pool with the answer unread: the
    next caller fails, and the abort of a transaction that must be undone is such a caller. In the log's own code it
    could leave a lock taken. Both are left again within moments.
    """
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        root = module.partition(".")[0]
        if module == _WAITING:
            return True
        if root in _DRIVER or root == "logging":
            return False
        if root not in sys.stdlib_module_names:
            # Foreign code, also where the driver called it.
            return True
        frame = frame.f_back
    return True
