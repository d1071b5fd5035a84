"""The pages of the admin: lists, one job, filters, the search, and what hostile data do to them."""

import html
import re
from urllib.parse import unquote

import pytest
from django.contrib.auth.models import Permission, User
from django.utils.formats import localize

from nobroker_django import BackoffPolicy, Queue
from nobroker_django.admin_support import paging
from nobroker_django.admin_support.connection import reading
from nobroker_django.admin_support.searching import values_of, with_task_beginning
from nobroker_django.engine.endings import Ended
from nobroker_django.engine.schema import COLUMNS
from nobroker_django.models import DeadLetter, Job
from nobroker_django.queues import get_queue

from .admin_helpers import DEAD, JOBS, call, listed, notice, one_of_each_state

HOSTILE = "<img src=x onerror=alert(1)>"
HOSTILE_TEXTS = (HOSTILE, "</textarea><script>alert(2)</script>", "\"'`&", "\u202eevil", "\x00\x1b[31m")


def address(job, queue="default", page=JOBS):
    from django.contrib.admin.utils import quote

    return f"{page}{quote(f'{queue}:{job.id}')}/change/"


# --- lists


def test_the_newest_job_comes_first_and_every_state_is_shown(admin_client):
    jobs = one_of_each_state()
    response = admin_client.get(JOBS)
    order = ("delayed", "ready", "leased", "dead", "done")
    assert listed(response) == [jobs[state].id for state in order]
    assert tuple(re.findall(r'nobroker-state nobroker-(\w+)">\1<', response.content.decode())) == order
    assert notice(response) == ""
    assert "5 jobs" in response.content.decode()


@pytest.mark.parametrize("state", ["ready", "delayed", "leased", "done", "dead"])
@pytest.mark.parametrize("many", [0, 20_000])
def test_the_filter_of_a_state_shows_the_jobs_in_that_state(admin_client, monkeypatch, state, many):
    """Few rows are looked for in another way than many."""
    monkeypatch.setattr("nobroker_django.admin_support.searching.MANY", many)
    jobs = one_of_each_state()
    assert listed(admin_client.get(JOBS, {"state": state})) == [jobs[state].id]


def test_a_job_whose_time_has_come_is_ready_though_nobody_has_noticed(admin_client, monkeypatch):
    job = get_queue().enqueue(call(), delay=3600)
    assert listed(admin_client.get(JOBS, {"state": "ready"})) == []
    now = job.available_at + 1
    monkeypatch.setattr("time.time", lambda: now)
    assert listed(admin_client.get(JOBS, {"state": "ready"})) == [job.id]
    assert listed(admin_client.get(JOBS, {"state": "delayed"})) == []


def test_filters_of_task_and_error(admin_client):
    jobs = one_of_each_state()
    response = admin_client.get(JOBS, {"task": "shop.tasks.ready"})
    assert listed(response) == [jobs["ready"].id]
    assert "shop.tasks.leased</a>" in response.content.decode()
    assert listed(admin_client.get(JOBS, {"error": "ValueError"})) == [jobs["dead"].id]
    assert listed(admin_client.get(JOBS, {"error": "KeyError"})) == []


def offered(response, title):
    """The values that a filter offers."""
    [part] = re.findall(rf'data-filter-title="{title}"(.*?)</details>', response.content.decode(), re.DOTALL)
    return [unquote(value) for value in re.findall(r'href="\?[^"]*=([^"&]*)"', part)]


def test_a_task_is_offered_however_old_its_jobs_are(admin_client):
    get_queue().enqueue(call("once.upon"))
    get_queue().enqueue_many([call(f"shop.{'ab'[number % 2]}", number) for number in range(10_100)])
    get_queue().stats()  # folds them
    assert offered(admin_client.get(JOBS), "task") == ["once.upon", "shop.a", "shop.b"]


def test_no_more_choices_are_offered_than_a_person_can_read_but_always_the_chosen_one(admin_client, monkeypatch):
    monkeypatch.setattr("nobroker_django.admin_support.filters.MOST_CHOICES", 3)
    get_queue().enqueue_many([call(name) for name in ("e", "c", "a", "b", "d")])
    assert offered(admin_client.get(JOBS), "task") == ["a", "b", "c"]
    response = admin_client.get(JOBS, {"task": "e"})
    assert offered(response, "task") == ["a", "b", "c", "e"]
    assert len(listed(response)) == 1


