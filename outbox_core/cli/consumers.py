"""`outbox consumers`: who observes a tenant's lifecycle stream, and how far each has come."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outbox_core.cli.opening import opened
from outbox_core.cli.output import json_option, print_json, print_table, say, tenant_option
from outbox_core.domain.consumer import Consumer, Start

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_Command = TypeVar("_Command", bound="Callable[..., Any]")

consumer_id = click.argument("consumer_id", metavar="CONSUMER")


def said_options(command: _Command) -> _Command:
    """Add the options that say who asks and why; both are audited."""
    for option in (
        click.option("--why", default="", metavar="TEXT", help="Why; it is audited."),
        click.option("--by", default="", metavar="WHO", help="Who asks; it is audited."),
    ):
        command = option(command)
    return command


@click.group(short_help="Register, list, show, retire, reconcile, pause consumers, and their lag.")
def consumers() -> None:
    """Register and watch consumers: each reads a tenant's committed deletions and restores from its own cursor."""


@consumers.command("register")
@tenant_option
@consumer_id
@click.option(
    "--start",
    type=click.Choice([start.value for start in Start]),
    required=True,
    help="Where it begins: at the first event that is kept, or by reconciling with what is live now.",
)
@click.option("--by", default="", metavar="WHO", help="Who asks; it is audited.")
@json_option
def register(*, tenant: str, consumer_id: str, start: str, by: str, as_json: bool) -> None:
    """Register a consumer; one that is registered is left as it is, its start too.

    From now on the stream keeps what it has not acknowledged. Its id must be the same after each restart: a host's
    name, a process id or a random id is refused. A retired one comes back, and reconciles first.

    \b
    JSON: {"consumer": {"consumer_id", "start", "cursor", "state", "failing",
      "stopped_for", "must_reconcile", "lease_owner", "lease_until",
      "heartbeat_at", "registered_at", "retired_at", "paused_at",
      "next_poll_at"}}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        stored = outbox.consumers(tenant).register(consumer_id, start=start, by=by)
    if as_json:
        print_json({"consumer": consumer_document(stored)})
        return
    click.echo(f"{consumer_id} is registered, and {_goes_on(stored)}")
    if stored.start != start:
        say(f"it was registered before, with start {stored.start.value}: that is left as it is")


@consumers.command("list")
@tenant_option
@click.option("--all", "with_retired", is_flag=True, help="Show retired ones too.")
@json_option
def list_consumers(*, tenant: str, with_retired: bool, as_json: bool) -> None:
    """List consumers, by id, with how far each has come.

    \b
    JSON: {"consumers": [as `register` prints it, with "lag" and
      "waiting_since", ...]}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        found, state = outbox.consumers(tenant).all(), outbox.consumers(tenant).state()
    shown = [one for one in found if with_retired or one.retired_at is None]
    if as_json:
        print_json({"consumers": [_with_lag(one, state.lags, state.waiting_since) for one in shown]})
        return
    if not shown:
        say(f"tenant {tenant} has no consumers; `outbox consumers register` makes one")
    print_table(
        ("consumer", "state", "cursor", "lag", "waiting since", "failing", "heartbeat", "owner"),
        (
            (
                one.consumer_id,
                state_of(one),
                one.cursor,
                state.lags.get(one.consumer_id),
                state.waiting_since.get(one.consumer_id),
                _failing_text(one),
                one.heartbeat_at,
                one.lease_owner,
            )
            for one in shown
        ),
        folds=("consumer", "failing", "owner"),
    )


@consumers.command("show")
@tenant_option
@consumer_id
@json_option
def show(*, tenant: str, consumer_id: str, as_json: bool) -> None:
    """Show one consumer.

    \b
    JSON: {"consumer": as `list` prints it}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        found, state = outbox.consumers(tenant).get(consumer_id), outbox.consumers(tenant).state()
    document = _with_lag(found, state.lags, state.waiting_since)
    if as_json:
        print_json({"consumer": document})
        return
    failing = {f"failing.{name}": value for name, value in (document["failing"] or {}).items()}
    told = {**document, "failing": None, **failing}
    print_table(("field", "value"), ((n, v) for n, v in told.items() if v not in (None, "")), folds=("value",))


@consumers.command("lag")
@tenant_option
@json_option
def lag(*, tenant: str, as_json: bool) -> None:
    """Show how far each consumer is behind, how far back the stream reaches, and why its rows are kept.

    \b
    JSON: {"head", "floor", "acknowledged_by_all", "held_by": [CONSUMER],
      "why", "lags": {CONSUMER: events}, "waiting_since": {CONSUMER: instant}}
    The floor is the lowest number that is kept.
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        state = outbox.consumers(tenant).state()
    prunable = state.prunable
    if as_json:
        print_json(
            {
                "head": state.head,
                "floor": state.floor,
                "acknowledged_by_all": prunable.acknowledged,
                "held_by": list(prunable.held_by),
                "why": prunable.why,
                "lags": dict(state.lags),
                "waiting_since": dict(state.waiting_since),
            }
        )
        return
    kept = max(0, state.head - state.floor + 1)
    if not state.head:
        click.echo(f"tenant {tenant} has no lifecycle events yet")
    elif not kept:
        click.echo(f"head {state.head}, no events kept")
    else:
        click.echo(f"head {state.head}, {kept} events kept from {state.floor} on: {prunable.why}")
    print_table(
        ("consumer", "lag", "waiting since"),
        ((one, behind, state.waiting_since.get(one)) for one, behind in sorted(state.lags.items())),
    )


