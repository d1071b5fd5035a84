"""Intact frames, and the damage between them: reading on behind a place where no intact frame begins.

For those who look at a damaged log, or save what is left of one. Whoever replays a log stops at the first damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .framing import Frame, FrameDamage, iter_frames
from .log import Log
from .recovery import frames_behind


class Gap(NamedTuple):
    """Bytes from ``start`` to ``stop`` of a log that are no intact frames; ``reason`` says what is wrong with them."""

    start: int
    stop: int
    reason: str


def frames_and_gaps(log: Log, start: int, stop: int) -> Iterator[Frame | Gap]:
    """Everything between two offsets (bytes), in order and without holes: each byte is in a frame or in a gap."""
    at = start
    while at < stop:
        try:
            for frame in iter_frames(log.files, log.fd, at, stop, log.version):
                at = frame.end
                yield frame
        except FrameDamage as damage:
            behind = next(frames_behind(log, damage.offset + 1, stop), None)
            at = stop if behind is None else behind.offset
            yield Gap(damage.offset, at, damage.reason)
