"""Arbitrary bytes, and records that are framed well and make no sense, for everything that reads a queue's files.

Never an error outside the package's own tree, never a hang, never more memory than some of the longest records take.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nobroker_django.engine import lax, records
from nobroker_django.engine.control import MISSING, Control
from nobroker_django.engine.errors import PointerError
from nobroker_django.engine.files import Files
from nobroker_django.engine.framing import Frame, FrameDamage, decode_header, iter_frames, parse_frame
from nobroker_django.engine.generations import Layout, parse_pointer
from nobroker_django.engine.log import Log, beginning
from nobroker_django.engine.projection import Projection
from nobroker_django.engine.records import Snapshot, batch_fields, decode_record
from tests.support.mutations import BODIES, NUMBERS, OTHERS, TEXTS, frame
from tests.support.scripts import NOW
from tests.support.wreck import everything

ROOT = Path(__file__).parents[2]
MODULE = ("-m", "tests.support.fuzzing")
KINDS = [*(int(kind) for kind in records.RecordType), 0, 10, 15, 32, 255]


# -- the decoders


def outcome(read: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, int | None]:
    """What it gives, or where it finds damage; any other error passes through."""
    try:
        return read(*arguments, **options), None
    except FrameDamage as damage:
        return None, damage.offset


@given(st.binary(max_size=200), st.integers(0, 60), st.booleans(), st.sampled_from([1, 2]))
def test_a_frame_is_read_from_any_bytes_or_called_damaged(data: bytes, at: int, last: bool, version: int):
    found, damaged_at = outcome(parse_frame, data, min(at, len(data)), at, last=last, version=version)
    assert damaged_at in (None, at)
    assert found is None or found.end <= at + len(data)


@given(st.binary(max_size=40))
def test_a_header_is_read_from_any_bytes_or_called_damaged(data: bytes):
    assert outcome(decode_header, data)[1] in (None, 0, 14)


@given(st.sampled_from(KINDS), st.one_of(st.binary(max_size=300), st.sampled_from(BODIES)))
@example(1, BODIES[7])
def test_a_record_is_read_from_any_body_or_called_damaged(kind: int, body: bytes):
    for read in (decode_record, batch_fields):
        assert outcome(read, kind, body, 500)[1] in (None, 500)


JSON = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(["id", "n", "u", "at", "payload", "x"]), JSON))
def test_any_json_object_is_a_record_or_called_damaged(kind: int, fields: dict[str, Any]):
    body = json.dumps(fields).encode()
    for read in (decode_record, batch_fields):
        assert outcome(read, kind, body, 500)[1] in (None, 500)


@given(st.binary(max_size=200) | st.sampled_from(BODIES))
def test_an_object_is_taken_apart_or_called_none(body: bytes):
    try:
        found = lax.members(body)
    except (ValueError, RecursionError):
        return
    assert lax.members(lax.joined(found)) == found


PIECES = st.binary(max_size=60) | st.sampled_from([frame(16, b'{"at":1.0,"n":1,"u":0}'), bytes(9)])


@given(st.lists(PIECES, max_size=8))
def test_frames_are_followed_through_any_file_or_end_in_damage(tmp_path_factory, pieces: list[bytes]):
    path = tmp_path_factory.getbasetemp() / f"any-{os.getpid()}"
    path.write_bytes(b"".join(pieces))
    fd = os.open(path, os.O_RDONLY)
    try:
        frames: list[Frame] = []
        _, damaged_at = outcome(lambda: frames.extend(iter_frames(Files(), fd, 0, path.stat().st_size)))
    finally:
        os.close(fd)
    ends = [0, *(one.end for one in frames)]
    assert [one.offset for one in frames] == ends[:-1]
    assert damaged_at in (None, ends[-1]) or not frames  # those before the damage are lost to ``extend``


@given(st.binary(max_size=100))
def test_control_words_of_any_bytes_are_words_or_missing(tmp_path_factory, data: bytes):
    path = tmp_path_factory.getbasetemp() / f"words-{os.getpid()}"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        words = Control(Files(), fd).read()
    finally:
        os.close(fd)
    assert (words == MISSING) == (not data.startswith(b"NBWORDS2") or len(data) < 88 or not any(data[8:88]))


@given(st.binary(max_size=30) | st.from_regex(rb"\A[0-9]{1,9}\n?\Z"))
def test_a_pointer_of_any_bytes_names_a_log_that_is_there_or_is_refused(tmp_path_factory, data: bytes):
    layout = Layout.of(tmp_path_factory.getbasetemp(), "nothing")
    with pytest.raises(PointerError):
        parse_pointer(Files(), layout, data)


# -- records with a right checksum


def plausible(kind: int) -> dict[str, Any]:
    """A record of a type that says what is needed, and nothing else."""
    needed = {"id": "a", "payload": 1, "enqueued_at": 1.0, "max_attempts": 3, "at": 1.0, "deadline": 2.0,
              "attempts": 1, "token": "t", "keep_until": 1.0, "log_id": "1"}  # fmt: skip
    fields = msgspec.structs.fields(records._BUILT[kind])
    return {one.name: needed[one.name] for one in fields if one.required} | {"n": 1, "u": 0}


@pytest.mark.contract("LOG-07")
@pytest.mark.parametrize("kind", sorted(records._BUILT))
def test_any_value_in_any_field_is_folded_or_called_damaged(fast_path: Path, kind: int):
    """What is decoded, a projection can hold: nothing else than damage comes out of a replay."""
    path = fast_path / "q.000001.log"
    path.write_bytes(beginning(1, Snapshot(log_id="1", at=1.0)))
    log = Log(Files(), path, 1)
    before = [] if kind == 1 else [plausible(1)] if kind == 2 else [plausible(1), plausible(2)]
    folded = 0
    for name in records._BUILT[kind].__struct_fields__:
        for value in [*NUMBERS, *TEXTS, *OTHERS]:
            body = json.dumps({**plausible(kind), name: value}).encode()
            projection = Projection.private(log)
            try:
                with projection.unit() as unit:
                    for number, fields in enumerate(before):
                        log.fold(unit, decode_record(number + 1, json.dumps(fields).encode(), 50), 50 + number)
                    log.fold(unit, decode_record(kind, body, 100), 100)
                    folded += 1
            except FrameDamage:
                pass
            finally:
                projection.close()
    log.release()
    assert folded > len(NUMBERS)


# -- whole directories


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sound") / "queue"
    everything(directory)
    return directory


def fuzz(sound: Path, scratch: Path, first: int, count: int, *module: str) -> dict[str, int]:
    """Spoil and try in a process of its own; how often each outcome was seen.

    Raises:
        AssertionError: it ended otherwise than well, or something came out that must not.
    """
    done = subprocess.run(
        [sys.executable, *(module or MODULE), str(sound), str(scratch), str(first), str(count)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    last = max(line["seed"] for line in lines if "seed" in line)
    problems = [f"seed {line['seed']}: {line['problem']}" for line in lines if "problem" in line]
    assert not problems, f"{len(problems)}, the first: {problems[0]}"
    assert done.returncode == 0, f"seed {last}: ended with {done.returncode}: {done.stderr[-2000:]}"
    outcomes: dict[str, int] = lines[-1]["outcomes"]
    print(f"seeds {first} to {last}: {outcomes}")
    return outcomes


@pytest.mark.contract("API-03", "LOG-07", "LOG-08")
@pytest.mark.parametrize("share", range(2))
def test_spoilt_directories(sound: Path, fast_path: Path, share: int):
    outcomes = fuzz(sound, fast_path, share * 100, 60)
    assert outcomes["well"] > 100
    assert outcomes["CorruptLogError"] > 50


@pytest.fixture(scope="module")
def sound_of_version_1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("nobroker")
    from tests.support import version1

    directory, time = tmp_path_factory.mktemp("old") / "queue", [NOW]

    def advance(seconds: float) -> None:
        time[0] += seconds

    with version1.opened(directory, lambda: time[0]) as old:
        version1.fill(old, advance)
    return directory


@pytest.mark.contract("API-03", "LOG-03", "LOG-07")
def test_spoilt_directories_of_version_1(sound_of_version_1: Path, fast_path: Path):
    outcomes = fuzz(sound_of_version_1, fast_path, 0, 50)
    assert outcomes["well"] > 50
    assert outcomes["CorruptLogError"] > 50


@pytest.mark.long
@pytest.mark.contract("API-03", "LOG-03", "LOG-07")
@pytest.mark.parametrize("share", range(4))
def test_many_spoilt_directories_of_version_1(sound_of_version_1: Path, fast_path: Path, share: int):
    fuzz(sound_of_version_1, fast_path, 40_000 + share * 1000, 1000)


@pytest.mark.long
@pytest.mark.contract("API-03", "LOG-07", "LOG-08")
@pytest.mark.parametrize("share", range(20))
def test_many_spoilt_directories(sound: Path, fast_path: Path, share: int):
    fuzz(sound, fast_path, 10_000 + share * 1000, 1000)


# -- the oracle is not blind


PLANTS = {
    "an error of another kind": "log.decode_record = lambda kind, body, offset: records._decoders[kind].decode(body)",
    "memory by the length field": "framing.parse_frame = lambda *arguments, **options: bytearray(1 << 30)",
    "a search without an end": "recovery._intact = lambda *arguments: time.sleep(100)",
}


@pytest.mark.parametrize("plant", PLANTS)
def test_the_fuzzer_finds(sound: Path, fast_path: Path, tmp_path: Path, plant: str):
    module = tmp_path / "planted.py"
    module.write_text(
        f"""
