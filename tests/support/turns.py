"""Several writers in threads of which one runs at a time: at every system call a seed says which goes on.

Each writer has a queue and files of its own, so that the locks of the system divide them as they divide processes.
The same seed gives the same order of system calls. Nobody sleeps: to wait is to let the others go on.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from nobroker_django.engine import clock
from nobroker_django.engine.log import SYNC_BYTE

from .faulty import SYNCING, Call
from .powercut import TraceFiles

_PATIENCE_SECONDS = 240.0


class Turns:
    """Who runs, and who is next.

    Args:
        stay: how likely a thread goes on at a call (0: never while another one could).
    """

    def __init__(self, rng: random.Random, stay: float) -> None:
        self._rng = rng
        self._stay = stay
        self._ready: dict[int, threading.Semaphore] = {}  # by thread; in the order in which they were started
        self._over = threading.Event()
        self._errors: list[BaseException] = []

    def run(self, *bodies: Callable[[], object]) -> None:
        """Run them all to their ends; raises what one of them raised."""
        gates = [threading.Semaphore(0) for _ in bodies]
        threads = [
            threading.Thread(target=self._play, args=(gate, body), daemon=True)
            for gate, body in zip(gates, bodies, strict=True)
        ]
        for thread, gate in zip(threads, gates, strict=True):
            thread.start()
            assert thread.ident is not None
            self._ready[thread.ident] = gate
        self._hand_over()
        assert self._over.wait(_PATIENCE_SECONDS), "the writers wait for each other"
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _play(self, gate: threading.Semaphore, body: Callable[[], object]) -> None:
        gate.acquire()
        try:
            body()
        except BaseException as error:
            self._errors.append(error)
        finally:
            del self._ready[threading.get_ident()]
            self._hand_over()

    def _hand_over(self) -> None:
        if self._ready:
            self._rng.choice(list(self._ready.values())).release()
        else:
            self._over.set()

    def turn(self) -> None:
        """Maybe let another thread go on; returns when it is this one's turn again."""
        gate = self._ready.get(threading.get_ident())
        if gate is not None and len(self._ready) > 1 and self._rng.random() >= self._stay:
            self._hand_over()
            gate.acquire()

    def _pause(self, seconds: float) -> None:
        self.turn()

    @contextmanager
    def instead_of_sleeping(self) -> Iterator[None]:
        """Every pause of the engine is a turn of the others."""
        with ExitStack() as patches:
            for name, module in list(sys.modules.items()):
                if name.startswith("nobroker_django.engine.") and getattr(module, "sleep", None) is clock.sleep:
                    patches.enter_context(mock.patch.object(module, "sleep", self._pause))
            yield


_SYNCED, _SYNCING_WORD, _POISONED, _LISTENING = 32, 40, 48, 80  # see ``control``


class TurnFiles(TraceFiles):
    """Records one writer's calls in the trace of all, and lets the others go on before each; and within each sync.

    It also looks whether the writer holds the locks that each change needs: a wrong order that harms only in one of
    many thousand runs is seen in every one.
    """

    def __init__(self, directory: Path, before: TraceFiles | None, turns: Turns, **options: Any) -> None:
        super().__init__(directory, before, **options)
        self._turns = turns
        self._locks: set[tuple[str, str]] = set()  # (path, which)
        self.breaches: list[str] = []

    def before(self, call: Call) -> Call:
        if not self.dead:
            self._check(call)
            self._turns.turn()
        return super().before(call)

    def after(self, call: Call, result: Any) -> None:
        path, numbers = call.path, call.arguments
        if call.kind == "flock" and numbers[0] and result:
            self._locks.add((path, "flock"))
        elif call.kind == "funlock":
            self._locks.discard((path, "flock"))
        elif call.kind == "lock_byte" and numbers[0] == SYNC_BYTE and result:
            self._locks.add((path, "sync"))
        elif call.kind == "unlock_byte" and numbers[0] == SYNC_BYTE:
            self._locks.discard((path, "sync"))
        if call.kind in SYNCING and not self.dead:
            self._turns.turn()  # what the others write now is not in this sync
        super().after(call, result)

    def _check(self, call: Call) -> None:
        """Every change of a log and of its words under the lock that it needs."""
        if call.kind == "close":  # which lets all of them go
            self._locks = {lock for lock in self._locks if lock[0] != call.path}
        held = {which for path, which in self._locks if path.endswith(".log")}
        creating = (call.path, "flock") in self._locks  # ``NAME.lock``, as version 1 holds it
        needed = set[str]()
        if call.path.endswith(".log") and call.kind in ("pwrite", "truncate"):
            needed = {"flock"}
        elif call.path.endswith(".log") and call.kind == "datasync" and _may_be_live(call.path):
            needed = {"sync"}
        elif call.path.endswith(".lock") and call.kind == "pwrite" and not creating:
            needed = {"sync"} if call.arguments[1] in (_SYNCED, _SYNCING_WORD) else {"flock"}
            if call.arguments[1] == _POISONED:
                needed = set() if held else {"flock or sync"}
            elif call.arguments[1] == _LISTENING:
                needed = set()
        if not needed <= held:
            self.breaches.append(f"{call} without {needed - held}")


def _may_be_live(log: str) -> bool:
    """Whether others may write to this log: until the pointer names it, it is its maker's alone."""
    path = Path(log)
    name, generation, _ = path.name.rsplit(".", 2)
    try:
        return int(generation) <= int((path.parent / f"{name}.current").read_text())
    except FileNotFoundError:
        return True
