"""When a compaction pays: two numbers."""

from __future__ import annotations

from dataclasses import dataclass

from . import options
from .errors import InvalidOptionError

_LARGEST_LOG = 1 << 40


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """A compaction pays when the log has ``min_bytes`` or more and the share ``dead_ratio`` of them is dead.

    Dead is what the next compaction would leave out.

    Raises:
        InvalidOptionError: ``min_bytes`` is no size, or ``dead_ratio`` not above 0 and at most 1.
    """

    min_bytes: int = 64 * 1024 * 1024
    dead_ratio: float = 0.5

    def __post_init__(self) -> None:
        options.integer("compaction.min_bytes", self.min_bytes, least=0, most=_LARGEST_LOG)
        ratio = self.dead_ratio
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
            raise InvalidOptionError(
                "compaction.dead_ratio", f"must be above 0 and at most 1, not {options.shown(ratio)}"
            )
