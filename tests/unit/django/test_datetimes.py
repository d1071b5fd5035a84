"""When a job runs: seconds, timedelta and datetime."""

import json
import math
import time
from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from nobroker_django import InvalidOptionError
from nobroker_django.datetimes import delay_seconds, instant, moment
from nobroker_django.engine.once import Entry
from nobroker_django.engine.options import LAST_MOMENT
from nobroker_django.queues import get_queue
from nobroker_django.testing import run_jobs

from .admin_helpers import JOBS
from .sample import add
from .test_admin_pages import address
from .test_commands import run

BERLIN = ZoneInfo("Europe/Berlin")
LAST = LAST_MOMENT - 60
ROUNDING = 1e-5  # seconds: a time becomes a delay and a time again


def enqueued(**options):
    """A job enqueued with these options, and the times before and after it was."""
    before = time.time()
    result = add.using(**options).enqueue(1)
    return get_queue().get(result.id), before, time.time()


@pytest.mark.parametrize(
    ("delay", "seconds"), [(0, 0.0), (1.5, 1.5), (60, 60.0), (timedelta(minutes=2), 120.0), (timedelta(0), 0.0)]
)
def test_a_delay_is_seconds_or_a_timedelta(delay, seconds):
    assert delay_seconds(delay) == seconds


@pytest.mark.parametrize(
    "delay", [-5, -0.1, math.nan, math.inf, -math.inf, "10", True, [], timedelta(seconds=-1), 10**400]
)
def test_an_impossible_delay_is_refused_by_name(delay):
    """C83."""
    with pytest.raises(InvalidOptionError, match="delay") as raised:
        add.using(delay=delay)
    assert raised.value.option == "delay"
    assert raised.value.stored is False


@pytest.mark.parametrize("delay", [1e12, timedelta.max, 1e300])
def test_a_delay_beyond_the_calendar_is_refused_at_the_call(delay):
    """C83."""
    with pytest.raises(InvalidOptionError, match=r"delay.*9999"):
        add.using(delay=delay).enqueue(1)
    assert get_queue().stats().total == 0


def test_an_aware_datetime_is_an_exact_instant():
    """C84."""
    assert instant(datetime(2030, 1, 1, tzinfo=UTC)) == 1893456000
    assert instant(datetime(2030, 1, 1, 1, tzinfo=BERLIN)) == 1893456000
    late = timezone(timedelta(hours=14))
    assert instant(datetime(2030, 1, 1, 14, tzinfo=late)) == 1893456000


def test_both_readings_of_the_doubled_hour_of_autumn_are_told_apart():
    """C84."""
    first = instant(datetime(2030, 10, 27, 2, 30, tzinfo=BERLIN, fold=0))
    second = instant(datetime(2030, 10, 27, 2, 30, tzinfo=BERLIN, fold=1))
    assert second - first == 3600


@pytest.mark.parametrize("use_tz", [True, False])
def test_an_hour_that_there_is_not_is_read_as_python_reads_it(settings, use_tz):
    """C84: in spring, by ``fold``; an aware one and, without USE_TZ, a naive one are the same instant."""
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Europe/Berlin"
    for fold, utc in ((0, datetime(2030, 3, 31, 1, 30, tzinfo=UTC)), (1, datetime(2030, 3, 31, 0, 30, tzinfo=UTC))):
        missing = datetime(2030, 3, 31, 2, 30, fold=fold)
        assert instant(missing.replace(tzinfo=BERLIN)) == utc.timestamp()
        if not use_tz:
            assert instant(missing) == utc.timestamp()


