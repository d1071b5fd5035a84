"""Very many states after power cuts, in pieces that processes can share: scripts, kills, failed syncs, writers."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import combinations, count
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

from .crashing import Findings, recover_draws, recover_recoveries, traced
from .interleaving import interleaved, same_randomness
from .ledger import Script
from .scripts import SCRIPTS

Piece = tuple[Any, ...]  # the kind, and its arguments: this is the seed


def more(script: Script) -> None:
    """What the next process does."""
    script.enqueue("z1")
    script.lease(1)
    script.enqueue("z2", "z3")


def pieces() -> Iterator[Piece]:
    """What is tried: a part that ends, then programs of several writers without end."""
    for name in SCRIPTS:
        yield "script", name
        yield "recovery", name
        for kill_at in range(0, 120, 7):
            yield "killed", name, kill_at
    for pair in combinations(range(8), 2):
        yield "failed syncs", *pair
    for seed in count():
        yield "writers", seed
        if seed % 4 == 0:
            yield "writers on version 1", seed


def recover_piece(piece: Piece) -> Findings:
    """Try one piece. Ids are the same in every piece, so that what two of them have in common is seen as one state."""
    findings, rng = Findings(), Random(repr(piece))
    scratch = Path(tempfile.mkdtemp(prefix="nobroker-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    logging.disable(logging.WARNING)
    try:
        with same_randomness("states"):
            _recover(piece, scratch, rng, findings)
    except Exception as error:
        findings.broken.append(f"{type(error).__name__}: {str(error)[:400]}")
    finally:
        logging.disable(logging.NOTSET)
        shutil.rmtree(scratch, ignore_errors=True)
    return findings


def _recover(piece: Piece, scratch: Path, rng: Random, findings: Findings) -> None:
    queue, images = scratch / "queue", scratch / "images"
    match piece:
        case "script", name:
            recover_draws(traced(queue, SCRIPTS[name], more), images, rng, 8, findings)
        case "recovery", name:
            recover_recoveries(traced(queue, SCRIPTS[name], more), images, rng, 40, 2, findings)
        case "killed", name, kill_at:
            recover_draws(traced(queue, SCRIPTS[name], more, kill_at=kill_at), images, rng, 1, findings)
        case "failed syncs", *pair:
            trace = traced(queue, SCRIPTS["every verb"], more, fail_syncs=frozenset(pair))
            recover_draws(trace, images, rng, 2, findings)
        case "writers", seed:
            recover_draws(interleaved(queue, seed), images, rng, 2, findings)
        case "writers on version 1", seed:
            recover_draws(interleaved(queue, seed, old=True), images, rng, 2, findings)


def recover_many(wanted: int, processes: int) -> tuple[Findings, list[Piece]]:
    """Try pieces until there were ``wanted`` different states; prints how far it is."""
    all_of_it, done = Findings(), list[Piece]()
    source, running = pieces(), dict[Future[Findings], Piece]()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        while running or len(all_of_it.seen) < wanted:
            while len(running) < 2 * processes and len(all_of_it.seen) < wanted:
                piece = next(source)
                running[pool.submit(recover_piece, piece)] = piece
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                piece, found = running.pop(future), future.result()
                done.append(piece)
                all_of_it.images += found.images
                all_of_it.seen |= found.seen
                all_of_it.broken += [f"{piece}, {text}" for text in found.broken]
                broken = f", {len(found.broken)} broken" if found.broken else ""
                print(f"{len(all_of_it.seen)} states; {piece}: {found.images}{broken}", flush=True)
    return all_of_it, done
