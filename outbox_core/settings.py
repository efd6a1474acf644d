"""The settings of a deployment, from OUTBOX_* variables; every wrong one is refused at start, by name.

A limit is the variable OUTBOX_<NAME> of the field in `domain.limits.Limits`, which is where its default lives.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import ipaddress
import json
import os
import re
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, InstanceOf, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from outbox_core.domain.errors import ConfigurationError
from outbox_core.domain.identity import is_id
from outbox_core.domain.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

PREFIX = "OUTBOX_"

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|m|h|d)?", re.ASCII)
_UNIT_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_LONGEST = timedelta(days=3_650)
_COUNT = re.compile(r"\d{1,12}", re.ASCII)
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_DATABASE = re.compile(r"[A-Za-z0-9_-]{1,63}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", re.ASCII)
_SECRET_PREFIX = "whsec_"  # noqa: S105 - it says what a secret is, and is none
_SHORTEST_KEY, _LONGEST_KEY = 24, 64
_SECRETS_FORM = 'must be a JSON object of names and secrets, for example {"shop": "whsec_…"}'
_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}

_OTHERS = ("OUTBOX_TEST_", "OUTBOX_DEV_")
"""Variables of the tests and of the development stack, read elsewhere."""

# Kubernetes puts these into every pod beside a service whose name begins with "outbox".
_SERVICE_LINK = re.compile(r"OUTBOX_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")


def parse_duration(text: str) -> timedelta:
    """Read "500ms", "30s", "10m", "2h", "1d", or a plain number of seconds; raise ValueError otherwise."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{_shown(text)} is not a duration; use for example 500ms, 30s, 10m, 2h or 1d")
    duration = timedelta(seconds=float(found[1]) * _UNIT_SECONDS[found[2] or "s"])
    if duration > _LONGEST:
        raise ValueError(f"{_shown(text)} is longer than ten years; use for example 30s")
    if timedelta(0) < duration < timedelta(milliseconds=1):
        raise ValueError(f"{_shown(text)} is shorter than a millisecond; use for example 500ms")
    return duration


def parse_count(text: str) -> int:
    """Read a whole number; raise ValueError otherwise."""
    if _COUNT.fullmatch(text.strip()) is None:
        raise ValueError(f"{_shown(text)} is not a whole number; use for example 200")
    return int(text)


def _shown(text: str) -> str:
    """An address or a secret that stands in the wrong variable is not repeated: it may carry a password."""
    return "the value given" if any(mark in text for mark in ("@", "://", _SECRET_PREFIX)) else repr(text[:40])


def _mongo_url(value: object) -> object:
    """Check the form alone, and never echo the value: it may carry a password."""
    text = _secret_text(value)
    if text is not None and not text.startswith(("mongodb://", "mongodb+srv://")):
        raise ValueError(
            "must begin with mongodb:// or mongodb+srv://, for example mongodb://host:27017/?replicaSet=rs0"
        )
    return value


def _broker_url(value: object) -> object:
    text = _secret_text(value)
    if text is not None:
        scheme, port = _scheme_and_port(text.split(";")[0])
        if scheme not in {"redis", "rediss", "sentinel", "memory"} or port == 0:
            raise ValueError("must be a Redis address, for example redis://host:6379/0")
    return value


def _scheme_and_port(url: str) -> tuple[str, int | None]:
    """Return the port as 0 where it is none."""
    parts = urlsplit(url)
    try:
        return parts.scheme, parts.port
    except ValueError:
        return parts.scheme, 0


def _github_secret(value: object) -> object:
    if _secret_text(value) == "":
        raise ValueError("is empty; leave it unset to take deliveries without a signature")
    return value


def _webhook_secrets(value: object) -> object:
    """Read {"name": "whsec_…"} or {"name": ["whsec_new…", "whsec_old…"]}, and never echo a secret."""
    if not isinstance(value, str):
        return value
    try:
        given = json.loads(value)
    except ValueError:
        raise ValueError(_SECRETS_FORM) from None
    if not isinstance(given, dict):
        raise ValueError(_SECRETS_FORM)  # noqa: TRY004 - pydantic takes a ValueError for the input's
    read: dict[str, tuple[str, ...]] = {}
    for name, secrets in given.items():
        read[name] = tuple(secrets) if isinstance(secrets, list) else (secrets,)
        if not is_id(name):
            raise ValueError(f"{_shown(name)} is no name of a secret; use up to 64 of A-Z a-z 0-9 . _ -")
        if not read[name] or not all(_is_webhook_secret(secret) for secret in read[name]):
            raise ValueError(f"{name}: a secret is whsec_ and the Base64 of 24 to 64 random bytes")
    return read


