"""`outbox dead`: the deliveries that consumers gave up."""

from __future__ import annotations

import dataclasses
import shlex
from typing import TYPE_CHECKING, Any

import click

from outbox_core.cli.consumers import print_changed, said_options
from outbox_core.cli.opening import opened
from outbox_core.cli.output import json_option, print_json, print_table, say, tenant_option
from outbox_core.domain.consumer import DeadLetter, LetterState
from outbox_core.ports.consumers import letter_key

if TYPE_CHECKING:
    from collections.abc import Mapping

_consumer = click.argument("consumer_id", metavar="CONSUMER")
_event = click.argument("event_id", metavar="EVENT")


@click.group(short_help="List, show, replay and resolve a consumer's dead letters.")
def dead() -> None:
    """List, show, replay and resolve dead letters: events that a consumer's observer failed ten times."""


@dead.command("list")
@tenant_option
@click.option("--consumer", "consumer_id", metavar="CONSUMER", help="Only this consumer's.")
@click.option("--state", type=click.Choice([state.value for state in LetterState]), help="Only those in this state.")
@click.option("--after", default="", metavar="KEY", help="Only those that come after this one; see next_after.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@json_option
def list_letters(
    *, tenant: str, consumer_id: str | None, state: str | None, after: str, limit: int, as_json: bool
) -> None:
    """List dead letters, by consumer and event.

    \b
    JSON: {"letters": [{"consumer_id", "event_id", "sequence", "state",
      "attempts", "failure_class", "parked_at", "replays", "settled_at",
      "settled_by", "settled_why"}, ...], "next_after": KEY or null}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        found = outbox.consumers(tenant).letters(consumer_id=consumer_id, state=state, after=after, limit=limit)
    next_after = letter_key(found[-1].consumer_id, found[-1].event_id) if len(found) == limit else None
    if as_json:
        print_json({"letters": [_listed(one) for one in found], "next_after": next_after})
        return
    if not found:
        say(f"tenant {tenant} has no such dead letters")
    print_table(
        ("consumer", "event", "state", "tries", "failed with", "parked", "settled"),
        (
            (
                one.consumer_id,
                one.event_id,
                one.state.value,
                one.attempts,
                one.failure_class,
                one.parked_at,
                one.settled_at,
            )
            for one in found
        ),
        folds=("consumer", "event", "failed with"),
    )
    if next_after is not None:
        say(f"there may be more: outbox dead list --tenant {tenant} --after {shlex.quote(next_after)}")


@dead.command("show")
@tenant_option
@_consumer
@_event
@json_option
def show(*, tenant: str, consumer_id: str, event_id: str, as_json: bool) -> None:
    """Show one dead letter with its own copy of the event.

    \b
    JSON: {"letter": as `list` prints it, with "event": the event, or null
      where it could not be read}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        found = outbox.consumers(tenant).letter(consumer_id, event_id)
    event = {**dataclasses.asdict(found.event), "event_id": found.event.event_id} if found.event else None
    if as_json:
        print_json({"letter": {**_listed(found), "event": event}})
        return
    told = {**_listed(found), **{f"event.{name}": value for name, value in (event or {}).items()}}
    print_table(("field", "value"), ((n, v) for n, v in told.items() if v not in (None, "")), folds=("value",))


@dead.command("replay")
@tenant_option
@_consumer
@_event
@said_options
@json_option
def replay(*, tenant: str, consumer_id: str, event_id: str, by: str, why: str, as_json: bool) -> None:
    """Have the consumer observe an event again, alone, at its next poll; a repeat does nothing.

    Where it fails again, the letter is unresolved again. A deletion whose card was restored meanwhile is not observed.

    \b
    JSON: {"consumer_id", "event_id", "changed": true or false}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = outbox.consumers(tenant).replay(consumer_id, event_id, by=by, why=why)
        settled = outbox.consumers(tenant).letter(consumer_id, event_id).state is LetterState.RESOLVED
    named = {"consumer_id": consumer_id, "event_id": event_id}
    text = f"{event_id} of {consumer_id} is resolved" if settled else f"{consumer_id} is to observe {event_id} again"
    print_changed(named, text, changed=changed, as_json=as_json)


@dead.command("resolve")
@tenant_option
@_consumer
@_event
@said_options
@json_option
def resolve(*, tenant: str, consumer_id: str, event_id: str, by: str, why: str, as_json: bool) -> None:
    """Settle a dead letter without observing it.

    \b
    JSON: {"consumer_id", "event_id", "changed": true or false}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = outbox.consumers(tenant).resolve(consumer_id, event_id, by=by, why=why)
    named = {"consumer_id": consumer_id, "event_id": event_id}
    print_changed(named, f"{event_id} of {consumer_id} is resolved", changed=changed, as_json=as_json)


def _listed(one: DeadLetter) -> Mapping[str, Any]:
    return {
        "consumer_id": one.consumer_id,
        "event_id": one.event_id,
        "sequence": one.sequence,
        "state": one.state.value,
        "attempts": one.attempts,
        "failure_class": one.failure_class,
        "parked_at": one.parked_at,
        "replays": one.replays,
        "settled_at": one.settled_at,
        "settled_by": one.settled_by or None,
        "settled_why": one.settled_why or None,
    }