@consumers.command("retire")
@tenant_option
@consumer_id
@said_options
@json_option
def retire(*, tenant: str, consumer_id: str, by: str, why: str, as_json: bool) -> None:
    """Let a consumer go for good: it keeps no event any more, and its dead letters are resolved.

    \b
    JSON: {"consumer_id", "changed": true or false}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = outbox.consumers(tenant).retire(consumer_id, by=by, why=why)
    print_changed({"consumer_id": consumer_id}, f"{consumer_id} is retired", changed=changed, as_json=as_json)


@consumers.command("reconcile")
@tenant_option
@consumer_id
@click.option("--skip", is_flag=True, help="Go on from the head without reconciling: what was missed stays missed.")
@said_options
@json_option
def reconcile(*, tenant: str, consumer_id: str, skip: bool, by: str, why: str, as_json: bool) -> None:
    """Have a consumer compare all it knows with the live cards at its next poll, then go on from the head.

    \b
    JSON: {"consumer_id", "head": NUMBER where it was skipped to, else null}
    """  # noqa: D301 - click's mark for text that it must not wrap
    head: int | None = None
    with opened() as outbox:
        if skip:
            head = outbox.consumers(tenant).skip(consumer_id, by=by, why=why)
        else:
            outbox.consumers(tenant).reconcile(consumer_id, by=by, why=why)
    if as_json:
        print_json({"consumer_id": consumer_id, "head": head})
    elif skip:
        click.echo(f"{consumer_id} goes on after event {head}; what came before is skipped")
    else:
        click.echo(f"{consumer_id} reconciles at its next poll")


@consumers.command("pause")
@tenant_option
@click.argument("consumer_ids", metavar="[CONSUMER]...", nargs=-1)
@json_option
def pause(*, tenant: str, consumer_ids: tuple[str, ...], as_json: bool) -> None:
    """Pause consumers in their place, all of the tenant where none is named: they cost nothing, and lose nothing.

    \b
    JSON: {"changed": [CONSUMER, ...]}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = outbox.consumers(tenant).pause(*consumer_ids)
    _print_names(changed, "paused", as_json=as_json)


@consumers.command("resume")
@tenant_option
@click.argument("consumer_ids", metavar="[CONSUMER]...", nargs=-1)
@json_option
def resume(*, tenant: str, consumer_ids: tuple[str, ...], as_json: bool) -> None:
    """Let paused consumers go on, all of the tenant where none is named.

    \b
    JSON: {"changed": [CONSUMER, ...]}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = outbox.consumers(tenant).resume(*consumer_ids)
    _print_names(changed, "resumed", as_json=as_json)


def state_of(one: Consumer) -> str:
    """Return what a person calls a consumer's state."""
    if one.retired_at is not None:
        return "retired"
    if one.paused_at is not None:
        return "paused"
    if one.stopped_for:
        return "stopped"
    if one.must_reconcile or one.cursor is None:
        return "to begin"
    return "failing" if one.failing else "active"


def consumer_document(one: Consumer) -> Mapping[str, Any]:
    """Return a consumer as `--json` prints it."""
    return {
        "consumer_id": one.consumer_id,
        "start": one.start.value,
        "cursor": one.cursor,
        "state": state_of(one),
        "failing": dataclasses.asdict(one.failing) if one.failing else None,
        "stopped_for": one.stopped_for or None,
        "must_reconcile": one.must_reconcile,
        "lease_owner": one.lease_owner or None,
        "lease_until": one.lease_until,
        "heartbeat_at": one.heartbeat_at,
        "registered_at": one.registered_at,
        "retired_at": one.retired_at,
        "paused_at": one.paused_at,
        "next_poll_at": one.next_poll_at,
    }


def print_changed(named: Mapping[str, Any], text: str, *, changed: bool, as_json: bool) -> None:
    """Print whether a command changed anything."""
    if as_json:
        print_json({**named, "changed": changed})
    else:
        click.echo(text if changed else f"nothing to do: {text} already")


def _with_lag(one: Consumer, lags: Mapping[str, int], since: Mapping[str, Any]) -> Mapping[str, Any]:
    place = {"lag": lags.get(one.consumer_id), "waiting_since": since.get(one.consumer_id)}
    return {**consumer_document(one), **place}


def _goes_on(one: Consumer) -> str:
    if one.must_reconcile:
        return "reconciles first"
    if one.cursor is not None:
        return f"goes on after event {one.cursor}"
    if one.start is Start.LATEST:
        return "begins by reconciling with the live cards"
    return "begins at the first event"


def _failing_text(one: Consumer) -> str:
    failing = one.failing
    if one.stopped_for:
        return f"must reconcile: {one.stopped_for}"
    return f"{failing.failure_class}, try {failing.attempts}: {failing.event_id}" if failing else ""


def _print_names(changed: Any, state: str, *, as_json: bool) -> None:  # noqa: ANN401 - names in any order
    names = sorted(changed)
    if as_json:
        print_json({"changed": names})
    else:
        click.echo(f"{state}: {', '.join(names)}" if names else f"nothing to do: none was to be {state}")
