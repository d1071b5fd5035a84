"""What a page stands on: projections that are missing, behind, damaged or replaced; threads, forks, descriptors.

The lists never lag behind unnoticed, never fail, and leave every byte where it was.
"""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient, Client

from nobroker_django import Queue, ReadOnlyError
from nobroker_django.admin_support import source
from nobroker_django.admin_support.connection import alias_of, close_connections, connection_of, reading
from nobroker_django.engine.control import Control
from nobroker_django.engine.files import Files
from nobroker_django.models import DeadLetter, Job
from nobroker_django.queues import close_queues, get_queue
from tests.support.bytes import log_end

from .admin_helpers import DEAD, JOBS, call, contents, fresh_queue, listed, notice, one_of_each_state, open_descriptors


@pytest.fixture
def no_copies(monkeypatch):
    """Every projection that is behind counts as large: it is shown as it is."""
    monkeypatch.setattr(source, "LARGEST_COPY_BYTES", 0)


@pytest.fixture
def no_replays(monkeypatch, no_copies):
    """Every log counts as long: none is replayed for a page."""
    monkeypatch.setattr(source, "LARGEST_REPLAY_BYTES", 0)


def index_files(directory: Path) -> list[Path]:
    return sorted((directory / "default.run").glob("*.index"))


def set_build(directory: Path, build: int) -> None:
    """Make the control words name another build of the projection."""
    with (directory / "default.lock").open("r+b") as file:
        Control(Files(), file.fileno()).set_build(build)


# --- missing, behind, damaged


def test_no_queue_yet(admin_client, settings):
    for page in (JOBS, DEAD):
        response = admin_client.get(page)
        assert listed(response) == []
        assert "There is no queue “default”" in notice(response)
    assert not settings.NOBROKER["DIR"].exists()
    assert admin_client.get(f"{JOBS}default:x/change/").status_code == 404


def test_wrong_settings_are_a_notice(admin_client, settings):
    settings.NOBROKER = {"DIR": "relative"}
    assert "must be absolute" in notice(admin_client.get(JOBS))


def test_what_nobody_has_folded_in_yet_is_shown_all_the_same(admin_client):
    """A plain enqueue leaves the projection behind; a small one is completed for the page."""
    first = get_queue().enqueue(call())
    get_queue().stats()
    second = get_queue().enqueue(call())
    response = admin_client.get(JOBS)
    assert (listed(response), notice(response)) == ([second.id, first.id], "")


def test_without_a_projection_a_short_log_is_replayed(admin_client):
    jobs = one_of_each_state()
    set_build(get_queue().dir, 0)
    response = admin_client.get(JOBS)
    assert (len(listed(response)), notice(response)) == (5, "")
    assert listed(admin_client.get(DEAD)) == [jobs["dead"].id]
    assert admin_client.get(f"{JOBS}default:{jobs['done'].id}/change/").status_code == 200


@pytest.mark.parametrize("words", ["there", "gone"])
def test_without_a_projection_a_long_log_is_a_notice_with_its_length(admin_client, no_replays, words):
    job = one_of_each_state()["ready"]
    size = log_end(get_queue().path)
    set_build(get_queue().dir, 0)
    if words == "gone":
        (get_queue().dir / "default.lock").unlink()
    response = admin_client.get(JOBS)
    assert listed(response) == []
    assert "The index of this queue is missing" in notice(response)
    assert f"Not shown: {size - 16:,} bytes of the log" in notice(response)
    detail = admin_client.get(f"{JOBS}default:{job.id}/change/")
    assert detail.status_code == 404
    assert "It may be in the part of the log that is not shown" in detail.content.decode()


@pytest.mark.contract("LOG-08")
def test_a_large_projection_that_is_behind_says_by_how_much(admin_client, no_copies):
    queue = get_queue()
    first = queue.enqueue(call())
    queue.stats()
    before = log_end(queue.path)
    assert notice(admin_client.get(JOBS)) == ""
    queue.enqueue(call())
    behind = log_end(queue.path) - before
    for response in (admin_client.get(JOBS), admin_client.get(DEAD)):
        assert f"the last {behind:,} bytes of its log are not in it" in notice(response)
    assert listed(admin_client.get(JOBS)) == [first.id]
    assert f"{behind:,} bytes" in notice(admin_client.get(f"{JOBS}default:{first.id}/change/"))
    queue.stats()
    response = admin_client.get(JOBS)
    assert (len(listed(response)), notice(response)) == (2, "")


