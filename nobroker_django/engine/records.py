"""What a frame means: the record types, their fields, and a write's batch of records.

Invariant: a record says everything that replay needs; times, random values and ids are in it, because whoever wrote it
put them there. Fields that hold their default are left out. Unknown fields are ignored (a newer release may have
written them); a field of the wrong type, an unknown type, or one that this release does not build is refused with the
offset, never skipped.

The first record of every write carries ``n``, the number of records of the write (a batch counts only when all of them
are there), and ``u``, how many bytes before it were not yet known to be durable when it was written.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from . import lax
from .errors import SerializationError
from .framing import MAX_BATCH_BYTES, MAX_BODY_BYTES, FrameDamage, encode_frame, encode_frames

# What a projection can hold. A number outside is in no record that a writer makes.
Int32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Natural = Annotated[int, Meta(ge=0, le=1 << 62)]
NULL = Raw(b"null")  # left out on disk, like every default


class RecordType(enum.IntEnum):
    """One byte on disk. 1-9 are those of version 1; the numbers are frozen, built or not."""

    ENQUEUE = 1
    LEASE = 2
    ACK = 3
    NACK = 4
    RECLAIM = 5
    DEAD = 6
    REQUEUE = 7
    PURGE = 8
    EXTEND = 9
    OPEN = 16
    STARTED = 17
    RELEASE = 18
    PAUSE = 19
    RESUME = 20
    CANCEL = 21
    RESCHEDULE = 22
    WORKER = 23
    LIMIT = 24
    NOTE = 25
    PROGRESS = 26
    TOMBSTONE = 27
    SNAPSHOT = 28
    SCHEDULE = 29
    GROUP = 30
    META = 31


class Record(Struct, omit_defaults=True, gc=False, kw_only=True):
    """Fields of every record; ``n`` and ``u`` stand in the first of a write only."""

    TYPE: ClassVar[RecordType]

    n: int | UnsetType = UNSET
    u: int | UnsetType = UNSET


class Batched(Record, kw_only=True):
    """``n`` and ``u`` alone, for walking over batches without decoding the rest."""


class Enqueue(Record, kw_only=True):
    """A job, new or copied by a compaction.

    Copied: ``seq`` is set, and the fields below it hold the state. A finished job is copied as leased, with its
    ``ACK`` behind it; earlier failures follow as ``NOTE`` records. Carried over, because it was enqueued while the
    compaction ran: ``carried`` is the ``seq`` that it had, and the records of what became of it follow.

    ``known_until``: this write may come again until then (see ``once``), so the job is kept until then, whatever
    becomes of it.
    """

    TYPE = RecordType.ENQUEUE

    id: str
    payload: Raw
    enqueued_at: float
    max_attempts: Int32
    priority: Int32 = 0
    available_at: float | None = None
    visibility_timeout: float | None = None
    meta: Raw = NULL
    carried: Natural | None = None
    known_until: float | None = None

    seq: Natural | None = None
    state: str = "ready"
    attempts: Int32 = 0
    rank: float | None = None
    waits: bool = False
    lease_deadline: float | None = None
    lease_token: str | None = None
    holder: str | None = None
    started_at: float | None = None
    extensions: Natural = 0
    deaths: Natural = 0
    finished_at: float | None = None


class Lease(Record, kw_only=True):
    """A delivery. ``attempts`` is the number of this one.

    ``holder`` names the worker (see ``liveness``), if one has it; ``begins``: the job is run at once.
    """

    TYPE = RecordType.LEASE

    id: str
    at: float
    deadline: float
    attempts: Int32
    token: str
    holder: str | None = None
    begins: bool = False


class Extend(Record, kw_only=True):
    """A lease lasts longer."""

    TYPE = RecordType.EXTEND

    id: str
    at: float
    deadline: float
    token: str | None = None


class Started(Record, kw_only=True):
    """The holder of a lease has begun to run the job."""

    TYPE = RecordType.STARTED

    id: str
    at: float
    token: str


class Release(Record, kw_only=True):
    """A lease given back unused: the attempt is not counted, the job returns to its place."""

    TYPE = RecordType.RELEASE

    id: str
    at: float
    token: str


class Ack(Record, kw_only=True):
    """The job is done. Its id stays known until ``keep_until``. ``worker`` is the name of who ran it, if any."""

    TYPE = RecordType.ACK

    id: str
    at: float
    keep_until: float
    token: str | None = None
    result: Raw = NULL
    worker: str | None = None


class Failure(Record, kw_only=True):
    """What a failed attempt leaves behind (texts are cut by the writer); ``worker`` as in ``Ack``."""

    id: str
    at: float
    attempts: Int32 = 0
    error: str | None = None
    error_class: str | None = None
    traceback: str | None = None
    worker: str | None = None


class Nack(Failure, kw_only=True):
    """A failed attempt; eligible again at ``available_at`` (None: at once)."""

    TYPE = RecordType.NACK

    available_at: float | None = None
    token: str | None = None


class Reclaim(Failure, kw_only=True):
    """A lease taken back, of which the time is over, or whose holder has died (``died``).

    Eligible again at ``available_at`` (None: at once).
    """

    TYPE = RecordType.RECLAIM

    available_at: float | None = None
    died: bool = False


class Dead(Failure, kw_only=True):
    """A job moves to the dead-letter queue; ``died``: its last delivery ended with its worker."""

    TYPE = RecordType.DEAD

    token: str | None = None
    died: bool = False


class Note(Failure, kw_only=True):
    """An earlier failed attempt, copied by a compaction; changes no state."""

    TYPE = RecordType.NOTE


class Requeue(Record, kw_only=True):
    """A dead letter becomes ready again, with a fresh budget of attempts."""

    TYPE = RecordType.REQUEUE

    id: str
    at: float


class Purge(Record, kw_only=True):
    """Every job of the queue is forgotten, or those named by ``ids``."""

    TYPE = RecordType.PURGE

    at: float
    ids: list[str] | None = None


class Open(Record, kw_only=True):
    """The tail was secured: everything before this record is durable. Fencing tokens count from the last one."""

    TYPE = RecordType.OPEN

    at: float


class Snapshot(Record, kw_only=True):
    """First record of every generation: whose log it is, and the counters at the moment of the copies.

    ``seq`` of a record is ``base`` + its offset. ``open`` is the seq of the last ``OPEN`` before, or one above.
    ``copies`` is how many records follow that were there when the generation became live. ``clock`` is the highest
    rank given so far.
    """

    TYPE = RecordType.SNAPSHOT

    log_id: str
    at: float
    base: Natural = 0
    open: Natural = 0
    clock: float = 0.0
    copies: Natural = 0
    enqueued_total: Natural = 0
    ignored: Natural = 0


_BUILT: dict[int, type[Record]] = {
    int(cls.TYPE): cls
    for cls in (
        Enqueue, Lease, Extend, Started, Release, Ack, Nack, Reclaim, Dead, Note, Requeue, Purge, Open, Snapshot
    )
}  # fmt: skip
BUILT_TYPES = frozenset(_BUILT)
_decoders = {number: msgspec.json.Decoder(cls) for number, cls in _BUILT.items()}
_batched_decoder = msgspec.json.Decoder(Batched)
_encoder = msgspec.json.Encoder()


def encode_body(record: Record) -> bytes:
    """The JSON object of a record.

    Raises:
        SerializationError: it takes more than 8 MiB.
    """
    body = _encoder.encode(record)
    if len(body) > MAX_BODY_BYTES:
        raise SerializationError(
            f"the record takes {len(body)} bytes, the limit is {MAX_BODY_BYTES}. Nothing was stored."
        )
    return body


class EnqueueTemplate:
    """Bodies of many new jobs that differ by id and payload alone, without encoding each field of each anew."""

    _BEGIN: ClassVar[bytes] = b'{"id":"","payload":null'

    def __init__(self, **fields: Any) -> None:
        """Args: the fields of ``Enqueue`` that all of the jobs share."""
        body = encode_body(Enqueue(id="", payload=NULL, **fields))
        assert body.startswith(self._BEGIN)
        self._rest = body[len(self._BEGIN) :]

    def body(self, job_id: str, payload: bytes) -> bytes:
        """The body of one job; its id is one of ``new_job_ids``, which JSON need not escape."""
        return b'{"id":"%b","payload":%b%b' % (job_id.encode(), payload, self._rest)


def decode_record(kind: int, body: bytes, offset: int) -> Record:
    """The record of an intact frame.

    Raises:
        FrameDamage: an unknown or not yet built type, JSON of another shape, or a field of the wrong type.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        raise FrameDamage(offset, _unknown(kind))
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        laxly = _decode_laxly(body) if kind == RecordType.ENQUEUE else None
        if laxly is not None:
            return laxly
        raise FrameDamage(offset, f"the {RecordType(kind).name} record is malformed: {error}") from None


