"""`outbox stats`: how far the work of a tenant has come."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from outbox_core.application.tenant_stats import tenant_stats
from outbox_core.cli.opening import opened, say_if_unknown
from outbox_core.cli.output import instant_text, json_option, print_json, print_table, table_text, tenant_option
from outbox_core.domain.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outbox_core.application.tenant_stats import TenantStats
    from outbox_core.bootstrap import Outbox

_TRIES = 3


@click.command(short_help="Show how far a tenant's work has come.")
@tenant_option
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option(
    "--interval", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, help="Seconds between two looks."
)
@json_option
def stats(*, tenant: str, watch: bool, interval: float, as_json: bool) -> None:
    """Show a tenant's log, cursor, rows by state, and what is due.

    \b
    JSON, with --watch one line for each look:
      {"tenant_id", "now", "last_seq", "drained_seq", "undrained", "live",
      "rows": {"pending": N, "claimed": N, "failed": N, "done:delivered": N,
      "done:<reason>": N}, "next_due", "subscriptions", "enabled"}
    A state without rows is missing from "rows".
    """  # noqa: D301 - click's mark for text that it must not wrap
    with opened() as outbox, contextlib.suppress(KeyboardInterrupt):
        found = tenant_stats(outbox.tenant(tenant))
        if not (found.last_seq or found.subscriptions or found.rows):
            say_if_unknown(outbox, tenant)
        _print(found, as_json=as_json, over=False)
        while watch:
            time.sleep(interval)
            _print(_patiently(outbox, tenant), as_json=as_json, over=not as_json and sys.stdout.isatty())


def _patiently(outbox: Outbox, tenant: str) -> TenantStats:
    """Look again through a short outage: a failover should not end a watch."""
    for _ in range(_TRIES - 1):
        try:
            return tenant_stats(outbox.tenant(tenant))
        except TransientError as error:
            click.echo(f"outbox: {error}", err=True)
    return tenant_stats(outbox.tenant(tenant))


def stats_document(found: TenantStats) -> Mapping[str, Any]:
    """Return what `outbox stats --json` prints."""
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    return {**fields, "rows": dict(sorted(found.rows.items())), "undrained": found.undrained, "live": found.live}


def _print(found: TenantStats, *, as_json: bool, over: bool) -> None:
    if as_json:
        print_json(stats_document(found))
        return
    rows = [
        ("tenant", found.tenant_id),
        ("server's time", instant_text(found.now)),
        ("events", f"{found.last_seq}, drained up to {found.drained_seq}"),
        ("subscriptions", f"{found.subscriptions}, enabled {found.enabled}"),
        *((f"rows {state}", count) for state, count in sorted(found.rows.items())),
        ("next due", instant_text(found.next_due) or "nothing"),
    ]
    if over:
        click.echo("\x1b[H\x1b[J" + table_text(("", ""), rows), nl=False)
    else:
        print_table(("", ""), rows)
