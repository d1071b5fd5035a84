"""How a delivery ended, ready to be recorded: what can be refused is refused before a lock is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import Raw

from . import options
from .failures import FailureText, describe
from .job import Job
from .payload import MAX_RESULT_BYTES, encode_payload
from .records import NULL


@dataclass(slots=True)
class Ended:
    """How a delivery ended. Made by ``succeeded``, ``failed`` and ``given_back``.

    ``job`` may be an id alone, without a fencing token: the operator's tool. ``worker`` is what the worker that ran it
    calls itself, for people.
    """

    job: Job | str
    result: Raw | None = None
    failure: FailureText | None = None
    delay: float | None = None
    final: bool = False
    worker: str | None = None

    @classmethod
    def succeeded(cls, job: Job | str, result: Any = None, *, worker: str | None = None) -> Ended:
        """The job is done.

        Raises:
            SerializationError: the result is no JSON value of at most 1 MiB.
        """
        encoded = NULL if result is None else Raw(encode_payload(result, what="result", limit=MAX_RESULT_BYTES))
        return cls(job, result=encoded, worker=worker)

    @classmethod
    def failed(
        cls,
        job: Job | str,
        error: str | BaseException | None,
        *,
        delay: float | None = None,
        final: bool = False,
        worker: str | None = None,
    ) -> Ended:
        """The attempt failed.

        Args:
            delay: seconds before the next attempt, instead of the backoff's.
            final: no other attempt is made, whatever number is left.

        Raises:
            InvalidOptionError: the delay is not valid.
        """
        wait = None if delay is None else options.seconds("delay", delay)
        return cls(job, failure=describe(error), delay=wait, final=final, worker=worker)

    @classmethod
    def given_back(cls, job: Job) -> Ended:
        """The delivery does not count."""
        return cls(job)
