"""The example site stands on its own: its tests, its checks, its migrations, its first minute."""

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.example.support import PROJECT, manage, site_environment

TEST_MODULES = sorted(path.stem for path in (PROJECT / "album" / "tests").glob("test_*.py"))


@pytest.mark.parametrize("module", TEST_MODULES)
def test_the_site_passes_its_own_tests(module, tmp_path):
    done = manage("test", f"album.tests.{module}", cwd=tmp_path, data=tmp_path / "data")
    assert done.returncode == 0, done.stderr
    # A module that Django does not find passes with no test run.
    assert "Ran 0 tests" not in done.stderr


def test_the_site_has_no_complaints_and_no_missing_migration(tmp_path):
    for command in (["check"], ["makemigrations", "--check", "--dry-run"]):
        done = manage(*command, cwd=tmp_path, data=tmp_path / "data")
        assert done.returncode == 0, done.stdout + done.stderr


def test_migrate_and_work_are_all_it_takes(tmp_path):
    data = tmp_path / "data"
    assert manage("migrate", "--verbosity=0", cwd=tmp_path, data=data).returncode == 0
    script = (
        "from pathlib import Path\n"
        "from django.core.files.uploadedfile import SimpleUploadedFile as File\n"
        "from album.adding import add_photos\n"
        f"photo = File('kingfisher.jpg', Path({str(PROJECT / 'photos' / 'kingfisher.jpg')!r}).read_bytes())\n"
        "add_photos([photo], 'visitor@example.org', 'http://127.0.0.1:9/')\n"
    )
    added = manage("shell", "--command", script, cwd=tmp_path, data=data)
    assert added.returncode == 0, added.stderr
    worked = manage("nobroker_work", "--max-jobs", "2", cwd=tmp_path, data=data)
    assert worked.returncode == 0, worked.stderr
    (queue,) = json.loads(manage("nobroker_stats", "--json", cwd=tmp_path, data=data).stdout)["queues"]
    # The webhook's job is the third; nobody answers at that address.
    assert (queue["done"], queue["enqueued_total"]) == (2, 3)
    assert len(list((data / "media" / "thumbnails").iterdir())) == 2
    assert len(list((data / "mail").iterdir())) == 1


def test_runserver_shows_the_pages(tmp_path):
    data = tmp_path / "data"
    assert manage("migrate", "--verbosity=0", cwd=tmp_path, data=data).returncode == 0
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, str(PROJECT / "manage.py"), "runserver", "--noreload", "127.0.0.1:0"],
            env=site_environment(data) | {"PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        address = wait_for_address(log, server)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for path, content in [
            ("/", b"No photographs yet"),
            ("/upload/", b"csrfmiddlewaretoken"),
            ("/queue/", b"Done"),
        ]:
            with opener.open(address + path, timeout=60) as response:
                assert content in response.read()
        with opener.open(f"{address}/static/album/style.css", timeout=60) as response:
            assert response.headers.get_content_type() == "text/css"
    finally:
        server.terminate()
        server.wait(60)


def wait_for_address(log: Path, server: subprocess.Popen[bytes]) -> str:
    """The address that runserver prints when it listens."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for word in log.read_text().split():
            if word.startswith("http://127.0.0.1:"):
                return word.rstrip("/")
        assert server.poll() is None, log.read_text()
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def test_a_checkout_runs_without_being_installed(tmp_path):
    """manage.py finds the package beside it; PYTHONSAFEPATH keeps the working directory out of it."""
    done = manage("check", cwd=tmp_path, data=tmp_path / "data", PYTHONSAFEPATH="", PYTHONPATH="")
    assert done.returncode == 0, done.stderr


def test_every_photograph_has_its_source_noted():
    readme = (PROJECT / "photos" / "README.md").read_text()
    photos = sorted(path.name for path in (PROJECT / "photos").glob("*.jpg"))
    rows = [line for line in readme.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == photos
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[2]
        assert cells[3] in ("CC0", "public domain")
        assert cells[5]
    assert sum((PROJECT / "photos" / name).stat().st_size for name in photos) < 4_000_000