@pytest.mark.parametrize(("many", "tasks"), [(20_000, ["shop.tasks.dead"]), (0, None)])
def test_the_filters_of_dead_letters_offer_what_dead_letters_have(admin_client, monkeypatch, many, tasks):
    """In a long list, what any job has: finding out which of it a dead letter has would take too long."""
    monkeypatch.setattr("nobroker_django.admin_support.searching.MANY", many)
    monkeypatch.setattr("nobroker_django.admin_support.filters.MANY", many)
    jobs = one_of_each_state()
    response = admin_client.get(DEAD)
    assert offered(response, "task") == (tasks or sorted(f"shop.tasks.{state}" for state in jobs))
    assert offered(response, "last error") == ["ValueError"]
    assert listed(admin_client.get(DEAD, {"task": "shop.tasks.dead"})) == [jobs["dead"].id]
    assert listed(admin_client.get(DEAD, {"q": "shop.tasks"})) == [jobs["dead"].id]
    assert listed(admin_client.get(DEAD, {"q": "shop.tasks.done"})) == []


def test_rare_tasks_and_choices_are_found_without_a_look_at_every_row(admin_client):
    get_queue().enqueue_many([call(f"shop.{'ab'[number % 2]}", number) for number in range(5000)])
    get_queue().enqueue(call("rare.task"))
    steps = []
    with reading("default") as connection:
        jobs = Job.objects.queue("default")
        assert len(jobs[:1]) == 1  # opens the connection
        connection.connection.set_progress_handler(lambda: steps.append(100), 100)
        assert values_of(connection, "task", 100) == ["rare.task", "shop.a", "shop.b"]
        assert values_of(connection, "task", 100, beginning="shop.") == ["shop.a", "shop.b"]
        assert values_of(connection, "error_class", 100) == []
        assert [job.task for job in with_task_beginning(jobs, "rare")] == ["rare.task"]
        assert list(with_task_beginning(jobs, "none")) == []
        assert [job.task for job in jobs.filter(task="rare.task")] == ["rare.task"]
    assert sum(steps) < 2500


def test_dead_letters_are_the_dead_jobs_with_their_error(admin_client):
    jobs = one_of_each_state()
    response = admin_client.get(DEAD)
    assert listed(response) == [jobs["dead"].id]
    assert "ValueError: no such address" in response.content.decode()
    assert "shop.tasks.done" not in response.content.decode()
    assert admin_client.get(address(jobs["done"], page=DEAD)).status_code == 404


def test_a_list_is_of_one_queue(admin_client):
    here, there = get_queue().enqueue(call()), get_queue("emails").enqueue(call())
    first, second = admin_client.get(JOBS), admin_client.get(JOBS, {"queue": "emails"})
    assert (listed(first), listed(second)) == ([here.id], [there.id])
    assert "Jobs of queue “default”" in first.content.decode()
    assert "Jobs of queue “emails”" in second.content.decode()
    assert address(there, "emails") in second.content.decode()
    assert admin_client.get(f"{JOBS}emails:{there.id}/change/").status_code == 200
    assert admin_client.get(address(there, "emails")).status_code == 200
    assert admin_client.get(address(there, "default")).status_code == 404


def test_an_unknown_queue_leads_back_to_the_first(admin_client):
    response = admin_client.get(JOBS, {"queue": "../../etc"})
    assert (response.status_code, response["Location"]) == (302, f"{JOBS}?e=1")
    assert admin_client.get(f"{JOBS}../../etc:x/change/").status_code == 404
    assert admin_client.get(f"{JOBS}%2E%2E_2Fx:1/change/").status_code == 404


def test_with_one_queue_there_is_nothing_to_choose(admin_client, settings):
    assert "By queue" in admin_client.get(JOBS).content.decode()
    settings.NOBROKER = {**settings.NOBROKER, "QUEUES": {"default": {}}}
    assert "By queue" not in admin_client.get(JOBS).content.decode()


def test_search_finds_the_exact_id_first_then_beginnings(admin_client):
    queue = get_queue()
    queue.enqueue(call("a.b"), job_id="order-1")
    queue.enqueue(call("a.c"), job_id="order-12")
    queue.enqueue(call("order-task"), job_id="x")
    for term, found in {
        "order-1": ["order-1"],
        "order-": ["order-12", "order-1"],
        "order-t": ["x"],
        "a.": ["order-12", "order-1"],
        "%": [],
        "zzz": [],
        "": ["x", "order-12", "order-1"],
    }.items():
        assert listed(admin_client.get(JOBS, {"q": term})) == found, term


def test_a_search_with_colons_is_taken_as_it_is(admin_client):
    job = get_queue().enqueue(call(), job_id="emails:7:a")
    assert listed(admin_client.get(JOBS, {"q": "emails:7:a"})) == [job.id]
    assert admin_client.get(address(job)).status_code == 200