def test_a_projection_without_its_beginning_is_replaced_by_a_replay(admin_client):
    one_of_each_state()
    directory = get_queue().dir
    close_queues()
    (index,) = index_files(directory)
    index.write_bytes(b"not a database at all" + bytes(5000))
    assert len(listed(admin_client.get(JOBS))) == 5


@pytest.mark.parametrize("first_page", [2, 12])
def test_a_projection_damaged_in_its_middle_is_no_server_error(admin_client, no_replays, first_page):
    """Damage that is met when the file is opened, and damage that is met when the rows of the list are read."""
    queue = get_queue()
    queue.enqueue_many([call("a.b", number) for number in range(3000)])
    queue.stats()
    directory = queue.dir
    close_queues()
    (index,) = index_files(directory)
    connection = sqlite3.connect(f"file:{index}?immutable=1", uri=True)
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    roots = {
        page: name for name, page in connection.execute("SELECT name, rootpage FROM sqlite_master") if name != "jobs"
    }
    connection.close()
    data = bytearray(index.read_bytes())
    for number in range(first_page, len(data) // size + 1):
        if number not in roots:
            data[(number - 1) * size : number * size] = b"\xff" * size
    index.write_bytes(data)
    for page in (JOBS, f"{JOBS}?q=a", f"{JOBS}?state=ready"):
        response = admin_client.get(page)
        assert listed(response) == []
        assert "cannot be read" in notice(response)
    assert listed(admin_client.get(DEAD)) == []
    assert admin_client.get(f"{JOBS}default:x/change/").status_code == 404


def test_an_error_of_the_projects_own_database_is_not_hidden(admin_client, monkeypatch):
    from django.db import DatabaseError

    get_queue().enqueue(call())

    asked = []

    def fail(*args, **kwargs):
        asked.append(args)
        raise DatabaseError("the project's database")

    monkeypatch.setattr("nobroker_django.admin.JobAdmin.get_queryset", fail)
    with pytest.raises(DatabaseError, match="the project's database"):
        admin_client.get(JOBS)
    assert len(asked) == 1


def test_a_damaged_log_is_a_notice(admin_client):
    queue = get_queue()
    queue.enqueue(call())
    path = queue.path
    close_queues()
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    response = admin_client.get(JOBS)
    assert listed(response) == []
    assert "is damaged at byte 16" in notice(response)


def test_a_damaged_record_leaves_the_row_readable(admin_client):
    queue = get_queue()
    job = queue.enqueue(call("a.b", "some argument"))
    queue.enqueue(call("c.d", "other"))
    queue.stats()
    path = queue.path
    data = bytearray(path.read_bytes())
    data[data.index(b"some argument")] ^= 1
    path.write_bytes(data)
    response = admin_client.get(JOBS)
    assert job.id in listed(response)
    assert "(damaged)" in response.content.decode()
    detail = admin_client.get(f"{JOBS}default:{job.id}/change/")
    assert detail.status_code == 200
    assert "is damaged at byte" in detail.content.decode()


@pytest.mark.parametrize("text", [b"", b"x", b"7", b"1 2"])
def test_a_garbled_pointer_is_a_notice(admin_client, text):
    get_queue().enqueue(call())
    directory = get_queue().dir
    close_queues()
    (directory / "default.current").write_bytes(text)
    assert "default.current" in notice(admin_client.get(JOBS))
    (directory / "default.current").unlink()
    assert "is missing, but there are logs" in notice(admin_client.get(JOBS))


@pytest.mark.parametrize("compacted", [False, True])
def test_a_directory_of_version_1_is_shown_and_left_as_it_is(admin_client, settings, compacted):
    old = pytest.importorskip("nobroker")
    directory = settings.NOBROKER["DIR"]
    with old.Queue(directory, "default", max_attempts=1) as queue:
        queue.enqueue({"number": float("nan"), "text": "\ud800"}, job_id="odd")
        queue.enqueue({"task": "a.b", "args": [], "kwargs": {}}, job_id="fails", priority=5)
        queue.nack(queue.lease_one(), error="boom")
        if compacted:
            queue.compact()
    before = contents(directory)
    assert listed(admin_client.get(JOBS)) == ["fails", "odd"]
    assert listed(admin_client.get(DEAD)) == ["fails"]
    odd = admin_client.get(f"{JOBS}default:odd/change/")
    assert odd.status_code == 200
    assert "NaN" in odd.content.decode()
    assert "\\ud800" in odd.content.decode()
    assert "boom" in admin_client.get(f"{DEAD}default:fails/change/").content.decode()
    assert contents(directory) == before


# --- nothing is written, nothing waits


@pytest.mark.contract("LOG-08")
def test_looking_leaves_every_byte_as_it_is(admin_client, settings):
    """Beside an open queue, behind it, and after the last one has closed."""
    jobs = one_of_each_state()
    directory = settings.NOBROKER["DIR"]

    def look_around():
        before = contents(directory)
        for page in (JOBS, DEAD, f"{JOBS}?state=ready", f"{JOBS}default:{jobs['dead'].id}/change/"):
            assert admin_client.get(page).status_code == 200
        after = contents(directory)
        # SQLite keeps marks of its readers in the shared memory of the log of changes: a map, no data.
        assert {name: data for name, data in before.items() if not name.endswith("-shm")} == {
            name: data for name, data in after.items() if not name.endswith("-shm")
        }
        assert before.keys() == after.keys()

    look_around()
    get_queue().enqueue(call())
    look_around()
    close_queues()
    assert len(index_files(directory)) == 1
    assert not list((directory / "default.run").glob("*-wal"))
    look_around()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_directory_that_cannot_be_written_is_shown(settings, tmp_path, db):
    """C78: as another user, who may read everything and write nothing."""
    jobs = one_of_each_state()
    directory = settings.NOBROKER["DIR"]
    close_queues()
    for path in [directory, *directory.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for path in [tmp_path, *tmp_path.parents]:
        if path.stat().st_mode & 0o005 != 0o005:  # pytest's own directories are for nobody else
            path.chmod(path.stat().st_mode | 0o055)
    assert Job.objects.count() == 5  # so that everything is imported that the other user may not read
    close_connections()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = "failed"
        try:
            os.setgid(65534)
            os.setuid(65534)
            try:
                (directory / "x").touch()
                answer = "could write"
            except PermissionError:
                answer = " ".join(sorted(Job.objects.values_list("task", flat=True)))
        finally:
            os.write(writer, answer.encode())
            os._exit(0)
    os.close(writer)
    answer = os.read(reader, 1000).decode()
    os.close(reader)
    os.waitpid(pid, 0)
    assert answer == " ".join(sorted(f"shop.tasks.{state}" for state in jobs))


def test_a_writer_that_holds_the_lock_keeps_no_page_waiting(admin_client):
    """C78, C95."""
    one_of_each_state()
    queue = fresh_queue()
    try:
        with queue._session.locked():
            assert len(listed(admin_client.get(JOBS))) == 5
    finally:
        queue.close()


@pytest.mark.contract("DJ-08")
def test_the_models_refuse_to_write(db):
    one_of_each_state()
    job = Job.objects.first()
    from django.db.utils import OperationalError

    for refused in (
        job.save,
        job.delete,
        lambda: Job.objects.create(key="default:x"),
        lambda: Job(key="default:y").save(using="default"),
        lambda: DeadLetter.objects.first().delete(),
    ):
        with pytest.raises(ReadOnlyError):
            refused()
    for refused in (
        lambda: Job.objects.update(state=1),
        lambda: Job.objects.all().delete(),
        lambda: Job.objects.bulk_create([Job(key="default:z")]),
    ):
        with pytest.raises(OperationalError):
            refused()
    close_connections()
    assert Job.objects.count() == 5


def test_no_query_reaches_a_database_of_the_project(db, django_assert_num_queries):
    one_of_each_state()
    with django_assert_num_queries(0):
        assert Job.objects.using("default").count() == 0
        assert list(DeadLetter.objects.using("default")) == []
        assert Job._base_manager.using("default").first() is None
        job = Job.objects.get(task="shop.tasks.done")
        job.refresh_from_db()
        assert job.queue == "default"


# --- other processes, other threads, other files


def test_a_compaction_is_followed(db):
    queue = get_queue()
    jobs = queue.enqueue_many([call("a.b", number) for number in range(5)])
    queue.stats()
    assert Job.objects.count() == 5
    queue.purge()
    queue.compact()
    left = queue.enqueue(call("a.b", 6))
    queue.stats()
    assert [job.job_id for job in Job.objects.all()] == [left.id]
    assert jobs[0].id not in [job.job_id for job in Job.objects.all()]


def test_a_page_sees_one_moment(db):
    queue = get_queue()
    queue.enqueue(call())
    queue.stats()
    with reading("default"):
        assert Job.objects.queue("default").count() == 1
        queue.enqueue(call())
        queue.stats()
        assert Job.objects.queue("default").count() == 1
    assert Job.objects.queue("default").count() == 2


def test_a_file_read_as_unchanging_that_changes_is_read_again(admin_client, monkeypatch):
    """Nobody has the queue open, so the file is read without locks; then somebody opens it in the middle of a page."""
    get_queue().enqueue(call("a.b"))
    get_queue().stats()
    close_queues()
    started: list[Queue] = []
    plain = source.look

    def look(directory, queue):
        found = plain(directory, queue)
        if not started:
            started.append(fresh_queue())
            started[0].enqueue(call("c.d"))
            started[0].stats()
        return found

    monkeypatch.setattr(source, "look", look)
    try:
        assert len(listed(admin_client.get(JOBS))) == 2
    finally:
        started[0].close()


def test_a_file_that_is_gone_when_it_is_opened_is_looked_for_again(admin_client, monkeypatch):
    get_queue().enqueue(call())
    get_queue().stats()
    plain, looks = source.look, []

    def look(directory, queue):
        found = plain(directory, queue)
        looks.append(found.uri)
        if len(looks) == 1:
            found.uri = found.uri.replace(".index", ".gone")
        return found

    monkeypatch.setattr(source, "look", look)
    response = admin_client.get(JOBS)
    assert (len(listed(response)), notice(response), len(looks)) == (1, "", 2)


def test_generations_change_under_load(admin_client):
    """Pages are asked for while another process enqueues, works and compacts."""
    directory = get_queue().dir
    close_queues()
    program = f"""
import sys
from nobroker_django import Queue
with Queue({str(directory)!r}) as queue:
    for turn in range(12):
        queue.enqueue_many([{{"task": "a.b", "args": [turn], "kwargs": {{}}}}] * 200)
        queue.ack_many(queue.lease(150))
        queue.compact()
        print(turn, flush=True)
        if turn == 1:
            sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        process.stdin.write("go\n")
        process.stdin.flush()
        pages = 0
        while process.poll() is None or pages == 0:
            for page in (JOBS, f"{JOBS}?state=ready", DEAD):
                response = admin_client.get(page)
                assert response.status_code == 200
                assert "cannot be read" not in notice(response)
                pages += 1
        process.stdout.read()
    assert process.returncode == 0
    assert len(listed(admin_client.get(JOBS))) == 100
    assert "600 jobs" in admin_client.get(JOBS).content.decode()
    assert pages >= 3
    assert open_descriptors(directory) == []


def test_hundreds_of_requests_leave_no_descriptor_open(admin_client, settings):
    jobs = one_of_each_state()
    directory = settings.NOBROKER["DIR"]
    close_queues()
    for number in range(100):
        if number == 50:
            with fresh_queue() as queue:  # behind, and with a log of changes
                queue.enqueue(call())
        for page in (JOBS, DEAD, f"{JOBS}default:{jobs['dead'].id}/change/"):
            assert admin_client.get(page).status_code == 200
    assert open_descriptors(directory) == []


def test_requests_in_a_process_that_works_on_the_queue_pile_up_no_descriptors(admin_client, settings):
    """SQLite closes a file late when the same process holds locks on it through another connection."""
    one_of_each_state()
    directory = settings.NOBROKER["DIR"]
    counts = set()
    for _ in range(30):
        assert admin_client.get(JOBS).status_code == 200
        counts.add(len(open_descriptors(directory)))
    assert len(counts) == 1


def test_a_page_is_closed_when_it_is_made(db, settings):
    get_queue().enqueue(call())
    close_queues()
    with reading("default"):
        assert open_descriptors(settings.NOBROKER["DIR"]) != []
    assert open_descriptors(settings.NOBROKER["DIR"]) == []


def test_the_end_of_a_request_closes_what_other_views_opened(client, db, settings):
    get_queue().enqueue(call())
    directory = settings.NOBROKER["DIR"]
    close_queues()
    assert Job.objects.count() == 1
    assert open_descriptors(directory) != []
    client.get("/admin/login/")
    assert open_descriptors(directory) == []


def test_changed_settings_close_what_was_open(db, settings, tmp_path):
    get_queue().enqueue(call())
    assert Job.objects.count() == 1
    settings.NOBROKER = {**settings.NOBROKER, "DIR": tmp_path / "elsewhere"}
    assert Job.objects.count() == 0
    assert open_descriptors(tmp_path / "queues") == []


def test_threads_have_connections_of_their_own(settings, transactional_db):
    one_of_each_state()
    directory = settings.NOBROKER["DIR"]
    close_queues()
    start, seen, wrong = threading.Barrier(4), [], []

    def read():
        try:
            start.wait()
            for _ in range(20):
                seen.append(Job.objects.count())
                close_connections()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert seen == [5] * 80
    assert open_descriptors(directory) == []


def test_a_forked_child_reads_with_a_connection_of_its_own(db):
    one_of_each_state()
    assert Job.objects.count() == 5
    inherited = connection_of(alias_of("")).connection
    assert inherited is not None
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = b"failed"
        try:
            count = Job.objects.count()
            connection = connection_of(alias_of("")).connection
            close_connections()
            inherited.execute("SELECT 1")  # not closed under the parent's feet
            answer = f"{count} {connection is not inherited}".encode()
        finally:
            os.write(writer, answer)
            os._exit(0)
    os.close(writer)
    answer = os.read(reader, 100)
    os.close(reader)
    os.waitpid(pid, 0)
    assert answer == b"5 True"
    assert Job.objects.count() == 5
    assert connection_of(alias_of("")).connection is inherited


def test_a_child_that_ends_a_request_leaves_the_inherited_connection_alone(db):
    get_queue().enqueue(call())
    assert Job.objects.count() == 1
    inherited = connection_of(alias_of("")).connection
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            close_connections()
            inherited.execute("SELECT 1")
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_asynchronous_code_reads_through_the_orm(transactional_db):
    jobs = one_of_each_state()

    async def read():
        found = [job.job_id async for job in Job.objects.order_by("seq")]
        count = await Job.objects.acount()
        first = await Job.objects.aget(key=f"default:{jobs['done'].id}")
        await sync_to_async(close_connections)()
        return found, count, first.task

    found, count, task = asyncio.run(read())
    assert found == [jobs[state].id for state in ("done", "dead", "leased", "ready", "delayed")]
    assert (count, task) == (5, "shop.tasks.done")


def test_the_pages_work_under_asgi(transactional_db, django_user_model, settings):
    """With Django's own asynchronous handler, several requests at once."""
    one_of_each_state()
    directory = settings.NOBROKER["DIR"]
    close_queues()
    user = django_user_model.objects.create_superuser("root")

    async def ask():
        client = AsyncClient()
        await client.aforce_login(user)
        responses = await asyncio.gather(*(client.get(page) for page in (JOBS, DEAD, JOBS, f"{JOBS}?q=shop")))
        return [len(listed(response)) for response in responses]

    assert asyncio.run(ask()) == [5, 1, 5, 5]
    assert open_descriptors(directory) == []


# --- no request changes anything


@pytest.mark.contract("DJ-08")
@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_no_request_changes_anything(admin_client, settings, method):
    jobs = one_of_each_state()
    directory = settings.NOBROKER["DIR"]
    close_queues()
    before = contents(directory)
    client = Client(enforce_csrf_checks=False)
    client.cookies = admin_client.cookies
    data = {
        "action": "delete_selected",
        "_selected_action": [f"default:{job.id}" for job in jobs.values()],
        "post": "yes",
        "state": "0",
        "_save": "Save",
        "index": "0",
    }
    key = f"default:{jobs['dead'].id}"
    statuses = {
        page: getattr(client, method)(page, data, content_type="application/json" if method != "post" else None)
        if method != "post"
        else client.post(page, data)
        for base in (JOBS, DEAD)
        for page in (base, f"{base}add/", *(f"{base}{key}/{verb}/" for verb in ("change", "delete", "history")))
    }
    assert {response.status_code for response in statuses.values()} <= {403, 405}
    assert contents(directory) == before


def test_a_read_only_queue_and_the_admin_agree(admin_client, settings):
    one_of_each_state()
    with Queue(settings.NOBROKER["DIR"], read_only=True) as queue:
        by_state = {state: [job.id for job in queue.list_jobs(state)] for state in ("leased", "done", "dead")}
    for state, ids in by_state.items():
        assert listed(admin_client.get(JOBS, {"state": state})) == ids
