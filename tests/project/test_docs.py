"""The reference pages and the code say the same."""

import ast
import contextlib
import importlib
import io
import json
import os
import pkgutil
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import load_command_class
from django.core.management.base import BaseCommand

import nobroker_django
from nobroker_django import CorruptLogError, NobrokerError, Queue, compat, conf
from nobroker_django.engine import framing, records
from tests.support.bytes import log_bytes, log_end

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMMANDS = ROOT / "nobroker_django" / "management" / "commands"
OUTBOX_COMMANDS = ROOT / "nobroker_django" / "outbox" / "management" / "commands"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def sections(text: str) -> dict[str, str]:
    """The sections of a page whose heading is one name in backquotes, with their text."""
    parts = re.split(r"^### `([^`\n]+)`$", text, flags=re.MULTILINE)
    return {
        name: re.split(r"^##? ", body, flags=re.MULTILINE)[0]
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


# --- settings


def known_keys(value: dict[str, object]) -> set[str]:
    """The keys that the parser says it knows at the place where ``value`` has an unknown one."""
    with pytest.raises(ImproperlyConfigured) as caught:
        conf.parse_settings(value, debug=False)
    return set(re.findall(r"[A-Z_]+", str(caught.value).split("Known keys:")[1]))


def defaults(prefix: str = "") -> dict[str, object]:
    """The documented default of each setting that has a plain one."""
    found = {
        name: re.search(r"^Default: `(.+?)`$", body, re.MULTILINE)
        for name, body in sections(page("reference/settings.md")).items()
    }
    return {name: ast.literal_eval(match[1]) for name, match in found.items() if match}


def test_every_setting_is_documented_and_every_documented_one_exists():
    assert set(sections(page("reference/settings.md"))) == known_keys({"NO_SUCH_KEY": 1})


@pytest.mark.parametrize("setting", ["BACKOFF", "COMPACT"])
def test_every_key_of_a_policy_is_documented(setting):
    text = sections(page("reference/settings.md"))[setting]
    table = dict(re.findall(r"^\| `([A-Z_]+)` \| `([0-9.]+)` \|", text, re.MULTILINE))
    assert set(table) == known_keys({"DIR": "/x", setting: {"NO_SUCH_KEY": 1}})
    policy = getattr(conf.QueueSettings(), setting.lower())
    assert {key: getattr(policy, key.lower()) for key in table} == {key: float(text) for key, text in table.items()}


def test_the_documented_defaults_are_the_real_ones():
    documented = defaults()
    parsed = conf.parse_settings({"DIR": "/x"}, debug=False)
    assert documented.pop("QUEUES") == {name: {} for name in parsed.queues}
    queue = parsed.queues["default"]
    real = {name: getattr(queue if hasattr(queue, name.lower()) else parsed, name.lower()) for name in documented}
    assert documented == real
    assert set(sections(page("reference/settings.md"))) - set(documented) == {"DIR", "QUEUES", "BACKOFF", "COMPACT"}


# --- errors


NEEDS_DJANGOS_TASKS = {"nobroker_django.backend", "nobroker_django.task_class"}


def error_classes() -> dict[str, type[NobrokerError]]:
    """Every error type of the package, wherever it is defined."""
    for module in pkgutil.walk_packages(nobroker_django.__path__, "nobroker_django."):
        if ".management." in module.name or module.name.endswith(".__main__"):
            continue
        if compat.AVAILABLE or module.name not in NEEDS_DJANGOS_TASKS:
            importlib.import_module(module.name)
    found, queue = {}, [NobrokerError]
    while queue:
        cls = queue.pop()
        queue.extend(cls.__subclasses__())
        if cls.__module__.startswith("nobroker_django."):
            found[cls.__name__] = cls
    return found


def test_every_error_is_documented_and_every_documented_one_exists():
    recorded = {"WorkerDied", "TimeLimitExceeded", "SoftTimeLimitExceeded"}  # of attempts that were ended from outside
    assert set(sections(page("reference/errors.md"))) == set(error_classes()) - {"NobrokerError"} | recorded


def test_every_error_is_importable_from_where_the_page_says():
    documented = {
        name: match[1] if (match := re.match(r"\s*In `([\w.]+)`\.", body)) else "nobroker_django"
        for name, body in sections(page("reference/errors.md")).items()
    }
    del documented["WorkerDied"]  # no class: nothing was raised
    classes = {
        **error_classes(),
        **{name: getattr(nobroker_django, name) for name in ("TimeLimitExceeded", "SoftTimeLimitExceeded")},
    }
    real = {
        name: "nobroker_django" if name in nobroker_django.__all__ else classes[name].__module__ for name in documented
    }
    assert documented == real
    for name, module in documented.items():
        assert getattr(importlib.import_module(module), name) is classes[name]


def test_the_documented_tree_of_errors_is_the_real_one():
    tree = re.search(r"```\n(NobrokerError\n.*?)```", page("reference/errors.md"), re.DOTALL)
    assert tree
    stack: list[str] = []
    parents = {}
    for line in tree[1].splitlines():
        name = re.search(r"\w+", line)
        assert name
        del stack[len(line[: name.start()]) // 4 :]
        parents[name[0]] = stack[-1] if stack else None
        stack.append(name[0])
        also = re.search(r"\(also ([\w ]+)\)", line)
        bases = {base.__name__ for base in error_classes()[name[0]].__mro__}
        others = bases & {"ValueError", "TypeError", "LookupError", "TimeoutError", "ImportError"}
        assert (set(also[1].split(" and ")) if also else set()) == others
    real = {name: cls.__bases__[0].__name__ for name, cls in error_classes().items() if name != "NobrokerError"}
    assert parents == {"NobrokerError": None, **real}


# --- commands


def command_names() -> set[str]:
    return {path.stem for path in (*COMMANDS.glob("*.py"), *OUTBOX_COMMANDS.glob("*.py"))} - {"__init__"}


def own_options(name: str) -> set[str]:
    """The long options that a command adds to Django's own."""
    app = "nobroker_django" if (COMMANDS / f"{name}.py").exists() else "nobroker_django.outbox"
    parser = load_command_class(app, name).create_parser("manage.py", name)
    plain = BaseCommand().create_parser("manage.py", name)
    ours, theirs = ({option for action in p._actions for option in action.option_strings} for p in (parser, plain))
    return {option for option in ours - theirs if option.startswith("--")}


def test_every_command_is_documented_and_every_documented_one_exists():
    assert set(sections(page("reference/commands.md"))) == command_names()


def test_every_option_of_every_command_is_documented_and_no_other():
    documented = {
        name: {
            option
            for cell in re.findall(r"^\| (`-.*?) \|", body, re.MULTILINE)
            for option in re.findall(r"--[a-z-]+", cell)
        }
        for name, body in sections(page("reference/commands.md")).items()
    }
    assert documented == {name: own_options(name) for name in command_names()}


# --- the log format


def example_bytes() -> bytes:
    (dump,) = re.findall(r"```hexdump\n(.*?)```", page("reference/log-format.md"), re.DOTALL)
    lines = [line.split("  |")[0].split(maxsplit=1) for line in dump.splitlines()]
    data = bytes.fromhex("".join(hexadecimal for _, hexadecimal in lines))
    assert [int(offset, 16) for offset, _ in lines] == list(range(0, len(data), 16))
    return data


@pytest.mark.contract("LOG-02")
def test_the_worked_example_is_what_the_engine_writes_and_reads():
    data = example_bytes()
    assert framing.decode_header(data) == (framing.VERSION, 1)
    assert data[:16] == framing.encode_header(1)
    offset, kinds = 16, []
    while offset < len(data):
        frame = framing.parse_frame(data, offset, offset, last=True)
        assert frame is not None
        assert framing.encode_frame(frame.type, frame.body) == data[offset : frame.end]
        records.decode_record(frame.type, frame.body, offset)
        assert records.batch_fields(frame.type, frame.body, offset) == (1, 0)
        kinds.append(records.RecordType(frame.type).name)
        offset = frame.end
    assert kinds == ["SNAPSHOT", "ENQUEUE"]


def test_the_table_below_the_example_quotes_its_bytes():
    data = example_bytes()
    rows = re.findall(
        r"^\| (\d+) \| `([0-9a-f]{2}(?: [0-9a-f]{2})*)` \| (.*) \|$", page("reference/log-format.md"), re.MULTILINE
    )
    assert len(rows) == 10
    for offset, quoted, meaning in rows:
        raw = bytes.fromhex(quoted)
        assert data[int(offset) : int(offset) + len(raw)] == raw
        number = re.search(r"0x([0-9a-f]+)|(\d+)", meaning)
        if number:
            assert int.from_bytes(raw, "little") == (int(number[1], 16) if number[1] else int(number[2]))


@pytest.mark.contract("LOG-02")
def test_a_log_of_the_engine_is_readable_by_the_documented_grammar_alone(queue_dir):
    """The decoder is written from the page: struct, zlib, json."""
    with Queue(queue_dir, "emails") as queue:
        queue.enqueue_many([{"to": "ann"}, {"to": "bob"}])
        queue.ack(queue.lease_one())
    assert (queue_dir / "emails.current").read_bytes() == b"1\n"
    data = (queue_dir / "emails.000001.log").read_bytes()
    assert struct.unpack_from("<8sHIH", data) == (b"NOBROKER", 2, 1, 0)
    offset, left, seen = 16, 0, []
    while offset < len(data):
        length, kind, crc = struct.unpack_from("<IBI", data, offset)
        body = data[offset + 9 : offset + 9 + length]
        assert zlib.crc32(body, zlib.crc32(data[offset : offset + 5])) == crc
        fields = json.loads(body)
        assert ("n" in fields) == ("u" in fields) == (left == 0)
        left = fields.get("n", left) - 1
        seen.append(kind)
        offset += 9 + length
    assert left == 0
    assert seen[0] == 28
    assert [kind for kind in seen if kind in (1, 2, 3)] == [1, 1, 2, 3]


def test_the_program_on_the_page_reads_the_example(tmp_path, monkeypatch):
    (program,) = re.findall(r"```python\n(.*?)```", page("reference/log-format.md"), re.DOTALL)
    path = tmp_path / "emails.000001.log"
    path.write_bytes(example_bytes())
    monkeypatch.setattr("sys.argv", ["read.py", str(path)])
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(program, "log-format.md", "exec"), {})
    assert [line.split(maxsplit=2)[:2] for line in output.getvalue().splitlines()] == [["16", "28"], ["84", "1"]]


def test_the_record_types_of_the_page_are_those_of_the_code():
    rows = re.findall(r"^\| (\d+) \| ([A-Z]+) \| (.*) \|$", page("reference/log-format.md"), re.MULTILINE)
    assert {(int(number), name) for number, name, _ in rows} == {
        (kind.value, kind.name) for kind in records.RecordType
    }
    for number, _, meaning in rows:
        try:
            records.decode_record(int(number), b"{}", 0)
            built = True
        except framing.FrameDamage as damage:
            built = "not built" not in damage.reason
        assert built == (meaning != "reserved"), number


def test_the_limits_of_the_page_are_those_of_the_code():
    text = page("reference/log-format.md")
    assert f"at most {framing.MAX_BODY_BYTES:,}" in text
    assert f"at most {framing.MAX_BATCH_BYTES:,}" in text


# --- links


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    broken = [target for target in targets if "://" not in target and not (path.parent / target).exists()]
    assert broken == []


def test_every_page_is_reached_from_the_index():
    linked = {(DOCS / target).resolve() for target in re.findall(r"\]\(([^)#]+)\)", page("index.md"))}
    assert {path for path in DOCS.rglob("*.md") if path.resolve() not in linked} == {DOCS / "index.md"}


# --- the backup


COPIES_BADLY_ONCE = """#!/bin/sh
# Copies; the first log gets a hole, as if it had been written to while it was read.
/bin/cp "$@"
case "$2" in *.log)
    [ -e "$0.done" ] || dd if=/dev/zero of="$3${2##*/}" bs=1 seek=200 count=80 conv=notrunc 2>&1
    : > "$0.done"
esac
"""


@pytest.mark.parametrize("copying", ["well", "badly once"])
def test_the_backup_script_of_the_page_gives_a_queue_that_opens(queue_dir, tmp_path, copying):
    (script,) = re.findall(r"```sh\n(.*?)```", page("how-to/backup.md"), re.DOTALL)
    program, target, tools = tmp_path / "backup-queue", tmp_path / "restored", tmp_path / "tools"
    program.write_text(script)
    target.mkdir()
    tools.mkdir()
    (tools / "python").symlink_to(sys.executable)
    if copying == "badly once":
        (tools / "cp").write_text(COPIES_BADLY_ONCE)
        (tools / "cp").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    with Queue(queue_dir, "emails") as queue:
        queue.enqueue_many(range(10))
        queue.ack_many(queue.lease(3))
        queue.compact()
        queue.nack(queue.lease(1)[0], delay=60)
        subprocess.run(
            ["sh", str(program), str(queue_dir), "emails", str(target)], check=True, timeout=60, env=environment
        )
        expected = queue.stats()
    assert (tools / "cp.done").exists() == (copying == "badly once")
    assert sorted(path.name for path in target.iterdir()) == ["emails.000002.log", "emails.current"]
    with Queue(target, "emails") as restored:
        found = restored.stats()
    assert (found.ready, found.delayed, found.enqueued_total) == (expected.ready, expected.delayed, 10)


def test_a_copy_with_a_hole_is_refused_and_cut_there_holds_all_that_was_acknowledged_before_it_began(
    queue_dir, tmp_path
):
    """The piece that was read while the log ended in it has zeros; the next piece was read later."""
    target = tmp_path / "restored"
    target.mkdir()
    with Queue(queue_dir, "emails") as queue:
        queue.enqueue_many(range(10))
        log = queue.path
        first_piece = log.read_bytes()[: log_end(log) + 100]
        for number in range(10, 20):
            queue.enqueue(number)
        data = first_piece + log.read_bytes()[len(first_piece) :]
    (target / "emails.current").write_bytes((queue_dir / "emails.current").read_bytes())
    (target / log.name).write_bytes(data)
    with pytest.raises(CorruptLogError) as refused:
        Queue(target, "emails")
    assert refused.value.offset == len(first_piece) - 100
    assert (target / log.name).read_bytes() == data
    (target / "emails.lock").unlink()
    os.truncate(target / log.name, refused.value.offset)
    with Queue(target, "emails") as restored:
        assert [job.payload for job in restored.list_jobs()] == list(range(10))


def test_a_copy_that_ends_in_the_middle_of_a_write_opens_with_everything_before_it(queue_dir, tmp_path):
    target = tmp_path / "restored"
    target.mkdir()
    with Queue(queue_dir, "emails") as queue:
        queue.enqueue_many(range(10))
        whole = log_end(queue_dir / "emails.000001.log")
        queue.enqueue_many(range(10))
        data = log_bytes(queue_dir / "emails.000001.log")
    (target / "emails.current").write_bytes((queue_dir / "emails.current").read_bytes())
    (target / "emails.000001.log").write_bytes(data[: (whole + len(data)) // 2])
    with Queue(target, "emails") as restored:
        assert restored.recovery.repaired
        assert restored.stats().ready == 10