def _is_webhook_secret(secret: object) -> bool:
    if not isinstance(secret, str) or not secret.startswith(_SECRET_PREFIX):
        return False
    text = secret.removeprefix(_SECRET_PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return _SHORTEST_KEY <= len(key) <= _LONGEST_KEY


def _allow_private(value: object) -> object:
    """Read on (every address), off (none), or hosts and networks joined by commas."""
    if not isinstance(value, str):
        return value
    if value.lower() in _SWITCH:
        return ("0.0.0.0/0", "::/0") if _SWITCH[value.lower()] else ()
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    for name in names:
        if not _is_network(name) and (_HOST.fullmatch(name) is None or name.replace(".", "").isdigit()):
            raise ValueError(
                f"{_shown(name)} is no host or network; use on, off, or for example 10.0.0.0/8,hooks.internal"
            )
    return names


def _is_network(name: str) -> bool:
    try:
        ipaddress.ip_network(name, strict=False)
    except ValueError:
        return False
    return True


def _secret_text(value: object) -> str | None:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return value if isinstance(value, str) else None


def _database(value: object) -> object:
    if isinstance(value, str) and _DATABASE.fullmatch(value) is None:
        raise ValueError(f"{_shown(value)} is no name of a database; use up to 63 of A-Z a-z 0-9 _ -")
    return value


def _modules(value: object) -> object:
    if not isinstance(value, str):
        return value
    modules = tuple(part.strip() for part in value.split(",") if part.strip())
    for module in modules:
        if _MODULE.fullmatch(module) is None:
            raise ValueError(f"{_shown(module)} is no name of a module; use for example shop.bots,billing.bots")
    return modules


def _switch(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.lower() not in _SWITCH:
        raise ValueError(f"{_shown(value)} is neither on nor off")
    return _SWITCH[value.lower()]


class Settings(BaseSettings):
    """What a process must know of its deployment; `load_settings` reads it from the environment.

    `bots` are modules to import. `hints` off means that nothing but ticks finds work.
    Addresses are secrets, since they may carry a password. `webhook_secrets` are the signing secrets of the webhook bot
    by name, the newest first; `webhook_allow_private` are hosts and networks that it may reach though not public.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", validate_default=False, hide_input_in_errors=True
    )

    mongo_url: Annotated[SecretStr, BeforeValidator(_mongo_url)] = SecretStr("mongodb://127.0.0.1:27017/")
    mongo_db: Annotated[str, BeforeValidator(_database)] = "outbox"
    broker_url: Annotated[SecretStr, BeforeValidator(_broker_url)] = SecretStr("redis://127.0.0.1:6379/0")
    bots: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_modules)] = ()
    hints: Annotated[bool, BeforeValidator(_switch)] = True
    github_secret: Annotated[SecretStr | None, BeforeValidator(_github_secret)] = None
    webhook_secrets: Annotated[dict[str, tuple[SecretStr, ...]], NoDecode, BeforeValidator(_webhook_secrets)] = {}
    webhook_allow_private: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_allow_private)] = ()
    limits: InstanceOf[Limits] = Field(default_factory=Limits)


def load_settings() -> Settings:
    """Read the environment; raise ConfigurationError, in one line that names each wrong variable.

    A variable that begins with OUTBOX_ and is none of ours is refused: it is a typo of one. OUTBOX_TEST_* and
    OUTBOX_DEV_* are left alone.
    """
    variables = {name: text for name, text in os.environ.items() if name.startswith(PREFIX)}
    problems = [*_unknown(variables)]
    limits: dict[str, Any] = {}
    for name, default in _limit_defaults().items():
        if (variable := f"{PREFIX}{name.upper()}") in variables:
            parse: Callable[[str], object] = parse_duration if isinstance(default, timedelta) else parse_count
            try:
                limits[name] = parse(variables[variable])
            except ValueError as error:
                problems.append(f"{variable}: {error}")
    settings: Settings | None = None
    try:
        settings = Settings()
    except ValidationError as error:
        problems += _lines_of(error)
    if problems or settings is None:
        raise ConfigurationError("; ".join(problems))
    return settings.model_copy(update={"limits": Limits(**limits)})


def variable_names() -> tuple[str, ...]:
    """Return every variable that `load_settings` reads."""
    own = [name for name in Settings.model_fields if name != "limits"]
    return tuple(f"{PREFIX}{name.upper()}" for name in (*own, *_limit_defaults()))


def _limit_defaults() -> Mapping[str, object]:
    return {field.name: field.default for field in fields(Limits)}


def _unknown(variables: Iterable[str]) -> Iterator[str]:
    known = variable_names()
    for variable in sorted(variables):
        if variable in known or variable.startswith(_OTHERS) or _SERVICE_LINK.fullmatch(variable):
            continue
        near = difflib.get_close_matches(variable, known, n=1, cutoff=0.7)
        yield f"{variable} is no setting" + (f"; did you mean {near[0]}?" if near else "; remove it")


def _lines_of(error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        text = problem["msg"].removeprefix("Value error, ")
        yield f"{PREFIX}{str(problem['loc'][0]).upper()}: {text}"
