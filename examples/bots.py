"""Small bots that do real work: OUTBOX_BOTS=examples.bots makes a worker know them.

A bot is a function of the run and of the subscription's `vars`. What it returns is kept with the run; what it raises
says what happens next: RetryLater (again after a while, no attempt spent), DefinitiveError (no use trying again), any
other exception (again, within the budget of attempts).
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import httpx

from outbox_core import DefinitiveError, Outbox, RetryLater, Run, bot
from outbox_core.domain.errors import CardNotFoundError
from outbox_core.domain.identity import fitting_id

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_S = 10

# "Not now", said in the range of "never": time-out, too early, too many requests.
LATER = {408, 425, 429}


@bot("print-it")
def print_it(run: Run, **given: object) -> None:
    """Prints what happened, into the worker's log."""
    seen = run.event.attributes
    words = " ".join(f"{name}={value}" for name, value in given.items())
    print(f"{run.tenant} #{run.event.seq}: {seen.type} {seen.action} {seen.subject} {words}".rstrip())


@bot("file-it", transactional=True)
def file_it(run: Run, folder: str = "inbox") -> dict[str, Any]:
    """Files what it saw into a collection of its own, exactly once: its writes commit together with the done mark."""
    if run.transaction is None:
        raise DefinitiveError("file-it was not started as a transactional bot")
    seen = run.event.attributes
    files = run.transaction.database["example_files"]
    counters = run.transaction.database["example_folders"]
    session = run.transaction.session
    files.insert_one(
        {
            "tenant_id": run.tenant,
            "folder": folder,
            "effect_id": run.effect_id,
            "event_id": run.event.event_id,
            "what": f"{seen.type}.{seen.action}",
            "subject": seen.subject,
        },
        session=session,
    )
    counters.update_one(
        {"_id": f"{run.tenant}/{folder}"},
        {"$inc": {"files": 1}, "$setOnInsert": {"tenant_id": run.tenant}},
        upsert=True,
        session=session,
    )
    return {"folder": folder}


@bot("call-back", time_limit=timedelta(seconds=30))
def call_back(run: Run, url: str) -> dict[str, Any]:
    """Posts the event to an address. It may be posted more than once, always under the same Idempotency-Key."""
    seen = run.event.attributes
    answer = httpx.post(
        url,
        json={
            "event_id": run.event.event_id,
            "type": seen.type,
            "action": seen.action,
            "subject": seen.subject,
            "data": dict(run.event.data),
        },
        headers={"Idempotency-Key": run.effect_id},
        timeout=TIMEOUT_S,
    )
    if answer.is_client_error and answer.status_code not in LATER:
        raise DefinitiveError(f"{url} refused it with {answer.status_code}")
    answer.raise_for_status()
    return {"status": answer.status_code, "attempt": run.attempt}


@bot("wait-for-target")
def wait_for_target(run: Run, url: str, every_seconds: float = 30) -> dict[str, Any]:
    """Tells its target once that is up; while it is down, asks to be retried later, which costs no attempt."""
    try:
        httpx.get(url, timeout=TIMEOUT_S).raise_for_status()
    except httpx.HTTPError as error:
        raise RetryLater(timedelta(seconds=every_seconds), f"{url} is down: {error}") from error
    httpx.post(url, headers={"Idempotency-Key": run.effect_id}, timeout=TIMEOUT_S).raise_for_status()
    return {"told": url}


@bot("label-by-title")
def label_by_title(run: Run, words: Mapping[str, str]) -> dict[str, Any]:
    """Labels the card by the words of its title: `words` says which word stands for which label.

    It may run more than once and labels once: the change is an event of its own, under an id made of the effect's. That
    event carries a run_id, so it reports on this run and launches nothing, not even this bot.
    """
    title = str(run.event.data.get("title", "")).casefold()
    found = set(re.findall(r"\w+", title))
    labels = sorted({label for word, label in words.items() if word.casefold() in found})
    if not labels:
        return {"labels": []}
    try:
        outbox().boards(run.tenant).label_card(
            run.event.attributes.subject,
            add=labels,
            author="label-by-title",
            run_id=run.effect_id,
            event_id=fitting_id(run.effect_id),
        )
    except CardNotFoundError:
        return {"labels": [], "gone": True}
    return {"labels": labels}


@lru_cache(maxsize=1)
def outbox() -> Outbox:
    """The outbox that this process works for; it connects on first use, anew after a fork."""
    return Outbox.from_settings()
