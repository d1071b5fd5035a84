"""Importing the modules that define tasks, and what is said of one that cannot be."""

import sys
from pathlib import Path

import pytest
from django.utils import autoreload

from nobroker_django import NobrokerError
from nobroker_django.discovery import TasksImportError, discover, failures, find_or_import

MISTAKES = {
    "no_such_import": ("import os\n\nimport no_such\n", "ModuleNotFoundError: No module named 'no_such'", 3),
    "in_a_call": ("def work():\n    raise ValueError('no')\n\n\nwork()\n", "ValueError: no", 2),
    "no_python": ("x = 1\nx = = 2\n", "SyntaxError: invalid syntax", 2),
    "in_the_library": ("import json\n\njson.loads('{')\n", "JSONDecodeError: Expecting property name", 3),
    "a_wrong_name": (
        "from nobroker_django import task\n\n\n@task(name='a b\\nc')\ndef work(): ...\n",
        "InvalidOptionError: name: 'a b\\nc' is no task name",
        4,
    ),
    "that_exits": ("import sys\nsys.exit('good bye')\n", "SystemExit: good bye", 2),
    "that_exits_without_a_word": ("raise SystemExit\n", "SystemExit", 1),
}  # fmt: skip
"""Modules, what is said of each, and the line."""


@pytest.fixture
def module(tmp_path, monkeypatch, settings):
    """Make modules that are in ``IMPORTS``."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def make(name: str, source: str) -> Path:
        path: Path = tmp_path / f"{name}.py"
        path.write_text(source)
        made.append(name)
        settings.NOBROKER = {**settings.NOBROKER, "IMPORTS": list(made)}
        return path

    yield make
    for name in made:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_module_that_cannot_be_imported_is_named_with_the_line_of_the_project(module, name):
    source, text, line = MISTAKES[name]
    path = module(name, source)
    with pytest.raises(TasksImportError) as caught:
        discover()
    assert str(caught.value).startswith(f"{name} cannot be imported: {text}")
    assert str(caught.value).endswith(f" ({path}, line {line})")
    assert caught.value.name == name
    assert caught.value.__cause__ is not None
    assert isinstance(caught.value, NobrokerError)


@pytest.mark.parametrize("source", ["def broken(:\n", "1 / 0\n", "raise SystemExit(1)\n"])
def test_djangos_autoreload_watches_the_file_of_a_mistake_until_it_is_mended(module, monkeypatch, source):
    watched: list[str] = []
    monkeypatch.setattr(autoreload, "_error_files", watched)
    monkeypatch.setattr(autoreload, "_exception", None)
    path = module("mistaken", source)
    with pytest.raises(TasksImportError):
        autoreload.check_errors(discover)()
    assert watched == [str(path)]


def test_the_place_is_that_of_the_innermost_module_of_the_project(module, tmp_path):
    (tmp_path / "helpers_of_tasks.py").write_text("\nimport no_such_library\n")
    module("imports_helpers", "import helpers_of_tasks\n")
    with pytest.raises(TasksImportError, match=rf"^imports_helpers .*{tmp_path}/helpers_of_tasks\.py, line 2\)$"):
        discover()


def test_all_that_cannot_be_imported_is_found_and_the_rest_imported(module):
    module("first_mistake", "1 / 0\n")
    module("no_mistake", "number = 1\n")
    module("second_mistake", "raise SystemExit(1)\n")
    assert [error.name for error in failures()] == ["first_mistake", "second_mistake"]
    assert sys.modules["no_mistake"].number == 1


def test_an_interrupt_during_an_import_goes_through(module):
    module("interrupted", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        discover()


def test_a_tasks_module_of_an_app_is_imported_and_none_is_no_error(module, settings, tmp_path):
    assert list(failures()) == []
    app = tmp_path / "app_with_tasks"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "tasks.py").write_text("import no_such_library\n")
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "app_with_tasks"]
    with pytest.raises(TasksImportError, match=rf"^app_with_tasks\.tasks .*{app}/tasks\.py, line 1\)$"):
        discover()


def test_a_module_that_exits_when_a_job_looks_for_its_task_does_not_end_the_worker(module, caplog):
    module("exits_when_looked_for", "raise SystemExit(3)\n")
    assert find_or_import("exits_when_looked_for.work") is None
    assert "exits_when_looked_for.work cannot be imported" in caplog.text