def test_pages_and_the_other_order(admin_client):
    jobs = get_queue().enqueue_many([call("a.b", number) for number in range(250)])
    ids = [job.id for job in jobs]
    assert listed(admin_client.get(JOBS)) == ids[:149:-1]
    assert listed(admin_client.get(JOBS, {"p": 3})) == ids[49::-1]
    assert listed(admin_client.get(JOBS, {"o": 4, "p": 2})) == ids[100:200]
    assert admin_client.get(JOBS, {"p": 4}).status_code == 302


@pytest.mark.parametrize(("separator", "shown"), [(False, "10,000+"), (True, ">10,000")])
def test_what_was_not_counted_is_not_shown_as_a_number(settings, separator, shown):
    settings.USE_THOUSAND_SEPARATOR = separator
    assert localize(paging.CountedSoFar(10_000)) == shown
    assert paging.CountedSoFar(10_000) == 10_000


def test_counting_ends(admin_client, monkeypatch):
    """C95."""
    monkeypatch.setattr(paging, "MOST_COUNTED", 200)
    jobs = get_queue().enqueue_many([call("a.b", number) for number in range(250)])
    response = admin_client.get(JOBS, {"p": 2})
    assert listed(response) == [job.id for job in jobs[149:49:-1]]
    assert "200+ jobs" in response.content.decode()
    assert "200+ results" in response.content.decode()
    assert admin_client.get(JOBS, {"p": 3}).status_code == 302


def test_only_a_short_queue_can_be_sorted_by_any_column(admin_client, monkeypatch):
    """C95."""
    one_of_each_state()
    assert "o=1" in admin_client.get(JOBS).content.decode()
    monkeypatch.setattr("nobroker_django.admin.MANY", 4)
    text = admin_client.get(JOBS).content.decode()
    assert "o=1" not in text
    assert "o=4" in text


def test_a_list_asks_a_fixed_number_of_questions(admin_client, django_assert_num_queries):
    get_queue().enqueue_many([call("a.b", number) for number in range(90)])
    with django_assert_num_queries(2):  # the session and the user: nothing else is in the project's database
        admin_client.get(JOBS)


# --- one job


def text_of(response):
    """The text of a page without tags."""
    assert response.status_code == 200
    return html.unescape(re.sub(r"<[^>]*>", " ", response.content.decode()))


def test_the_page_of_a_job_shows_all_there_is(admin_client):
    jobs = one_of_each_state()
    done = text_of(admin_client.get(address(jobs["done"])))
    assert '"sent": true' in done
    assert '"task": "shop.tasks.done"' in done
    dead = text_of(admin_client.get(address(jobs["dead"], page=DEAD)))
    assert "ValueError" in dead
    assert "no such address" in dead
    leased = text_of(admin_client.get(address(jobs["leased"])))
    assert get_queue().get(jobs["leased"].id).lease_token in leased
    assert "1 of 5" in leased


def test_for_how_long_a_job_has_been_running_is_shown(admin_client, monkeypatch):
    """And how often its lease was extended: a task that hangs is seen."""
    queue = get_queue()
    queue.enqueue(call())
    [job] = queue.exchange(count=1, begin=1).leased
    assert job.started_at is not None
    for _ in range(3):
        job = queue.extend(job, 60)
    now = job.started_at + 185
    monkeypatch.setattr("time.time", lambda: now)
    assert "running for 3m05s, extended 3 times" in text_of(admin_client.get(JOBS))
    page = text_of(admin_client.get(address(job)))
    assert re.search(r"Running since:.*?\(3m05s ago\)", page, re.DOTALL)
    assert re.search(r"Lease extended:\s+3 times", page)
    queue.ack(job)
    assert "running for" not in text_of(admin_client.get(JOBS))


def test_the_history_of_errors_has_the_last_one_first(admin_client):
    queue = get_queue()
    job = queue.enqueue(call(), max_attempts=2)

    def fail(number):
        try:
            raise ValueError(f"failure {number}")
        except ValueError as error:
            return error

    queue.nack(queue.lease_one(), error=fail(1), delay=0)
    queue.exchange([Ended.failed(queue.lease_one(), fail(2), worker="web1:4711")]).confirm()
    text = text_of(admin_client.get(address(job)))
    assert text.index("Attempt 2") < text.index(", web1:4711:") < text.index("failure 2")
    assert text.count(", web1:4711:") == 1
    assert text.index("failure 2") < text.index("failure 1")
    assert text.count("Traceback (most recent call last)") == 2


def test_long_values_are_cut_with_a_note(admin_client):
    """C95."""
    job = get_queue().enqueue(call("a.b", "x" * 300_000))
    listing = admin_client.get(JOBS).content.decode()
    assert "(300," in listing
    assert "xxx" not in listing
    response = admin_client.get(address(job))
    assert "Cut after 20,000 of 300," in response.content.decode()
    assert len(response.content) < 60_000


