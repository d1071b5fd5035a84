"""Dependencies point one way, and the operating system's file calls stay in one module (read with ``ast``)."""

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "nobroker_django"
ENGINE = PACKAGE / "engine"

# The reading order of the engine: a module imports only from the modules before it.
ENGINE_ORDER = [
    "wording",
    "errors",
    "clock",
    "options",
    "backoff",
    "thresholds",
    "failures",
    "libc",
    "files",
    "locks",
    "place",
    "control",
    "framing",
    "payload",
    "lax",
    "records",
    "job",
    "transitions",
    "version1",
    "generations",
    "log",
    "new_log",
    "lockfile",
    "bell",
    "liveness",
    "syncing",
    "snapshots",
    "selection",
    "schema",
    "unit",
    "projection",
    "copying",
    "leftovers",
    "cache",
    "recovery",
    "old_log",
    "inspection",
    "examination",
    "gaps",
    "findings",
    "comparison",
    "verification",
    "lenient",
    "remains",
    "rescue",
    "creation",
    "conversion",
    "held",
    "session",
    "durability",
    "read_view",
    "deciding",
    "core",
    "adding",
    "once",
    "endings",
    "leasing",
    "looking",
    "beside",
    "passage",
    "flip",
    "compaction",
    "salvage",
    "queue",
    "coroutines",
    "wake",
    "line",
    "offloop",
    "aio",
    "upkeep",
    "worker",
    "worker_queue",
]

# What only engine/files.py may do. Methods of a Files object have these names too, so the module name is part of them.
FILE_CALLS = {
    "os": {
        *("open", "close", "read", "pread", "readv", "preadv", "write", "pwrite", "writev", "pwritev", "sendfile"),
        *("fsync", "fdatasync", "sync", "truncate", "ftruncate", "posix_fallocate", "copy_file_range", "lockf"),
        *("rename", "renames", "replace", "unlink", "remove", "link", "symlink", "mkdir", "makedirs", "rmdir"),
        *("removedirs", "mkfifo", "mknod", "chmod", "fchmod", "chown", "fchown", "utime", "fdopen", "dup", "dup2"),
        *("stat", "fstat", "lstat", "listdir", "scandir", "walk", "access"),
    },
}
BUILTIN_CALLS = {"open"}
PATH_METHODS = {"write_text", "write_bytes", "read_text", "read_bytes", "touch"}
FILE_MODULES = {"fcntl", "ctypes", "mmap", "shutil", "tempfile", "glob", "io"}

LONG_MODULE = 400


def python_files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.py"))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def type_checking_nodes(tree: ast.Module) -> set[ast.AST]:
    """Every node below an ``if TYPE_CHECKING:``, which does not exist at run time."""
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything that the module imports at run time.

    ``from .x import y`` gives both ``package.x`` and ``package.x.y``: the text does not tell whether y is a module.
    """
    tree = parse(path)
    typing_only = type_checking_nodes(tree)
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*start, *(node.module or "").split("."))).strip(".")
            yield node.lineno, base
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def engine_module(name: str) -> str | None:
    """The engine module that an absolute dotted name points into, if any."""
    parts = name.split(".")
    if parts[:2] == ["nobroker_django", "engine"] and len(parts) > 2:
        return parts[2]
    return None


def file_calls(path: Path) -> Iterator[str]:
    """Every use of the operating system's file calls in a module, as "line: what"."""
    tree = parse(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in FILE_MODULES:
                    yield f"{node.lineno}: import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = node.module or ""
            if module.split(".")[0] in FILE_MODULES:
                yield f"{node.lineno}: from {module} import ..."
            for alias in node.names:
                if alias.name in FILE_CALLS.get(module, set()):
                    yield f"{node.lineno}: from {module} import {alias.name}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in FILE_CALLS.get(node.value.id, set()):
                yield f"{node.lineno}: {node.value.id}.{node.attr}"
            elif node.attr in PATH_METHODS:
                yield f"{node.lineno}: .{node.attr}"
        elif isinstance(node, ast.Attribute) and node.attr in PATH_METHODS:
            yield f"{node.lineno}: .{node.attr}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILTIN_CALLS:
            yield f"{node.lineno}: {node.func.id}()"


def test_every_engine_module_has_its_place_in_the_reading_order():
    present = {path.stem for path in ENGINE.glob("*.py")} - {"__init__"}
    assert present == set(ENGINE_ORDER), "put a new module where its dependencies allow it"


def test_engine_modules_import_only_modules_before_them():
    backwards = [
        f"{path.name}:{line} imports {target}"
        for path in python_files(ENGINE)
        if path.stem in ENGINE_ORDER
        for line, name in imported_modules(path)
        if (target := engine_module(name)) in ENGINE_ORDER
        and ENGINE_ORDER.index(target) >= ENGINE_ORDER.index(path.stem)
    ]
    assert backwards == []


@pytest.mark.contract("API-02")
def test_the_engine_imports_neither_django_nor_the_django_layer():
    wrong = [
        f"{path.name}:{line} imports {name}"
        for path in python_files(ENGINE)
        for line, name in imported_modules(path)
        if name.split(".")[0] in {"django", "asgiref"}
        or (name.startswith("nobroker_django.") and name.split(".")[1] not in {"engine", "__version__"})
    ]
    assert wrong == []


def test_only_the_files_module_asks_the_operating_system_for_files():
    wrong = [
        f"{path.relative_to(ENGINE)}:{call}"
        for path in python_files(ENGINE)
        if path not in (ENGINE / "files.py", ENGINE / "libc.py")
        for call in file_calls(path)
    ]
    assert wrong == []


def test_what_the_files_module_has_asked_elsewhere_is_asked_through_it():
    askers = {
        path.name
        for path in python_files(ENGINE)
        for _, name in imported_modules(path)
        if engine_module(name) == "libc"
    }
    assert askers == {"files.py"}
    assert {call.split(": ")[1] for call in file_calls(ENGINE / "libc.py")} == {"import ctypes", "os.stat"}


def test_nothing_opens_files_when_apps_are_loaded():
    apps = PACKAGE / "apps.py"
    assert list(file_calls(apps)) == []
    assert [name for _, name in imported_modules(apps) if engine_module(name) in {"queue", "log", "projection"}] == []


def test_no_module_has_a_name_that_autodiscovery_or_the_decorator_would_trip_over():
    assert [path for path in python_files(PACKAGE) if path.stem in {"task", "tasks"}] == []


def test_every_module_says_what_it_owns():
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files(PACKAGE)
        if path.name != "__init__.py" and not ast.get_docstring(parse(path))
    ]
    assert silent == []


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_module_too_long_for_one_sitting_is_pointed_out():
    for path in python_files(PACKAGE):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > LONG_MODULE:
            warnings.warn(f"{path.relative_to(ROOT)} has {lines} lines", UserWarning, stacklevel=1)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import os\nos.fsync(3)", ["2: os.fsync"]),
        ("from os import open as o", ["1: from os import open"]),
        ("import fcntl", ["1: import fcntl"]),
        ("open('x')", ["1: open()"]),
        ("p.write_text('x')", ["1: .write_text"]),
        ("self.files.open('x', 0)\nself.files.write(3, b'')", []),
    ],
)
def test_the_search_for_file_calls_finds_them(tmp_path, code, found):
    path = tmp_path / "module.py"
    path.write_text(code)
    assert list(file_calls(path)) == found
