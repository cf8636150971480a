# SPDX-License-Identifier: Apache-2.0
"""Everything shoal raises on purpose, and the exit code each kind gives at the terminal.

    ShoalError
    +-- NotFound       table, database, snapshot, tag      exit 2   SH-NOT-FOUND
    +-- BadRequest     your input: option, SQL, rows       exit 2   SH-BAD-REQUEST
    +-- Unsupported    valid Paimon, not done here         exit 2   SH-UNSUPPORTED
    +-- MissingExtra   an optional package is missing      exit 2   SH-MISSING-EXTRA
    +-- Conflict       someone else committed first        exit 3   SH-CONFLICT
    +-- CommitUnknown  may or may not be visible           exit 3   SH-COMMIT-UNKNOWN
    +-- Fenced         another writer owns this user       exit 3   SH-FENCED
    +-- StorageFailed  disk full, store unreachable        exit 3   SH-STORAGE
    +-- Corrupt        bytes break the format              exit 4   SH-CORRUPT

Invariant: a class exists only where a caller would act differently; the message carries the fact
and the object, `hint` carries the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ShoalError(Exception):
    """Base of everything shoal raises on purpose. `hint` says what to do next."""

    code = "SH-ERROR"
    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class NotFound(ShoalError):
    """A database, table, snapshot, tag or file that was named does not exist."""

    code = "SH-NOT-FOUND"


class BadRequest(ShoalError):
    """The caller's input is wrong: an option, a value, SQL, a schema change."""

    code = "SH-BAD-REQUEST"


class Unsupported(ShoalError):
    """Valid Paimon that this version does not do; doing it half would give wrong results."""

    code = "SH-UNSUPPORTED"


class MissingExtra(ShoalError):
    """An optional package is needed; the hint is the pip command."""

    code = "SH-MISSING-EXTRA"


class Conflict(ShoalError):
    """Another writer changed the same files first. Nothing of this attempt is visible; safe to plan again."""

    code = "SH-CONFLICT"
    exit_code = 3


class CommitUnknown(ShoalError):
    """The store failed while the snapshot was created and could not be asked afterwards.

    The commit may or may not be visible; commit the same checkpoint id again, which is a no-op if it is.
    """

    code = "SH-COMMIT-UNKNOWN"
    exit_code = 3


class Fenced(ShoalError):
    """Another writer owns this commit user; this one must stop."""

    code = "SH-FENCED"
    exit_code = 3


class StorageFailed(ShoalError):
    """The store refused or failed: disk full, no permission, unreachable. Nothing half-written is visible.

    `definite`: the store is sure that the call did nothing. Otherwise it may still take effect.
    """

    code = "SH-STORAGE"
    exit_code = 3

    def __init__(self, message: str, *, hint: str | None = None, definite: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.definite = definite


class Corrupt(ShoalError):
    """Bytes break the format; the message names the file and, where known, the offset."""

    code = "SH-CORRUPT"
    exit_code = 4


def near(word: str, known: Iterable[str]) -> str | None:
    """A hint that names the nearest known words, or None when nothing is near.

    >>> near("bukcet", ["bucket", "bucket-key"])
    "did you mean 'bucket'?"
    """
    found = difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)
    if not found:
        return None
    return "did you mean " + " or ".join(f"'{w}'" for w in found[: 1 if _clear(word, found) else 3]) + "?"


def _clear(word: str, found: list[str]) -> bool:
    scores = [difflib.SequenceMatcher(None, word, f).ratio() for f in found]
    return len(scores) == 1 or scores[0] - scores[1] > 0.05
