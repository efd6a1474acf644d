"""The outbox that a command talks to."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outbox_core.bootstrap import Outbox
from outbox_core.bots import load_bots, registry
from outbox_core.cli.output import say
from outbox_core.domain.errors import ConfigurationError, UnreachableError
from outbox_core.settings import PREFIX, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def opened(*, needs_schema: bool = True) -> Iterator[Outbox]:
    """Yield the outbox of the environment, under `celery -A tasks` the one that sends hints; close it in the end.

    Raises ConfigurationError where a setting is wrong or the schema is not up to date: the indexes keep a repeat
    harmless, and a database without any is most often the wrong one. Where nothing answers at the address,
    UnreachableError names its variable.
    """
    import_from_here()
    outbox = _of_celery() or Outbox.from_settings()
    try:
        if needs_schema and outbox.store.maintenance.pending_schema():
            raise ConfigurationError("the database lacks steps of the schema: run `outbox schema` first")
        yield outbox
    except UnreachableError as error:
        names_it = (
            "OUTBOX_MONGO_URL names it"
            if os.environ.get("OUTBOX_MONGO_URL")
            else "OUTBOX_MONGO_URL is not set, this is its default: set it to your replica set's address"
        )
        raise UnreachableError(f"{error}; {names_it}") from error
    finally:
        outbox.close()


def say_if_unknown(outbox: Outbox, tenant: str) -> None:
    """Say so where a tenant of which there is nothing to show has nothing at all: its name may be a typo."""
    store = outbox.tenant(tenant)
    if not (store.log.head().last_seq or store.subscriptions.all() or store.effects.list(limit=1)):
        say(f"tenant {tenant} has no events, rules or rows yet")


def import_from_here() -> None:
    """Let modules of bots be found in the current folder, as celery does."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def checked_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the OUTBOX_* variables with changes; raise ConfigurationError where one is wrong, or a bot is missing."""
    import_from_here()
    with _environment(changes):
        settings = load_settings()
        found = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    load_bots(settings.bots)
    registry.check(settings.limits)
    return found


def apply_schema(environment: Mapping[str, str]) -> None:
    """Bring the schema of another environment's database up to date."""
    with _environment(environment):
        settings = load_settings()
    outbox = Outbox.from_settings(settings)
    try:
        outbox.ensure_schema()
    finally:
        outbox.close()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    former = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _of_celery() -> Outbox | None:
    """Return the outbox of `celery -A tasks`, which is imported already; never import it ourselves."""
    app = getattr(click.get_current_context().find_root().obj, "app", None)
    tasks = sys.modules.get("tasks")
    if app is None or tasks is None or getattr(tasks, "app", None) is not app:
        return None
    found = getattr(tasks, "outbox", None)
    return found if isinstance(found, Outbox) else None
