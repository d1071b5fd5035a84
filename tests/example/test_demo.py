"""`manage.py demo`: it holds, it notices when something does not, and it clears up after itself."""

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

import pytest

from tests.example.support import PROJECT, manage, site_environment

CLAIMS = [
    "jobs of a committed transaction are stored",
    "a rolled back transaction leaves no job and no file",
    "a worker was killed in the middle of a job",
    "its job came back and was done",
    "refused webhooks were retried until they were taken",
    "the broken photograph ended as the only dead letter",
    "it was requeued after the fix and done",
    "the compaction made the log smaller and kept the counts",
    "the running site and workers followed to the new log",
    "the workers stopped when asked to",
    "the numbers add up",
    "every job is there once",
    "every photograph is ready",
    "every thumbnail exists exactly once",
    "every webhook was refused, retried and taken",
    "every upload had its notice",
    "the gallery shows every photograph",
]

T = TypeVar("T")

# One demo is played for all tests of this group.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("demo")]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """One run with --keep: what it printed, and its directory."""
    base = tmp_path_factory.mktemp("demo")
    started = time.monotonic()
    done = manage("demo", "--keep", cwd=base, TMPDIR=str(base))
    seconds = time.monotonic() - started
    (directory,) = base.glob("photo-album-*")
    return done, directory, seconds


@pytest.fixture
def album(played, tmp_path):
    """A copy of the data of that run, to be damaged."""
    _, directory, _ = played
    # A named pipe cannot be copied: the bell of the workers, which has nothing in it anyway.
    shutil.copytree(directory, tmp_path / "album", ignore=shutil.ignore_patterns("bell"))
    return tmp_path / "album"


@pytest.mark.contract("DJ-01", "DJ-02", "RETRY-02", "RETRY-03", "COMP-03")
def test_everything_holds(played):
    done, _, seconds = played
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    assert re.search(rf"All {len(CLAIMS)} checks held", done.stdout)
    for claim in CLAIMS:
        assert re.search(rf"^  ok +{re.escape(claim)}  ", done.stdout, re.MULTILINE), claim
    assert done.stderr == ""
    assert seconds < 60


def test_the_worker_was_really_killed_and_replaced(played):
    done, directory, _ = played
    (pid,) = re.findall(r"Killed worker process (\d+) with SIGKILL", done.stdout)
    assert not Path(f"/proc/{pid}").exists()
    assert pid in (directory / "logs" / "worker.log").read_text()


def test_no_process_is_left(played):
    _, directory, _ = played
    assert processes_of(directory) == []


def test_the_kept_album_is_good(album):
    done = manage("check_album", cwd=album, data=album)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda thumbnails: next(thumbnails.glob("*-thumb.jpg")).unlink(), "-thumb.jpg is missing"),
        (lambda thumbnails: next(thumbnails.glob("*-large.jpg")).write_bytes(b""), "-large.jpg cannot be decoded"),
        (lambda thumbnails: (thumbnails / "one-too-many.jpg").write_bytes(b""), "belongs to no photograph"),
    ],
    ids=["missing", "empty", "too many"],
)
def test_a_planted_fault_is_found(album, damage, complaint):
    damage(album / "media" / "thumbnails")
    done = manage("check_album", cwd=album, data=album)
    assert done.returncode == 1
    assert complaint in done.stdout
    assert "FAILED  every thumbnail exists exactly once" in done.stdout


def test_a_fault_makes_the_demo_fail(tmp_path):
    """While the demo runs, somebody deletes a thumbnail that is finished: the table and the exit code say so."""
    with demo(tmp_path) as process:
        assert process.stdout is not None
        # By then the work on the photographs uploaded so far is over: nobody makes the thumbnail anew.
        told = "".join(iter_until(process.stdout, "Compacted the log"))
        thumbnail = next(tmp_path.glob("photo-album-*/media/thumbnails/*-thumb.jpg"))
        thumbnail.unlink()
        output = told + process.communicate(timeout=90)[0]
    assert process.returncode == 1, output
    assert re.search(
        r"^  FAILED +every thumbnail exists exactly once +1 wrong: .* is missing", output, re.MULTILINE
    ), output
    assert "FAILED: " in output
    # The directory is kept for a look.
    assert str(thumbnail.parent.parent.parent) in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_everything(tmp_path, number):
    with demo(tmp_path) as process:
        wait_for(lambda: next(tmp_path.glob("photo-album-*/media/thumbnails/*.jpg"), None))
        (directory,) = tmp_path.glob("photo-album-*")
        assert processes_of(directory)
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Interrupted" in output
    assert processes_of(directory) == []
    assert not directory.exists()


def test_photographs_of_ones_own(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("moose.jpg", "pika.jpg"):
        shutil.copy(PROJECT / "photos" / name, photos)
    (photos / "unreadable.jpg").write_bytes(b"not a picture")
    done = manage("demo", "--photos", str(photos), cwd=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unreadable.jpg is left out" in done.stdout
    assert sorted(path.name for path in photos.iterdir()) == ["moose.jpg", "pika.jpg", "unreadable.jpg"]
    assert list(tmp_path.glob("photo-album-*")) == []


def test_a_directory_without_photographs_is_refused_before_anything_is_begun(tmp_path):
    done = manage("demo", "--photos", str(tmp_path / "nowhere"), cwd=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert "CommandError: the photographs cannot be read" in done.stderr
    assert list(tmp_path.iterdir()) == []


def demo(base: Path) -> subprocess.Popen[str]:
    """Start the demo with its directory below `base`."""
    return subprocess.Popen(
        [sys.executable, str(PROJECT / "manage.py"), "demo"],
        cwd=base,
        env=site_environment(None) | {"TMPDIR": str(base), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell ignores SIGINT for what runs in the background, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def iter_until(stream: IO[str], text: str) -> Iterator[str]:
    """The lines of a stream up to the one with that text."""
    for line in stream:
        yield line
        if text in line:
            return


def wait_for(look: Callable[[], T | None], seconds: float = 60.0) -> T:
    """Wait until `look` returns something and return that."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


def processes_of(directory: Path) -> list[int]:
    """The processes that were started for the data directory of a demo."""
    wanted = f"PHOTO_ALBUM_DATA={directory}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
        except OSError:  # it ended meanwhile, or belongs to somebody else
            continue
    return found
