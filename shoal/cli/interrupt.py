# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a library is busy: Python sees a signal only between its own steps, and a query is one long step.

Invariant: `interruptible` returns or raises what the work did; after a Ctrl-C it waits a moment, never for the work.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

_GRACE_S = 1.0
_LOOK_S = 0.1
_busy: set[threading.Event] = set()  # one for each work that still runs


def interruptible(work: Callable[[], None], cancel: Callable[[], None]) -> None:
    """Run `work` beside the main thread, which stays free for Ctrl-C; `cancel` asks it to end."""
    failed: list[BaseException] = []
    done = threading.Event()

    def body() -> None:
        try:
            work()
        except BaseException as err:  # noqa: BLE001  raised again below
            failed.append(err)
        finally:
            _busy.discard(done)
            done.set()

    _busy.add(done)
    thread = threading.Thread(target=body, name="shoal-statement", daemon=True)
    try:
        thread.start()
        # Not Thread.join: interrupted, it takes the thread for ended (Python 3.11). Not one long wait: a signal that
        # the kernel gives to another thread does not end it.
        while not done.wait(_LOOK_S):
            pass
    except KeyboardInterrupt:
        cancel()
        done.wait(_GRACE_S)
        raise
    if failed:
        raise failed[0]


def leave_if_busy(code: int) -> None:
    """End the process where work that was interrupted goes on: an orderly exit would tear down what it uses."""
    if _busy:
        sys.stderr.flush()
        os._exit(code)
