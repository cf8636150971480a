# SPDX-License-Identifier: Apache-2.0
"""Staged files and writer states as bytes: JSON with a version, for checkpoints and for other processes.

Agrees with: CommitMessageSerializer, ManifestCommittableSerializer in what they keep, not in their bytes. Invariant:
`decode(encode(x)) == x`; bytes of a version that is not known are refused, never guessed at.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from shoal.errors import BadRequest
from shoal.table.staged import Staged

VERSION = 1

Value = TypeVar("Value")


def encode(staged: Staged) -> bytes:
    return packed("staged", staged)


def decode(data: bytes | str) -> Staged:
    """What `encode` was given; `BadRequest` when these are other bytes, or those of a newer version."""
    return unpacked("staged", data, Staged)


def packed(kind: str, value: object) -> bytes:
    return msgspec.json.encode({"kind": kind, "version": VERSION, "value": value})


def unpacked(kind: str, data: bytes | str, of: type[Value]) -> Value:
    try:
        head = msgspec.json.decode(data)
        found = head["kind"], head["version"]
    except (msgspec.DecodeError, TypeError, KeyError) as err:
        raise BadRequest(f"these bytes are no {kind} value", hint="give what encode() returned") from err
    if found != (kind, VERSION):
        raise BadRequest(
            f"these bytes are a {found[0]} value of version {found[1]}, not {kind} of version {VERSION}",
            hint="read them with the release of shoal that wrote them",
        )
    try:
        return msgspec.convert(head["value"], of)
    except msgspec.ValidationError as err:
        raise BadRequest(f"these bytes are a damaged {kind} value ({err})") from err
