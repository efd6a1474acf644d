"""Where anything at all may be caught, and who may name the driver's errors: lists that a reader can check."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outbox_core.ports.maintenance import Maintenance
from outbox_core.ports.store import Store
from tests.harness.faults import port_methods

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
ANYTHING = {"Exception", "BaseException"}

NAMED_EDGES = {
    "outbox_core/application/decide_batch.py": (1, "normalizing and matching one event: it is counted, then parked"),
    "outbox_core/application/bot_words.py": (1, "the text of a bot's error is the bot's code too"),
    "outbox_core/application/heart.py": (1, "the heart: a beat that fails must not stop it"),
    "outbox_core/application/launch_bot.py": (2, "a bot's call, in a transaction and not: retried"),
    "outbox_core/application/project_move.py": (1, "a projector's call: retried"),
    "outbox_core/application/consumer_turn.py": (2, "an observer's call, in a transaction and not: counted, parked"),
    "outbox_core/application/reconcile_consumer.py": (1, "an observer's reconcile: tried again"),
    "outbox_core/application/replay_letters.py": (1, "an observer's call at a replay: the letter is put back"),
    "outbox_core/application/lease_heart.py": (
        1,
        "the heart of a consumer's lease: a beat that fails must not stop it",
    ),
    "outbox_core/adapters/outlets.py": (2, "a listener, and a notice or a sink: foreign code, after the commit"),
    "outbox_core/lifecycle.py": (1, "a thread that hosts a consumer: it goes on polling"),
    "outbox_core/bots.py": (1, "importing a module of bots: the worker ends with one line that names it"),
    "tasks/beat.py": (1, "a look into a queue: beat sends as it would without one"),
    "tasks/consumer.py": (1, "decoding a message: whatever it raises, the message is refused"),
    "tasks/hints.py": (3, "the hint queue: sending, asking what waits, closing what failed; a tick covers it"),
}
"""Foreign code and threads, where an error of any kind must be seen to. How often each file catches, and why."""

READ_THE_DRIVERS_ERRORS = {
    "errors.py": "the one place that says what is transient",
    "inserts.py": "a bulk error's answer to each document: a duplicate is told from a failure",
    "slots.py": "as inserts: two offers met at a tenant's first slot",
    "effect_settling.py": "as inserts: a run record that a newer claim has written",
    "drain_progress.py": "a duplicate of the upsert that creates a cursor: another drain made it",
    "maintenance.py": "a duplicate of the upsert that creates a tick: another beat made it",
    "schema.py": "a collection, or a record of a step, that another process made meanwhile",
    "documents.py": "what does not decode becomes a ValueError, document by document",
    "replica_set.py": "a member that changes its state refuses anything; it is asked again until a deadline",
}
"""Modules of adapters/mongo that name an error of pymongo or bson, and what for."""


def handlers_of_anything(tree: ast.AST) -> Iterator[ast.ExceptHandler | ast.Call]:
    """Handlers that stop any error: those that raise it again, bare, let it pass and are none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and (node.type is None or names_in(node.type) & ANYTHING):
            if not (isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None):
                yield node
        elif (
            isinstance(node, ast.Call)
            and "suppress" in names_in(node.func)
            and any(names_in(argument) & ANYTHING for argument in node.args)
        ):
            yield node


def names_in(node: ast.AST) -> set[str]:
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def modules(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text("utf-8"))


def test_anything_at_all_is_caught_only_at_the_named_edges() -> None:
    found = Counter(name for name, tree in modules("outbox_core", "tasks") for _ in handlers_of_anything(tree))
    assert found == {name: count for name, (count, _) in NAMED_EDGES.items()}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("try:\n    f()\nexcept Exception:\n    pass", 1),
        ("try:\n    f()\nexcept:\n    pass", 1),
        ("try:\n    f()\nexcept (ValueError, BaseException) as error:\n    log(error)", 1),
        ("with contextlib.suppress(Exception):\n    f()", 1),
        ("try:\n    f()\nexcept Exception as error:\n    raise Other from error", 1),
        ("try:\n    f()\nexcept BaseException:\n    undo()\n    raise", 0),
        ("try:\n    f()\nexcept ValueError:\n    pass", 0),
    ],
)
def test_a_handler_of_anything_is_seen_in_each_of_its_forms(source: str, count: int) -> None:
    assert len(list(handlers_of_anything(ast.parse(source)))) == count


def test_the_drivers_errors_are_named_only_where_a_reason_is_given() -> None:
    drivers = {"pymongo.errors", "bson.errors"}
    naming = {
        name
        for name, tree in modules("outbox_core", "tasks")
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and node.module in drivers)
        or (isinstance(node, ast.Import) and any(alias.name in drivers for alias in node.names))
        or (isinstance(node, ast.Attribute) and node.attr == "errors" and names_in(node) & {"pymongo", "bson"})
    }
    assert naming == {f"outbox_core/adapters/mongo/{name}" for name in READ_THE_DRIVERS_ERRORS}


@pytest.mark.promise("L21")
def test_the_calls_that_span_tenants_are_a_short_closed_list() -> None:
    assert [name for name in vars(Store) if not name.startswith("_")] == ["maintenance", "tenant"]
    assert set(port_methods(Maintenance)) == {
        "now",  # The server's clock belongs to no tenant.
        "tick_due",  # The ticks belong to no tenant.
        "undrained_tenants",  # Tenants' names alone.
        "due_tenants",  # As above.
        "lagging_tenants",  # As above.
        "take_slots",  # One slot of each tenant that is named.
        "due_consumers",  # Names of tenants and consumers alone.
        "lifecycle_tenants",  # Tenants' names alone.
        "ensure_schema",  # The schema belongs to no tenant.
        "pending_schema",  # As above.
    }
