#!/usr/bin/env python
"""The site's command line: `python example_project/manage.py <command>`, from any working directory."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Run one management command with the site's settings."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "photosite.settings")
    if find_spec("nobroker_django") is None:
        # A checkout runs without being installed; an installed package always comes first.
        sys.path.append(str(Path(__file__).resolve().parent.parent))
    try:
        from django.core.management import execute_from_command_line
    except ImportError as error:
        raise SystemExit(
            f"Django cannot be imported ({error}). Install the example's packages first, "
            "from the top of the checkout: python -m pip install -e '.[example]'"
        ) from error
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