def _decode_laxly(body: bytes) -> Enqueue | None:
    """An ENQUEUE whose payload came from version 1 and is JSON for the standard library alone; ``None``: it is not."""
    try:
        members = lax.members(body)
        payload = Raw(members.pop("payload"))
        record = _decoders[RecordType.ENQUEUE].decode(lax.joined({**members, "payload": b"null"}))
    except (ValueError, KeyError, RecursionError, msgspec.DecodeError):
        return None
    assert isinstance(record, Enqueue)
    record.payload = payload
    return record


def batch_fields(kind: int, body: bytes, offset: int) -> tuple[int, int] | None:
    """``(n, u)`` of a record that begins a batch, ``None`` for one inside.

    Raises:
        FrameDamage: the body is no JSON object, or the two fields are not sensible numbers.
    """
    try:
        fields = _decode_batched(body)
    except (ValueError, RecursionError) as error:
        raise FrameDamage(offset, f"the record of type {kind} is malformed: {error}") from None
    if fields.n is UNSET:
        return None
    if fields.u is UNSET or fields.n < 1 or not 0 <= fields.u <= offset:
        raise FrameDamage(offset, f"the batch fields n and u are not plausible ({fields.n!r}, {fields.u!r})")
    return fields.n, fields.u


def _decode_batched(body: bytes) -> Batched:
    try:
        return _batched_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        members = lax.members(body)  # a payload of version 1 may be JSON for the standard library alone
        return _batched_decoder.decode(lax.joined({name: members[name] for name in ("n", "u") if name in members}))