@pytest.mark.parametrize("payload", [None, 7, "text", [1], {"task": 3}, {"task": "a", "args": "b"}, {"task": "a"}])
def test_payloads_that_are_no_call_are_shown_as_they_are(admin_client, payload):
    job = get_queue().enqueue(payload)
    assert listed(admin_client.get(JOBS)) == [job.id]
    text_of(admin_client.get(address(job)))


@pytest.mark.parametrize("moment", [0.0, -62_000_000_000.0, 4e11, 1e300])
def test_times_beyond_the_calendar_are_shown_as_numbers(moment):
    from nobroker_django.admin_support import showing

    assert showing.moment(moment)
    assert showing.moment(moment, exact=True)


@pytest.mark.parametrize(
    ("use_tz", "zone", "shown"), [(True, "Asia/Tokyo", "+09:00"), (False, "Asia/Tokyo", "+09:00")]
)
def test_times_carry_their_offset(admin_client, settings, use_tz, zone, shown):
    settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
    job = get_queue().enqueue(call())
    assert shown in text_of(admin_client.get(address(job)))


# --- hostile data (stored cross-site scripting)


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_nothing_that_a_job_holds_becomes_markup(admin_client, text):
    """C93."""
    with Queue(get_queue().dir, backoff=BackoffPolicy(base=0)) as queue:
        job = queue.enqueue(
            {"task": text, "args": [text], "kwargs": {text: text}}, job_id=text, max_attempts=2, meta={text: text}
        )
        queue.nack(queue.lease_one(), error=text, delay=0)
        failure = type(text.replace("\x00", ""), (Exception,), {})(text)
        queue._end_all([Ended.failed(queue.lease_one(), failure, worker=text)])
        other = queue.enqueue({"task": text, "args": [], "kwargs": {}})
        queue.ack(queue.lease_one(), result={text: [text]})
    pages = [
        admin_client.get(JOBS),
        admin_client.get(DEAD),
        admin_client.get(address(job)),
        admin_client.get(address(job, page=DEAD)),
        admin_client.get(address(other)),
        admin_client.get(address(job).replace("change", "history"), follow=True),
        admin_client.get(f"{JOBS}default:{HOSTILE.replace('/', '_2F')}x/change/"),
    ]
    echoes = [  # these repeat what the person at the browser asked for, as Django's own lists do
        admin_client.get(JOBS, {"q": text}),
        admin_client.get(JOBS, {"task": text, "error": text}),
        admin_client.get(JOBS, {"queue": text}, follow=True),
        admin_client.get(JOBS, {"state": text}),
    ]
    for page in (*pages, *echoes):
        assert page.status_code in (200, 404)
        assert "<img src=x" not in page.content.decode()
        assert "<script>alert" not in page.content.decode()
    for page in pages:
        body = page.content.decode()
        assert "\u202e" not in body
        assert "\x00" not in body
        assert "\x1b" not in body


# --- permissions


@pytest.mark.contract("DJ-08")
def test_the_view_permission_is_required_and_enough(client, db):
    job = one_of_each_state()["dead"]
    pages = {page: (page, address(job, page=page)) for page in (JOBS, DEAD)}
    user = User.objects.create_user("ann", is_staff=True)
    client.force_login(user)
    assert {client.get(page).status_code for both in pages.values() for page in both} == {403}
    user.user_permissions.add(Permission.objects.get(codename="view_deadletter"))
    assert [client.get(page).status_code for page in pages[DEAD]] == [200, 200]
    assert [client.get(page).status_code for page in pages[JOBS]] == [403, 403]


@pytest.mark.contract("DJ-08")
def test_view_is_the_only_permission_there_is(db):
    names = Permission.objects.filter(content_type__app_label="nobroker_django").values_list("codename", flat=True)
    assert sorted(names) == ["view_deadletter", "view_job"]


def test_the_admin_lists_both_and_offers_no_change(admin_client):
    index = admin_client.get("/admin/").content.decode()
    assert f'href="{JOBS}"' in index
    assert f'href="{DEAD}"' in index
    assert f"{JOBS}add/" not in index
    job = one_of_each_state()["dead"]
    for page in (JOBS, address(job), DEAD):
        body = admin_client.get(page).content.decode()
        assert 'name="_save"' not in body
        assert 'name="action"' not in body
        assert "deletelink" not in body


def test_every_column_of_a_row_is_a_field():
    columns = {field.column for field in Job._meta.concrete_fields}
    assert columns == set(COLUMNS)
    assert DeadLetter._meta.concrete_model is Job
