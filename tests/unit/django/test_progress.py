"""The live line, on a real pseudo-terminal."""

import codecs
import fcntl
import io
import os
import pty
import re
import struct
import termios
import threading
import tty

import pytest

from nobroker_django.worker.progress import Counts, LiveLine

COUNTS = Counts(ready=1200, delayed=3, running=4, done=50, failed=6)
TEXT = "4 running · 1,200 ready · 3 delayed · 50 done · 6 failed"


class Terminal:
    """What a program writes to, and what a person would see of it."""

    def __init__(self, columns=120):
        self.master, slave = pty.openpty()
        tty.setraw(slave)  # line ends as they are written
        self.resize(columns)
        self.stream = os.fdopen(slave, "w", encoding="utf-8")
        os.set_blocking(self.master, False)
        self.decode = codecs.getincrementaldecoder("utf-8")().decode
        self.written = ""

    def resize(self, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def read(self):
        """What was written since the last look."""
        new = ""
        while True:
            try:
                new += self.decode(os.read(self.master, 65536))
            except BlockingIOError:
                self.written += new
                return new

    def screen(self):
        """The lines that stand on the screen, the unfinished one last."""
        self.read()
        lines = []
        for raw in self.written.split("\n"):
            line = ""
            for piece in re.findall(r"\r|\x1b\[K|[^\r\x1b]+", raw):
                line = "" if piece == "\r" else line if piece == "\x1b[K" else line + piece
            lines.append(line)
        return lines

    def close(self):
        self.stream.close()
        os.close(self.master)


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    made = Terminal()
    yield made
    made.close()


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_it_shows_the_counts_on_one_line(terminal):
    line = LiveLine(terminal.stream, lambda: COUNTS)
    assert line.active
    line.refresh()
    assert terminal.screen() == [TEXT]


def test_it_is_drawn_at_most_four_times_a_second_and_only_when_something_changed(terminal):
    clock = Clock()
    done: list[int] = []
    line = LiveLine(terminal.stream, lambda: Counts(0, 0, 0, len(done), 0), clock=clock)
    drawn = 0
    for _ in range(100):
        done.append(1)
        clock.now += 0.01
        line.refresh()
        drawn += terminal.read().count("\r")
    assert drawn == 4
    clock.now += 0.25
    line.refresh()
    assert terminal.screen()[-1].endswith("100 done · 0 failed")
    clock.now += 0.25
    line.refresh()
    assert terminal.read() == ""


def test_ordinary_lines_stand_whole_above_it(terminal):
    line = LiveLine(terminal.stream, lambda: COUNTS)

    def say(text):
        with line.hidden():
            terminal.stream.write(f"{text}\n")
            terminal.stream.flush()

    say("before anything is drawn")
    line.refresh()
    say("first")
    say("second")
    assert terminal.screen() == ["before anything is drawn", "first", "second", TEXT]
    line.close()
    assert terminal.screen() == ["before anything is drawn", "first", "second", ""]
    line.refresh()
    say("third")
    assert terminal.screen()[-2:] == ["third", ""]


def test_lines_of_several_threads_do_not_tear(terminal):
    clock = Clock()
    line = LiveLine(terminal.stream, lambda: Counts(0, 0, 0, int(clock.now), 0), clock=clock)

    def say(name):
        for number in range(100):
            with line.hidden():
                terminal.stream.write(f"line {name} {number}")
                terminal.stream.flush()
                terminal.stream.write("\n")
                terminal.stream.flush()
            clock.now += 1
            line.refresh()

    # What nobody reads fills the terminal, and the writers would wait.
    stop = threading.Event()
    reader = threading.Thread(target=lambda: [terminal.read() for _ in iter(stop.is_set, True)])
    reader.start()
    threads = [threading.Thread(target=say, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    reader.join()
    *lines, last = terminal.screen()
    assert sorted(lines) == sorted(f"line {name} {number}" for name in range(3) for number in range(100))
    assert "running" in last


def test_it_fits_into_the_terminal_also_when_that_is_made_narrower(terminal):
    clock = Clock()
    done: list[int] = []
    line = LiveLine(terminal.stream, lambda: Counts(1, 2, 3, len(done), 5), clock=clock)
    for columns in (120, 30, 2, 1):
        terminal.resize(columns)
        done.append(1)
        clock.now += 1
        line.refresh()
        assert 0 < len(terminal.screen()[-1]) <= max(1, columns - 1)
    terminal.resize(30)
    done.append(1)
    clock.now += 1
    line.refresh()
    assert terminal.screen()[-1] == "3 running · 1 ready · 2 dela…"


def test_nothing_at_all_where_there_is_no_terminal(terminal, monkeypatch):
    asked: list[int] = []

    def counts():
        asked.append(1)
        return COUNTS

    closed = io.StringIO()
    closed.close()
    text = io.StringIO()
    for stream in (None, text, closed):
        line = LiveLine(stream, counts)
        line.refresh()
        with line.hidden():
            pass
        line.close()
        assert not line.active
    monkeypatch.setenv("TERM", "dumb")
    LiveLine(terminal.stream, counts).refresh()
    assert (text.getvalue(), terminal.read(), asked) == ("", "", [])


def test_no_color_makes_no_difference(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    LiveLine(terminal.stream, lambda: COUNTS).refresh()
    assert terminal.screen() == [TEXT]


def test_a_terminal_that_is_gone_is_no_error():
    terminal = Terminal()
    line = LiveLine(terminal.stream, lambda: COUNTS)
    terminal.stream.close()
    os.close(terminal.master)
    line.refresh()
    with line.hidden():
        pass
    line.close()
    assert not line.active
