"""The wheel holds what the package needs, nothing else, and works where nothing of the checkout is in reach."""

import os
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import nobroker_django

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "nobroker_django"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built without isolation (the build backend is one of the test requirements)."""
    directory = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (path,) = directory.glob("*.whl")
    return path


def package_files() -> set[str]:
    """Every file of the package in the checkout, as names in the wheel."""
    return {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == package_files()


def test_the_wheel_is_typed_and_carries_the_license(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "nobroker_django/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_metadata_say_what_pyproject_and_the_package_say(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Name"] == "nobroker-django"
    assert metadata["Version"] == nobroker_django.__version__
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    required = {line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert {line.split(">")[0].lower() for line in required} == {"django", "msgspec"}


def test_the_unpacked_wheel_works_without_the_checkout(wheel, tmp_path):
    """Its commands are found and a job goes through, with the wheel's files alone."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = f"""
import django, pathlib, nobroker_django
from django.conf import settings
settings.configure(INSTALLED_APPS=["nobroker_django"], NOBROKER={{"DIR": {str(tmp_path / "queues")!r}}})
django.setup()
from django.core.management import get_commands
print(pathlib.Path(nobroker_django.__file__).parent)
print(sorted(name for name, app in get_commands().items() if app == "nobroker_django"))
with nobroker_django.Queue({str(tmp_path / "engine")!r}) as queue:
    queue.enqueue(1)
    queue.ack(queue.lease_one())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    where, commands = done.stdout.splitlines()
    assert where == str(site / "nobroker_django")
    assert commands == str(sorted(path.stem for path in (PACKAGE / "management" / "commands").glob("nobroker_*.py")))


def test_every_extra_that_is_named_exists():
    """An unknown extra is only a warning for pip: ``.[tests]`` would install nothing and say little."""
    extras = PROJECT["optional-dependencies"]
    named = {
        name
        for requirements in extras.values()
        for requirement in requirements
        if requirement.startswith("nobroker-django[")
        for name in requirement.split("[")[1].rstrip("]").split(",")
    }
    assert named <= set(extras)
