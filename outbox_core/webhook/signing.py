"""The headers that the Standard Webhooks rules ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standardwebhooks import Webhook

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from pydantic import SecretStr


def webhook_id(effect_id: str) -> str:
    """Return the webhook-id of an effect: its id with `~` for each full stop.

    A full stop divides what is signed, and an id may hold one that its caller chose; no id holds a tilde, so two
    effects never share a webhook-id. The bars stay: a header may hold them.
    """
    return effect_id.replace(".", "~")


def signed_headers(effect_id: str, at: datetime, body: str, secrets: Iterable[SecretStr]) -> dict[str, str]:
    """Return webhook-id, webhook-timestamp and webhook-signature: one signature for each secret, joined by spaces.

    `at` is aware UTC. While a secret is replaced both sign, and a receiver accepts either.
    """
    named = webhook_id(effect_id)
    signatures = [Webhook(secret.get_secret_value()).sign(named, at, body) for secret in secrets]
    return {
        "webhook-id": named,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
