"""The bot `webhook`: posts its event to an address, signed by the Standard Webhooks rules.

OUTBOX_BOTS=outbox_core.webhook makes a worker know it. A rule's vars are `url`, and `secret`: the name of an entry of
OUTBOX_WEBHOOK_SECRETS. The body is the event as `args_var` gives it to bots, and `timestamp`. The `webhook-id` is the
effect id, each full stop in it written as a tilde: the same at each try, so that a receiver recognises a repeat.

What the answer means: 2xx is done; 429 or 503 with a Retry-After is tried again then, at no cost; 408, 425, 429, any
5xx, and no answer at all are a failed try; everything else, redirects and 410 above all, parks the row. An address that
is not public is refused unless OUTBOX_WEBHOOK_ALLOW_PRIVATE names it. No proxy is used.
"""

from __future__ import annotations

import inspect
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from outbox_core.bots import bot
from outbox_core.domain.bot import event_argument
from outbox_core.domain.errors import DefinitiveError
from outbox_core.settings import load_settings
from outbox_core.webhook.sending import Target, send
from outbox_core.webhook.signing import signed_headers
from outbox_core.webhook.verdict import NotDeliveredError, judge

if TYPE_CHECKING:
    from outbox_core.domain.bot import Run
    from outbox_core.domain.event import Event

__all__ = ["NotDeliveredError", "webhook"]

CONNECT_TIME = timedelta(seconds=5)
TOTAL_TIME = timedelta(seconds=20)
"""From the first connection to the end of the answer, however slowly it drips. The system's resolver has its own."""


@bot("webhook", time_limit=timedelta(seconds=40))
def webhook(run: Run, url: object = None, secret: object = None, **more: object) -> dict[str, Any]:
    """Post the event; return the status of the answer, 2xx.

    Raises RetryLater, NotDeliveredError (a failed try) or DefinitiveError, as the module says.
    """
    settings = load_settings()
    if more or not isinstance(url, str) or not isinstance(secret, str):
        raise DefinitiveError("webhook takes the vars url and secret, both text, and nothing else")
    secrets = settings.webhook_secrets.get(secret)
    if secrets is None:
        # What the rule says is not told: by mistake it may be the secret itself.
        names = ", ".join(sorted(settings.webhook_secrets)) or "none"
        raise DefinitiveError(f"the rule's var secret is no name in OUTBOX_WEBHOOK_SECRETS; that has {names}")
    target = Target.of(url, settings.webhook_allow_private)
    body = json.dumps(_payload(run.event), ensure_ascii=False, separators=(",", ":"))
    now = datetime.now(UTC)
    headers = {
        "content-type": "application/json",
        "user-agent": "effect-outbox",
        **signed_headers(run.effect_id, now, body, secrets),
    }
    answer = send(
        target, headers, body.encode(), connect_s=CONNECT_TIME.total_seconds(), total_s=TOTAL_TIME.total_seconds()
    )
    judge(answer, now)
    return {"status": answer.status}


def _as_rules_give_it(run: Run, url: str, secret: str) -> None: ...


# A rule with other vars is refused where it is made; one that came by another way is parked, not tried again.
webhook.__dict__["__signature__"] = inspect.signature(_as_rules_give_it)


def _payload(event: Event) -> dict[str, Any]:
    at = (event.occurred_at or event.recorded_at).astimezone(UTC)
    return event_argument(event) | {"timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
