"""The NOBROKER setting: typed, defaulted, refused as a whole when something in it is wrong."""

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from nobroker_django import BackoffPolicy, CompactionPolicy, InvalidOptionError
from nobroker_django.conf import QueueSettings, get_settings, parse_settings, queue_settings

DIR = "/var/lib/site/queues"


def parse(**keys):
    return parse_settings({"DIR": DIR, **keys}, debug=False)


def test_everything_but_the_directory_has_a_default():
    settings = parse()
    assert settings.dir == Path(DIR)
    assert dict(settings.queues) == {"default": QueueSettings()}
    assert settings.queues["default"].retention == 86_400
    assert (settings.on_commit, settings.database, settings.unknown_task_delay) == (True, "default", 60.0)


def test_top_level_keys_are_defaults_of_every_queue_and_queues_override_them():
    settings = parse(
        VISIBILITY_TIMEOUT=60, MAX_ATTEMPTS=9, RETENTION=5, QUEUES={"a": {}, "b": {"MAX_ATTEMPTS": 2, "RETENTION": 0}}
    )
    assert [queue.visibility_timeout for queue in settings.queues.values()] == [60.0, 60.0]
    assert [queue.max_attempts for queue in settings.queues.values()] == [9, 2]
    assert [queue.retention for queue in settings.queues.values()] == [5.0, 0.0]


def test_a_backoff_that_names_some_values_takes_the_rest_from_the_level_above():
    settings = parse(BACKOFF={"BASE": 7, "JITTER": 0}, QUEUES={"a": {"BACKOFF": {"FACTOR": 3}}, "b": {}})
    assert settings.queues["a"].backoff == BackoffPolicy(base=7, factor=3, jitter=0)
    assert settings.queues["b"].backoff == BackoffPolicy(base=7, jitter=0)


def test_time_limits_are_none_unless_given_and_a_queue_may_lift_them():
    assert (parse().queues["default"].soft_time_limit, parse().queues["default"].time_limit) == (None, None)
    settings = parse(SOFT_TIME_LIMIT=20, TIME_LIMIT=30, QUEUES={"a": {}, "b": {"TIME_LIMIT": None}})
    assert [(queue.soft_time_limit, queue.time_limit) for queue in settings.queues.values()] == [
        (20.0, 30.0),
        (20.0, None),
    ]


@pytest.mark.parametrize(
    "keys",
    [
        {"SOFT_TIME_LIMIT": 30, "TIME_LIMIT": 30},
        {"SOFT_TIME_LIMIT": 31, "QUEUES": {"a": {"TIME_LIMIT": 30}}},
        {"TIME_LIMIT": 10, "QUEUES": {"a": {"SOFT_TIME_LIMIT": 30}}},
        {"SOFT_TIME_LIMIT": 31, "TIME_LIMIT": 30, "QUEUES": {"a": {"TIME_LIMIT": None}}},
    ],
)
def test_a_soft_limit_that_is_not_below_the_hard_one_is_refused_naming_both(keys):
    with pytest.raises(ImproperlyConfigured, match=r"SOFT_TIME_LIMIT \(3. s\) must be below TIME_LIMIT \(.0 s\)"):
        parse(**keys)


def test_an_unknown_key_is_refused_with_the_nearest_known_ones():
    with pytest.raises(ImproperlyConfigured, match=r"NOBROKER has no key 'VISIBILTY_TIMEOUT' \(did you mean 'VISIBIL"):
        parse(VISIBILTY_TIMEOUT=3)
    with pytest.raises(
        ImproperlyConfigured, match=r"\['QUEUES'\]\['default'\] has no key 'max_attempts'.*'MAX_ATTEMPTS'"
    ):
        parse(QUEUES={"default": {"max_attempts": 3}})
    with pytest.raises(ImproperlyConfigured, match=r"\['BACKOFF'\] has no key 'base'.*'BASE'"):
        parse(BACKOFF={"base": 3})


