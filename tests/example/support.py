"""Runs the example site's commands the way a person does: as processes, from another directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent / "example_project"


def manage(
    *arguments: str, cwd: Path, data: Path | None = None, timeout: float = 120.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `manage.py` with warnings as errors; `data` is the site's data directory."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(PROJECT / "manage.py"), *arguments],
        cwd=cwd,
        env=site_environment(data) | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def site_environment(data: Path | None) -> dict[str, str]:
    """The environment without the test suite's settings."""
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    if data is not None:
        environment["PHOTO_ALBUM_DATA"] = str(data)
    return environment
