"""GitHub deliveries for tests: from files, and small ones made up on the spot."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent.parent / "examples" / "github_deliveries.jsonl"


def delivery_files() -> list[Path]:
    """The project's own examples, and every `*.jsonl` file of deliveries under OUTBOX_TEST_DATA, where that is set."""
    folder = os.environ.get("OUTBOX_TEST_DATA")
    return [EXAMPLES, *(sorted(Path(folder).rglob("deliveries*.jsonl")) if folder else ())]


def deliveries_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def issue_payload(action: str = "edited", *, at: str = "2026-11-02T09:00:00Z", **fields: object) -> dict[str, Any]:
    """An `issues` payload with what GitHub never leaves out; `label` and the like go beside the issue."""
    beside: dict[str, object] = {name: fields.pop(name) for name in ("label", "assignee", "changes") if name in fields}
    return {
        "action": action,
        "issue": {
            "id": 7001,
            "number": 12,
            "title": "The pump runs dry",
            "html_url": "https://github.com/acme/pumps/issues/12",
            "user": {"login": "ada", "type": "User"},
            "updated_at": at,
            **fields,
        },
        "repository": {"full_name": "acme/pumps"},
        "sender": {"login": "grace", "type": "User"},
        **beside,
    }


def pull_payload(action: str = "edited", *, at: str = "2026-11-02T09:00:00Z", **fields: object) -> dict[str, Any]:
    payload = issue_payload(
        action, at=at, id=9001, html_url="https://github.com/acme/pumps/pull/13", number=13, **fields
    )
    payload["pull_request"] = payload.pop("issue")
    return payload