def test_a_key_for_the_whole_layer_is_refused_in_a_queue():
    with pytest.raises(ImproperlyConfigured, match="has no key 'ON_COMMIT'"):
        parse(QUEUES={"default": {"ON_COMMIT": False}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("VISIBILITY_TIMEOUT", 0),
        ("VISIBILITY_TIMEOUT", "30"),
        ("VISIBILITY_TIMEOUT", True),
        ("VISIBILITY_TIMEOUT", float("nan")),
        ("RETENTION", -1),
        ("RETENTION", float("inf")),
        ("TIME_LIMIT", 0),
        ("TIME_LIMIT", "30"),
        ("SOFT_TIME_LIMIT", float("inf")),
        ("SOFT_TIME_LIMIT", -1),
        ("MAX_ATTEMPTS", 0),
        ("MAX_ATTEMPTS", 2.0),
        ("MAX_ATTEMPTS", None),
        ("FSYNC", 1),
        ("FILE_MODE", 660),
        ("DIR_MODE", "0o700"),
        ("DIR_MODE", 2770),
        ("BACKOFF", {"FACTOR": 0.5}),
        ("BACKOFF", 3),
        ("COMPACT", {"MIN_BYTES": -1}),
        ("COMPACT", {"DEAD_RATIO": 0}),
        ("COMPACT", False),
        ("UNKNOWN_TASK_DELAY", -1),
        ("ON_COMMIT", "yes"),
        ("DATABASE", ""),
        ("IMPORTS", "site.jobs"),
        ("IMPORTS", [1]),
        ("QUEUES", []),
        ("QUEUES", {}),
        ("QUEUES", {"a": None}),
        ("QUEUES", {1: {}}),
    ],
)
def test_a_wrong_value_is_refused_naming_the_key(key, value):
    with pytest.raises(ImproperlyConfigured, match=key):
        parse(**{key: value})


def test_the_thresholds_of_a_compaction_are_merged_and_may_be_none():
    settings = parse(
        COMPACT={"MIN_BYTES": 1000}, QUEUES={"a": {"COMPACT": {"DEAD_RATIO": 0.9}}, "b": {"COMPACT": None}, "c": {}}
    )
    assert settings.queues["a"].compact == CompactionPolicy(min_bytes=1000, dead_ratio=0.9)
    assert settings.queues["b"].compact is None
    assert settings.queues["c"].compact == CompactionPolicy(min_bytes=1000)
    off = parse(COMPACT=None, QUEUES={"a": {"COMPACT": {"DEAD_RATIO": 0.9}}, "b": {}})
    assert off.queues["a"].compact == CompactionPolicy(dead_ratio=0.9)
    assert off.queues["b"].compact is None


def test_a_directory_may_pass_its_group_on():
    assert parse(DIR_MODE=0o2770).queues["default"].dir_mode == 0o2770


@pytest.mark.parametrize("name", ["", "a.b", "b ", "../x", "-a", "é", "a" * 65, "a\n"])
def test_a_queue_name_that_is_no_plain_word_is_refused(name):
    with pytest.raises(ImproperlyConfigured, match="queue name"):
        parse(QUEUES={name: {}})


def test_queue_names_that_differ_only_by_case_are_refused():
    with pytest.raises(ImproperlyConfigured, match="differ only by case"):
        parse(QUEUES={"emails": {}, "Emails": {}})


def test_the_directory_is_required_without_debug_and_below_base_dir_with_it(tmp_path):
    with pytest.raises(ImproperlyConfigured, match=r"NOBROKER\['DIR'\] is missing"):
        parse_settings({}, debug=False, base_dir=tmp_path)
    assert parse_settings({}, debug=True, base_dir=tmp_path).dir == tmp_path / ".nobroker"
    assert parse_settings({}, debug=True, base_dir=str(tmp_path)).dir == tmp_path / ".nobroker"
    with pytest.raises(ImproperlyConfigured, match="BASE_DIR"):
        parse_settings({}, debug=True, base_dir=None)


@pytest.mark.parametrize("value", ["queues", "./queues", "", 3, Path("queues")])
def test_a_directory_that_depends_on_the_working_directory_is_refused(value):
    with pytest.raises(ImproperlyConfigured, match=r"NOBROKER\['DIR'\] must be"):
        parse_settings({"DIR": value}, debug=True)


@pytest.mark.parametrize("value", [None, [], "x", {1: 2}])
def test_a_setting_that_is_no_dictionary_is_refused(value):
    with pytest.raises(ImproperlyConfigured, match="NOBROKER must be a dict"):
        parse_settings(value, debug=True)


def test_override_settings_is_followed():
    assert set(get_settings().queues) == {"default", "emails"}
    with override_settings(NOBROKER={"DIR": DIR, "QUEUES": {"other": {}}}):
        assert set(get_settings().queues) == {"other"}
        with pytest.raises(InvalidOptionError, match="known queues: other"):
            queue_settings("emails")
    assert set(get_settings().queues) == {"default", "emails"}


def test_an_unknown_queue_is_refused_with_a_suggestion_and_the_known_ones():
    with pytest.raises(InvalidOptionError, match=r"'emial'.*did you mean 'emails'\?.*known queues: default, emails"):
        queue_settings("emial")