@pytest.mark.parametrize("of_the_process", ["America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize("use_tz", [True, False])
def test_the_time_zone_of_the_process_is_of_no_account(settings, monkeypatch, use_tz, of_the_process):
    """C84: web and worker may have different ones."""
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Europe/Berlin"
    summer = datetime(2030, 6, 1, 12, tzinfo=BERLIN)
    monkeypatch.setenv("TZ", of_the_process)
    time.tzset()
    try:
        made = add.using(run_after=summer if use_tz else summer.replace(tzinfo=None))
        job = get_queue().get(made.enqueue(1).id)
        assert job.available_at == pytest.approx(summer.timestamp(), abs=60)  # seconds: the call itself takes its time
        shown = moment(job.available_at)
        assert made.run_after == (summer if use_tz else summer.replace(tzinfo=None))
        assert abs((shown if use_tz else shown.replace(tzinfo=BERLIN)) - summer) < timedelta(minutes=1)
        [document] = json.loads(run("nobroker_list", "--json"))["jobs"]
        assert datetime.fromisoformat(document["available_at_iso"]).utcoffset() is not None
        assert abs(datetime.fromisoformat(document["available_at_iso"]) - summer) < timedelta(minutes=1)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_naive_datetime_is_refused_with_use_tz(settings):
    """C84."""
    settings.USE_TZ = True
    with pytest.raises(InvalidOptionError, match="no time zone and USE_TZ is on"):
        instant(datetime(2030, 1, 1))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Tokyo", "UTC"])
def test_a_naive_datetime_without_use_tz_is_read_in_time_zone(settings, zone):
    """C84."""
    settings.USE_TZ = False
    settings.TIME_ZONE = zone
    moment = datetime(2030, 6, 1, 12)
    assert instant(moment) == moment.replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    "moment", [datetime(1, 1, 1, tzinfo=UTC), datetime(1899, 12, 31, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=BERLIN)]
)
def test_the_past_means_now(moment):
    """C83."""
    job, before, after = enqueued(run_after=moment)
    assert before <= job.available_at <= after
    assert get_queue().stats().ready == 1


def test_a_date_after_2038_is_kept():
    """C83."""
    moment = datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC)
    job, before, after = enqueued(run_after=moment)
    assert -ROUNDING <= job.available_at - moment.timestamp() <= after - before + ROUNDING


def test_the_last_day_of_the_calendar_is_accepted_and_the_next_refused():
    """C83."""
    assert add.using(run_after=datetime(9999, 12, 31, 12, tzinfo=UTC)).enqueue(1).created
    with pytest.raises(InvalidOptionError, match="9999"):
        add.using(run_after=datetime.max.replace(tzinfo=timezone(-timedelta(hours=12))))


@pytest.mark.django_db
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize("due", [LAST, 1e18, 1e300])
def test_one_that_is_stored_harms_nobody(settings, admin_client, due, use_tz, zone):
    """C83: the last moment that the call accepts, and what only another program can have written."""
    settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
    payload = {"task": add.name, "args": [1], "kwargs": {}}
    get_queue().enqueue_once([Entry(job_id="late", payload=payload, known_until=due, due=due)])
    assert run_jobs() == []
    assert add.get_result("late").status == "READY"
    assert add.get_result("late").enqueued_at.year < 9999
    for command in ("stats", "list", "inspect", "verify"):
        assert run(f"nobroker_{command}")
        assert json.loads(run(f"nobroker_{command}", "--json").splitlines()[0])
    for page in (JOBS, address(get_queue().get("late"))):
        response = admin_client.get(page)
        assert response.status_code == 200
        assert "late" in response.content.decode()
    if due == LAST:
        assert [report.error for report in run_jobs(delayed=True)] == [""]


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
@pytest.mark.parametrize("use_tz", [True, False])
def test_the_last_moment_can_be_shown_in_every_time_zone(settings, use_tz, zone):
    """C83."""
    settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
    chosen = add.using(delay=LAST - time.time())
    result = chosen.enqueue(1)
    assert result.task.run_after.year == 9999
    for seconds, year in ((1e300, 9999), (-1e300, 1)):
        shown = moment(seconds)
        assert (shown.year, shown.tzinfo is not None) == (year, use_tz)


@pytest.mark.parametrize("value", [date(2030, 1, 1), "2030-01-01", 1893456000, True])
def test_run_after_is_a_datetime(value):
    with pytest.raises(InvalidOptionError, match="run_after"):
        add.using(run_after=value)


def test_run_after_takes_a_timedelta_like_djangos_own_tasks():
    job, before, after = enqueued(run_after=timedelta(hours=1))
    assert before + 3600 - ROUNDING <= job.available_at <= after + 3600 + ROUNDING


def test_delay_and_run_after_together_are_refused():
    with pytest.raises(InvalidOptionError, match="not both"):
        add.using(delay=1, run_after=datetime(2030, 1, 1, tzinfo=UTC))


def test_the_later_choice_replaces_the_earlier_one():
    task = add.using(run_after=datetime(2030, 1, 1, tzinfo=UTC)).using(delay=0)
    task.enqueue(1)
    assert get_queue().stats().ready == 1


def test_a_delay_counts_from_each_enqueue_not_from_using(monkeypatch):
    now = [1_000_000.0]
    monkeypatch.setattr("nobroker_django.enqueueing.time.time", lambda: now[0])
    options = add.using(delay=60).options
    assert options.due(now[0]) == 1_000_060.0
    now[0] += 500
    assert options.due(now[0]) == 1_000_560.0
