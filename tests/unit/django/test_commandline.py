"""What the management commands share: exit codes, sentences instead of tracebacks."""

import pytest
from django.core.management import CommandError, call_command

from nobroker_django.commandline import NobrokerCommand


def test_an_interrupted_command_ends_with_the_code_for_it(monkeypatch):
    def interrupt(self, options):
        raise KeyboardInterrupt

    monkeypatch.setattr(NobrokerCommand, "run", interrupt)
    with pytest.raises(CommandError, match="interrupted") as raised:
        call_command(NobrokerCommand())
    assert raised.value.returncode == 130
