"""A rule as a person gives it, by options or in a JSON file."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import click
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, ValidationError

from outbox_core.application.add_subscription import require_storable
from outbox_core.domain.errors import InvalidInputError
from outbox_core.domain.subscription import DIRECT, Match, Subscription

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_FILE_BYTES = 1024 * 1024

_Terms = Annotated[tuple[StrictStr, ...], Field(max_length=1_000)]


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _GivenMatch(_Given):
    sources: _Terms = ()
    types: _Terms = ()
    actions: _Terms = ()
    repos: _Terms = ()
    authors: _Terms = ()
    subject_states: _Terms = ()
    labels: _Terms = ()


class _GivenRule(_Given):
    id: StrictStr
    bot: StrictStr
    repo: StrictStr = ""
    match: _GivenMatch = _GivenMatch()
    vars: dict[str, Any] = {}
    args_var: StrictStr = ""
    mode: StrictStr = DIRECT
    consume_labels: _Terms = ()
    enabled: StrictBool = True
    origin: StrictStr = "cli"
    created_by: StrictStr = ""


def from_options(tenant: str, given: Mapping[str, Any]) -> Subscription:
    """Return the rule that the options of `add` describe, by their parameters' names.

    Raises InvalidInputError, or UsageError where ID or --bot is missing.
    """
    if given["sub_id"] is None or given["bot_id"] is None:
        raise click.UsageError("give ID and --bot, or --file")
    match = {name: tuple(given[name]) for name in _GivenMatch.model_fields}
    return _rule(
        tenant,
        _GivenRule(
            id=given["sub_id"],
            bot=given["bot_id"],
            match=_GivenMatch(**match),
            vars=_once([_pair(text) for text in given["pairs"]]),
            consume_labels=given["consume_labels"],
            enabled=not given["disabled"],
            **{name: given[name] for name in ("repo", "args_var", "mode", "origin", "created_by")},
        ),
    )


def from_file(tenant: str, file: Path) -> Subscription:
    """Return the rule that a JSON file holds, `-` being standard input; raise InvalidInputError."""
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as stream:
            text = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInputError(f"{file} cannot be read: {error.strerror}") from error
    if len(text) > MAX_FILE_BYTES:
        raise InvalidInputError(f"{file} is larger than {MAX_FILE_BYTES:,} bytes; a rule is smaller")
    try:
        given = _GivenRule.model_validate_json(text)
        json.loads(text, object_pairs_hook=_once)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidInputError(f"{file}: {place + ': ' if place else ''}{first['msg']}") from None
    return _rule(tenant, given)


def _rule(tenant: str, given: _GivenRule) -> Subscription:
    rule = Subscription(
        tenant_id=tenant,
        sub_id=given.id,
        bot_id=given.bot,
        match=Match(**given.match.model_dump()),
        repo=given.repo,
        mode=given.mode,
        consume_labels=given.consume_labels,
        vars=given.vars,
        args_var=given.args_var,
        enabled=given.enabled,
        origin=given.origin,
        created_by=given.created_by,
    )
    # Before the store is asked for anything.
    require_storable(rule)
    return rule


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that is given twice: the last value would silently win."""
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise InvalidInputError(f"{', '.join(twice)}: given more than once")
    return dict(pairs)


def _pair(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE; a value that is JSON is taken as it, any other as text."""
    name, separator, value = text.partition("=")
    if not separator:
        raise InvalidInputError(f"--var {text!r}: use NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
