"""The trail: what happened to events, in entries that can be added but not changed.

Every writer (a worker's session, the operators) has a chain of its own, numbered without gaps, in which each entry's
hash covers the one before. The database refuses updates and deletes; whoever goes round that leaves a break that
``verify`` finds. A chain cut off at its end is found by comparing with heads that were noted elsewhere.
"""

import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from redrive.event import TrailEntry
from redrive.instant import to_micros


def entry_hash(
    previous: str,
    chain: str,
    seq: int,
    micros: int,
    event_id: object,
    kind: str,
    source: str,
    actor: str,
    detail: str,
) -> str:
    """Hash one entry together with the hash before it. ``redrive.write_trail`` in PostgreSQL computes the same."""
    text = "\n".join(
        (
            previous, chain, str(seq), str(micros), "" if event_id is None else str(event_id), kind,
            f"{len(source)}:{source}", f"{len(actor)}:{actor}", detail,
        )
    )  # fmt: skip
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


@dataclass(slots=True)
class Verdict:
    """What a check of the whole trail found."""

    entries: int = 0
    heads: dict[str, tuple[int, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.problems


async def verify(entries: AsyncIterator[TrailEntry], noted: Mapping[str, tuple[int, str]]) -> Verdict:
    """Walk all chains in order. ``noted`` are heads that somebody wrote down earlier, outside the database."""
    verdict = Verdict()
    waiting = dict(noted)
    async for entry in entries:
        seq, previous = verdict.heads.get(entry.chain, (0, ""))
        expected = entry_hash(
            previous, entry.chain, entry.seq, to_micros(entry.at), entry.event_id, entry.kind, entry.source,
            entry.actor, entry.detail,
        )  # fmt: skip
        if entry.seq != seq + 1:
            verdict.problems.append(f"chain {entry.chain}: entry {seq + 1} is missing (found {entry.seq})")
        elif entry.hash != expected:
            verdict.problems.append(
                f"chain {entry.chain}: entry {entry.seq} ({entry.kind}) was changed after it was written"
            )
        verdict.heads[entry.chain] = (entry.seq, entry.hash)
        verdict.entries += 1
        if waiting.get(entry.chain, (0, ""))[0] == entry.seq and waiting.pop(entry.chain)[1] != entry.hash:
            verdict.problems.append(f"chain {entry.chain}: entry {entry.seq} is not the one that was noted")
    verdict.problems += [
        f"chain {chain}: ends before entry {seq}, which was noted" for chain, (seq, _) in waiting.items()
    ]
    return verdict
