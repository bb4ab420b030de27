"""Explain: a group of dead letters in sentences: why they are one group, and what sets them apart."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from redrive.group import Skew
from redrive.operate.cli.show import said
from redrive.operate.cli.text import one_line, plural, when
from redrive.operate.views import GroupStory

_ALWAYS: Final = 0.995
_NEVER: Final = 0.005


def sentences(story: GroupStory, now: datetime) -> Iterator[str]:
    """Say what is known of a group."""
    each = story.group
    counts = f"{plural(each.dead_count, 'dead letter')} now, {each.total_count:,} ever"
    yield f"Group {each.short} is {each.state}: {counts}."
    yield f"Why they are one group: {each.why}."
    yield f"They say: {one_line(said(each.title), 300)}"
    yield f"The first was seen {when(each.first_seen_at, now)}, the last {when(each.last_seen_at, now)}."
    if each.last_generation != each.first_generation:
        yield f"They began with generation {each.first_generation} and were last seen with {each.last_generation}."
    for found in story.skews:
        yield _skew_sentence(found, compared=bool(story.delivered))
    yield compared(story)
    for redrive, members in story.redrives[:3]:
        yield (
            f"Redrive {str(redrive.id)[:13]} had {members:,} of them "
            f"and is {redrive.state}: {redrive.delivered:,} delivered, {redrive.failed:,} failed."
        )


def _skew_sentence(found: Skew, *, compared: bool) -> str:
    value = one_line(found.value, 80) or "empty"
    dead = _share(found.among_dead, "all of the dead letters", "of the dead letters")
    if not compared:
        return f"{found.field} is {value} in {dead}."
    among = found.among_delivered
    other = (
        "none of the delivered ones" if among < _NEVER else _share(among, "all delivered ones", "of the delivered ones")
    )
    return f"{found.field} is {value} in {dead}, but in {other}."


def _share(share: float, whole: str, some: str) -> str:
    return whole if share >= _ALWAYS else f"{share:.0%} {some}"


def compared(story: GroupStory) -> str:
    """Say with how many events the dead letters were compared."""
    if not story.dead:
        return "It has no dead letters now, so there is nothing to compare."
    if not story.delivered:
        looked = plural(story.dead, "dead letter")
        return f"{looked} looked at; none of {story.group.target} was delivered to compare with."
    nothing = "" if story.skews else "No field does. "
    return f"{nothing}{plural(story.dead, 'dead letter')} compared with {plural(story.delivered, 'delivered event')}."