def with_batch_fields(body: bytes, count: int, unsynced: int) -> bytes:
    """``body`` with ``n`` and ``u`` set; it must not have them yet."""
    return b'%s,"n":%d,"u":%d}' % (body[:-1], count, unsynced)


def encode_batch(kinds: Sequence[int], bodies: Sequence[bytes], unsynced: int) -> tuple[bytes, int, list[int]]:
    """One write of several records.

    Args:
        kinds: the type of each record.
        bodies: the JSON object of each, without batch fields.
        unsynced: how many bytes before the write are not known to be durable.

    Returns:
        The bytes, where the last frame begins among them, and where each frame begins.

    Raises:
        SerializationError: all together take more than 256 MiB.
    """
    first = with_batch_fields(bodies[0], len(bodies), unsynced)
    if len(bodies) == 1:
        return encode_frame(kinds[0], first), 0, [0]
    data, starts = encode_frames(kinds, [first, *bodies[1:]])
    check_batch_size(len(data))
    return data, starts[-1], starts


def check_batch_size(size: int) -> None:
    """Refuse a write that is too large to be atomic.

    Raises:
        SerializationError: more than 256 MiB.
    """
    if size > MAX_BATCH_BYTES:
        raise SerializationError(
            f"the jobs of one call take {size} bytes, the limit is {MAX_BATCH_BYTES}. Nothing was stored. "
            "Use several calls.",
            path="payloads",
        )


def _unknown(kind: int) -> str:
    try:
        return f"record type {kind} ({RecordType(kind).name}) is not built in this release; a newer one wrote it"
    except ValueError:
        return f"record type {kind} is unknown"