import sys, time
from pathlib import Path
from nobroker_django.engine import framing, log, records, recovery
{PLANTS[plant]}
from tests.support import fuzzing
fuzzing.SECONDS = 2
fuzzing.run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
"""
    )
    with pytest.raises(AssertionError, match=r"the first: seed \d+: |ended with -14"):
        fuzz(sound, fast_path, 0, 30, str(module))


# -- much of it


@pytest.mark.contract("LOG-07", "LOG-08")
@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(bytes(4096) + b"x", id="zeros"),
        pytest.param(b'{"' * 2048, id="beginnings"),
        pytest.param(bytes(range(256)), id="bytes"),
        pytest.param(b"\xff\xff\x7f\0\x01crc!" + b'{"' + b"-" * 60, id="long records"),
        pytest.param(b'\0\1....{"' + b"-" * 60, id="heads"),
    ],
)
def test_a_large_stretch_of_garbage_takes_neither_long_nor_much_memory(sound: Path, fast_path: Path, garbage: bytes):
    shutil.copytree(sound, fast_path / "sound")
    [log] = (fast_path / "sound").glob("*.log")
    data = log.read_bytes()
    with log.open("r+b") as file:
        file.seek(len(data) // 2)
        for _ in range(8):
            file.write(garbage * (1024 * 1024 // len(garbage)))
        file.write(data[len(data) // 2 :])
    fuzz(fast_path / "sound", fast_path, -1, 1)
