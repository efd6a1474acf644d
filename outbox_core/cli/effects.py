"""`outbox effects`: the rows of a tenant, and what became of each."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from outbox_core.cli.opening import opened, say_if_unknown
from outbox_core.cli.output import instant_text, json_option, print_json, print_table, say, tenant_option
from outbox_core.domain.effect import DELIVERED
from outbox_core.domain.effect_lifecycle import LIVE, State

if TYPE_CHECKING:
    from collections.abc import Mapping

_LISTED = (
    "effect_id",
    "seq",
    "event_id",
    "kind",
    "state",
    "outcome",
    "sub_id",
    "bot_id",
    "attempts",
    "claims",
    "not_before",
    "created_at",
    "updated_at",
    "done_at",
    "last_error",
)


@click.group(short_help="List and show effects.")
def effects() -> None:
    """List and show effects: one row for each reaction that a subscription owes an event."""


@effects.command("list")
@tenant_option
@click.option("--state", type=click.Choice([state.value for state in State]), help="Only rows in this state.")
@click.option("--subscription", "sub_id", metavar="ID", help="Only rows of this subscription.")
@click.option("--after", default="", metavar="EFFECT_ID", help="Only rows that come after this one; see next_after.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@json_option
def list_effects(*, tenant: str, state: str | None, sub_id: str | None, after: str, limit: int, as_json: bool) -> None:
    """List rows, those of the newest events first; those of one event in the order of their ids.

    \b
    JSON: {"effects": [{"effect_id", "seq", "event_id", "kind", "state",
      "outcome", "sub_id", "bot_id", "attempts", "claims", "not_before",
      "created_at", "updated_at", "done_at", "last_error"}],
      "next_after": EFFECT_ID or null}
    A field that a row does not have is null; times are ISO 8601 in UTC. As
    stored: not_before is when a pending row is due and a claimed one's lease
    ends; last_error is of the last try that failed.
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        store = outbox.tenant(tenant)
        rows = store.effects.newest(state=state, sub_id=sub_id, after=after, limit=limit)
        if not rows:
            say_if_unknown(outbox, tenant)
            if sub_id is not None and sub_id not in store.subscriptions.get([sub_id]):
                say(f"tenant {tenant} has no subscription {sub_id!r}")
    next_after = rows[-1]["_id"] if len(rows) == limit else None
    if as_json:
        print_json({"effects": [_listed(row) for row in rows], "next_after": next_after})
        return
    print_table(
        ("seq", "subscription", "bot", "state", "outcome", "tries", "due", "settled", "effect", "last error"),
        (_row(row) for row in rows),
        folds=("subscription", "bot", "effect", "last error"),
    )
    if next_after is not None:
        same = {"--tenant": tenant, "--state": state, "--subscription": sub_id, "--limit": limit}
        words = [f"{option} {shlex.quote(str(value))}" for option, value in same.items() if value is not None]
        say(f"there may be more: outbox effects list {' '.join(words)} --after {shlex.quote(next_after)}")


@effects.command("show")
@tenant_option
@click.argument("effect_id")
@json_option
def show_effect(*, tenant: str, effect_id: str, as_json: bool) -> None:
    """Show one row with its run.

    \b
    JSON: {"effect": the stored row, its _id as "effect_id", its run as "run"}
    "run" is null where the bot never ran.
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        row = outbox.tenant(tenant).effects.get(effect_id)
    document = {"effect_id": row["_id"], **{name: value for name, value in row.items() if name != "_id"}}
    document.setdefault("run", None)
    if as_json:
        print_json({"effect": document})
        return
    print_table(("field", "value"), ((name, _told(value)) for name, value in _flat(document)), folds=("value",))


def _row(row: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what a person asks of a row: a settled one is not due, and a delivered one's former errors are past."""
    live = row.get("state") in {state.value for state in LIVE}
    return (
        row.get("seq"),
        row.get("sub_id"),
        row.get("bot_id") or f"({row.get('kind')})",
        row.get("state"),
        row.get("outcome"),
        row.get("attempts"),
        row.get("not_before") if live else None,
        None if live else row.get("done_at") or row.get("updated_at"),
        row["_id"],
        None if row.get("outcome") == DELIVERED else row.get("last_error"),
    )


def _listed(row: Mapping[str, Any]) -> Mapping[str, Any]:
    named = {**row, "effect_id": row["_id"]}
    return {name: named.get(name) for name in _LISTED}


def _flat(document: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    lines: list[tuple[str, Any]] = []
    for name, value in document.items():
        if isinstance(value, dict) and value:
            lines += _flat(value, f"{prefix}{name}.")
        elif value is not None and value not in ("", [], {}):
            lines.append((prefix + name, value))
    return lines


def _told(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else instant_text(value)
