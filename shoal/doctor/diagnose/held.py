# SPDX-License-Identifier: Apache-2.0
"""D15: tags or branches keep much data that the table itself has long replaced.

A tag costs what it lists and no retained snapshot reaches. Tags that go by themselves in time, and automatic ones whose
number is limited, are the owner's choice. Agrees with: TagAutoCreation, TagTimeExpire, TagDeletion (2.0.0).
Invariant: a tag whose files the table still uses costs nothing and is no finding, whatever it lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shoal.doctor.diagnose.case import Case
from shoal.doctor.finding import Finding
from shoal.doctor.window import NOTHING, Count, Holder

NAME = "held by tag or branch"
_MUCH = 1 / 3  # of the live bytes: what is paid for goes up by a third
_SOME = 0.1
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class _Held:
    holder: Holder
    least: Count
    most: Count
    alone: Count | None


def held(case: Case) -> Iterator[Finding]:
    """What only tags and branches keep, where nothing bounds it."""
    live = case.model.debt.live
    kept = _kept(case)
    if live is None or not kept:
        return
    now = case.now_ms
    loose = [h for h in kept if not _bounded(case, h.holder) or _overdue(h.holder, now)]
    pins = case.window.stock.pins
    names = {(h.holder.kind, h.holder.name) for h in loose}
    if pins is not None and len(loose) == len(kept):
        total = pins.together
    elif pins is not None:
        # What a bounded tag keeps as well would stay: the sum of what each keeps alone is certain, the largest one too.
        alone = sum((p.alone for p in pins.pins if (p.kind, p.name) in names), NOTHING)
        largest = max((p.holds for p in pins.pins if (p.kind, p.name) in names), key=lambda c: c.bytes, default=NOTHING)
        total = max(alone, largest, key=lambda c: c.bytes)
    else:
        total = max((h.least for h in loose), key=lambda c: c.bytes, default=NOTHING)  # they may share files
    size = max(live.data.bytes, 1)
    share = total.bytes / size
    if share < _SOME:
        return
    worst = max(loose, key=lambda h: h.least.bytes)
    overdue = [h.holder.name for h in loose if _overdue(h.holder, now)]
    kinds: list[str] = sorted({h.holder.kind for h in loose})
    age = None if worst.holder.time_ms is None else (now - worst.holder.time_ms) / _DAY_MS
    exact = pins is not None and pins.exact
    yield Finding(
        "D15", NAME, "warn" if share >= _MUCH else "info", "supported" if exact else "consistent with",
        {"table": case.window.name or case.window.table, worst.holder.kind: worst.holder.name},
        {"held_bytes": total.bytes, "held_files": total.files, "live_bytes": live.data.bytes,
         "share_of_live": round(share, 3), "holders": len(loose), "largest": worst.holder.name,
         "largest_bytes": worst.least.bytes, "freed_with_it_alone": None if worst.alone is None else worst.alone.bytes,
         "largest_age_days": None if age is None else round(age, 2), "overdue": tuple(overdue), "exact": exact},
        f"{len(loose)} {' and '.join(_many(k, len(loose)) for k in kinds)} without an end "
        f"keep{'s' if len(loose) == 1 else ''} {'' if exact else 'at least '}{total.bytes:,} bytes in "
        f"{total.files:,} files that the table no longer has, {share:.0%} of its {live.data.bytes:,} live bytes"
        if not overdue else
        f"{len(overdue)} tags are past their time and still there: {total.bytes:,} bytes, {share:.0%} of the live ones",
        tuple(_change(case, kinds, worst, bool(overdue))),
        f"{total.bytes:,} bytes and {total.files:,} files are deleted"
        + (f"; {worst.holder.kind} '{worst.holder.name}' alone: {worst.alone.bytes:,} bytes" if worst.alone else ""),
        tuple(sorted({h.holder.snapshot for h in loose})[:5]),
    )  # fmt: skip


def _many(kind: str, n: int) -> str:
    return kind if n == 1 else {"branch": "branches"}.get(kind, f"{kind}s")


def _change(case: Case, kinds: list[str], worst: _Held, overdue: bool) -> Iterator[str]:
    if overdue:
        yield "CALL sys.expire_tags(`table` => '...'): the writer that would do it commits no more, or is write-only"
    if "tag" in kinds:
        if case.options.get("tag.automatic-creation") not in (None, "none"):
            yield "ALTER TABLE ... SET ('tag.num-retained-max' = 'N')"
        yield "ALTER TABLE ... SET ('tag.default-time-retained' = '...') for the tags to come"
    word = "delete_tag" if worst.holder.kind == "tag" else "delete_branch"
    yield f"CALL sys.{word}(`table` => '...', {worst.holder.kind} => '{worst.holder.name}') where nobody reads it"


def _kept(case: Case) -> list[_Held]:
    """Tags and branches with what they keep: by their manifests where these were read, else the bounds of the flows."""
    holders = {(h.kind, h.name): h for h in case.window.stock.holders if h.kind in ("tag", "branch")}
    pins = case.window.stock.pins
    if pins is not None:
        return [_Held(holders[p.kind, p.name], p.holds, p.holds, p.alone) for p in pins.pins if p.holds.files]
    found: Mapping[tuple[str, str], tuple[Count | None, Count | None]] = {
        (h.kind, h.name): (h.least, h.most) for h in case.model.retained.holders
    }
    out = []
    for key, holder in holders.items():
        least, most = found.get(key, (None, None))
        if least is not None and most is not None and most.files:
            out.append(_Held(holder, least, most, None))
    return out


def _bounded(case: Case, holder: Holder) -> bool:
    """Whether a tag goes by itself: in time, or as one of at most so many automatic ones."""
    if holder.kind != "tag":
        return False
    if holder.expires_ms is not None:
        return True
    most = case.options.get("tag.num-retained-max")
    if most is None or case.options.get("tag.automatic-creation") in (None, "none"):
        return False
    tags = sum(h.kind == "tag" and h.expires_ms is None for h in case.window.stock.holders)
    return tags <= int(str(most)) + 1


def _overdue(holder: Holder, now_ms: int) -> bool:
    return holder.expires_ms is not None and now_ms > holder.expires_ms + _DAY_MS
