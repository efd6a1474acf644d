"""`outbox subscriptions`: the rules of a tenant."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.enable_subscription import enable_subscription
from outbox_core.bots import load_bots, registry, require_arguments
from outbox_core.cli.opening import opened, say_if_unknown
from outbox_core.cli.output import json_option, print_json, print_table, tenant_option
from outbox_core.cli.subscription_input import from_file, from_options
from outbox_core.domain.errors import InvalidInputError, SubscriptionNotFoundError
from outbox_core.domain.subscription import DIRECT
from outbox_core.sources.reach import why_it_never_fires

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from outbox_core.bootstrap import Outbox
    from outbox_core.domain.subscription import Subscription

_Command = TypeVar("_Command", bound="Callable[..., Any]")

_sub_id = click.argument("sub_id", metavar="ID")


@click.group(short_help="Add, list, disable, enable and remove rules.")
def subscriptions() -> None:
    """Add, list, disable, enable and remove subscriptions: which events launch which bot."""


def _terms(option: str, name: str, text: str) -> Callable[[_Command], _Command]:
    return click.option(option, name, multiple=True, metavar=option.strip("-").upper(), help=text)


@subscriptions.command("add")
@tenant_option
@click.argument("sub_id", metavar="[ID]", required=False)
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), help="Read it from JSON.")
@click.option("--bot", "bot_id", metavar="BOT", help="The bot that a match launches.")
@_terms("--source", "sources", "Match this source: board, forge, app, cloudevents.")
@_terms("--type", "types", "Match this type, such as issues or pull_request.")
@_terms("--action", "actions", "Match this action, such as opened.")
@_terms("--state", "subject_states", "Match this state of the subject, such as closed.")
@_terms("--author", "authors", "Match who acted.")
@_terms("--label", "labels", "Match subjects that bear this label; all of several.")
@_terms("--match-repo", "repos", "Match this repo.")
@click.option("--repo", default="", help="Belong to one repo; without it, to the tenant.")
@click.option("--var", "pairs", multiple=True, metavar="NAME=VALUE", help="A fixed argument; a JSON value, else text.")
@click.option("--args-var", default="", metavar="NAME", help="The argument that receives the event.")
@click.option("--mode", default=DIRECT, show_default=True, help="How: direct launches, board stamps the card.")
@_terms("--consume-label", "consume_labels", "Take this label off the card first, once; it must be a --label too.")
@click.option("--disabled", is_flag=True, help="Add it disabled.")
@click.option("--origin", default="cli", show_default=True, help="Where the rule comes from.")
@click.option("--created-by", default="", metavar="WHO", help="Who made the rule.")
@click.option("--allow-unknown-bot", is_flag=True, help="Add it though no module in OUTBOX_BOTS has the bot.")
@click.option("--anyway", is_flag=True, help="Add it though it can never fire, as far as is known here.")
@json_option
@click.pass_context
def add(ctx: click.Context, /, *, tenant: str, file: Path | None, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - click's options
    """Add a rule, from options or from a JSON file; it matches what comes from now on.

    Terms of one kind are alternatives, kinds must all match, a kind without terms matches anything. The same rule again
    changes nothing, and leaves it disabled where it is; another rule under an id that is taken is refused.

    \b
    FILE: {"id", "bot", "repo", "match": {"sources", "types", "actions",
      "repos", "authors", "subject_states", "labels"}, "vars", "args_var",
      "mode", "consume_labels", "enabled", "origin", "created_by"};
      id and bot must be there.
    JSON: {"subscription": {FILE's fields, "from_seq", "created_at"},
      "changed": true or false}
    It matches events numbered above from_seq.
    """  # noqa: D301 - click's mark for text that it must not wrap
    allow_unknown_bot, anyway = given.pop("allow_unknown_bot"), given.pop("anyway")
    rule = _asked_for(ctx, tenant, file, given)
    never = why_it_never_fires(rule)
    if never and not anyway:
        raise InvalidInputError(f"{rule.sub_id} can never fire: {'; '.join(never)} (--anyway adds it all the same)")
    with opened() as outbox:
        if not allow_unknown_bot:
            _require_bot(outbox, rule)
        added = add_subscription(outbox.tenant(tenant), rule)
    stored = added.rule
    if as_json:
        print_json({"subscription": subscription_document(stored), "changed": added.fresh})
    else:
        state = "matches" if stored.enabled else "is disabled; enabled, it matches"
        unchanged = "" if added.fresh else " unchanged:"
        click.echo(f"{stored.sub_id}{unchanged} {state} events from number {stored.horizon.highest + 1} on")


@subscriptions.command("list")
@tenant_option
@json_option
def list_subscriptions(*, tenant: str, as_json: bool) -> None:
    """List the rules, by id.

    \b
    JSON: {"subscriptions": [{FILE's fields of `add`, "from_seq",
      "created_at"}, ...]}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        rules = outbox.tenant(tenant).subscriptions.all()
        if not rules:
            say_if_unknown(outbox, tenant)
    if as_json:
        print_json({"subscriptions": [subscription_document(rule) for rule in rules]})
        return
    print_table(
        ("subscription", "bot", "mode", "enabled", "from", "matches"),
        (
            (
                rule.sub_id,
                rule.bot_id,
                rule.mode,
                "yes" if rule.enabled else "no",
                rule.horizon.highest + 1,
                _terms_of(rule),
            )
            for rule in rules
        ),
        folds=("subscription", "bot", "matches"),
    )


@subscriptions.command("disable")
@tenant_option
@_sub_id
@json_option
def disable(*, tenant: str, sub_id: str, as_json: bool) -> None:
    """Disable a rule: its queued rows drop when their turn comes, new events make none.

    \b
    JSON: {"sub_id", "changed": true or false}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = outbox.tenant(tenant).subscriptions.set_enabled(sub_id, enabled=False)
    _print_changed(sub_id, "disabled", changed=changed, as_json=as_json)


@subscriptions.command("enable")
@tenant_option
@_sub_id
@json_option
def enable(*, tenant: str, sub_id: str, as_json: bool) -> None:
    """Enable a rule again, for what comes from now on.

    \b
    JSON: {"sub_id", "changed": true or false}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        changed = enable_subscription(outbox.tenant(tenant), sub_id)
    _print_changed(sub_id, "enabled", changed=changed, as_json=as_json)


@subscriptions.command("remove")
@tenant_option
@_sub_id
@json_option
def remove(*, tenant: str, sub_id: str, as_json: bool) -> None:
    """Remove a rule: its queued rows drop when their turn comes. The exit code is 1 where there is none.

    \b
    JSON: {"sub_id", "changed": true}
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox:
        if not outbox.tenant(tenant).subscriptions.remove(sub_id):
            raise SubscriptionNotFoundError(f"tenant {tenant} has no subscription {sub_id!r}")
    _print_changed(sub_id, "removed", changed=True, as_json=as_json)


def subscription_document(rule: Subscription) -> Mapping[str, Any]:
    """Return a rule as `--json` prints it."""
    return {
        "id": rule.sub_id,
        "bot": rule.bot_id,
        "repo": rule.repo,
        "match": {name: list(terms) for name, terms in dataclasses.asdict(rule.match).items()},
        "vars": dict(rule.vars),
        "args_var": rule.args_var,
        "mode": rule.mode,
        "consume_labels": list(rule.consume_labels),
        "enabled": rule.enabled,
        "origin": rule.origin,
        "created_by": rule.created_by,
        "from_seq": rule.horizon.highest,
        "created_at": rule.created_at,
    }


def _asked_for(ctx: click.Context, tenant: str, file: Path | None, given: dict[str, Any]) -> Subscription:
    if file is None:
        return from_options(tenant, given)
    typed = [name for name in given if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if typed:
        raise click.UsageError("give the rule either by --file or by ID and options, not both")
    return from_file(tenant, file)


def _require_bot(outbox: Outbox, rule: Subscription) -> None:
    load_bots(outbox.settings.bots)
    found = registry.get(rule.bot_id)
    if found is None:
        known = ", ".join(sorted(bot.bot_id for bot in registry)) or "none: OUTBOX_BOTS names no module"
        raise InvalidInputError(
            f"no bot is called {rule.bot_id!r} here; known are {known} "
            "(--allow-unknown-bot, where a worker elsewhere knows it)"
        )
    require_arguments(found, rule.vars, rule.args_var)


def _terms_of(rule: Subscription) -> str:
    terms = dataclasses.asdict(rule.match)
    said = [f"{name}: {', '.join(values)}" for name, values in terms.items() if values]
    told = "; ".join([*([f"repo: {rule.repo}"] if rule.repo else []), *said]) or "everything"
    return f"{told}; takes off: {', '.join(rule.consume_labels)}" if rule.consume_labels else told


def _print_changed(sub_id: str, state: str, *, changed: bool, as_json: bool) -> None:
    if as_json:
        print_json({"sub_id": sub_id, "changed": changed})
    else:
        click.echo(f"{sub_id} {'is' if changed else 'was already'} {state}")
