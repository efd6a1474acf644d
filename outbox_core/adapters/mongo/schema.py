"""Collections, validators and indexes, in numbered steps that schema_versions records.

A step is never changed after a release: what comes later is a later step, so a fresh database and an upgraded one are
equal. Each index names the query that it serves.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pymongo import ASCENDING, IndexModel
from pymongo.errors import CollectionInvalid, DuplicateKeyError

from outbox_core.adapters.mongo.errors import translated
from outbox_core.domain.consumer import LetterState
from outbox_core.domain.effect_lifecycle import LIVE, State
from outbox_core.domain.errors import ConfigurationError
from outbox_core.domain.limits import DONE_TTL, RUN_TTL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymongo.database import Database

_OLDEST_SERVER = (6, 0)
_OF_TENANT: dict[str, Any] = {
    "validator": {
        "$jsonSchema": {"required": ["tenant_id"], "properties": {"tenant_id": {"bsonType": "string", "minLength": 1}}}
    },
    # The server's defaults, said aloud: a collection that was there already then has the same options as a new one.
    "validationLevel": "strict",
    "validationAction": "error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A collection of a step; one of a tenant's demands its tenant_id."""

    name: str
    indexes: tuple[IndexModel, ...] = ()
    of_tenant: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One numbered step."""

    number: int
    name: str
    collections: tuple[Collection, ...]


def _index(name: str, *fields: str, **options: Any) -> IndexModel:  # noqa: ANN401 - the driver's options
    return IndexModel([(field, ASCENDING) for field in fields], name=name, **options)


_LOG = (
    Collection(
        name="event_sequences",
        # The drain tick: which tenants have something to drain. Its size is what is busy, not what exists.
        indexes=(_index("undrained", "tenant_id", partialFilterExpression={"undrained": True}),),
    ),
    Collection(
        name="board_events",
        indexes=(
            # The drain reads after its cursor; a number is given once.
            _index("by_seq", "tenant_id", "seq", unique=True),
            # Appending twice, and reading the events of a claimed batch.
            _index("by_event_id", "tenant_id", "event_id", unique=True),
        ),
    ),
)
_DRAIN = (
    Collection(name="trigger_cursors"),
    # Which batch drained an event.
    Collection(name="drain_journal", indexes=(_index("by_range", "tenant_id", "last_seq"),)),
    Collection(
        name="trigger_subscriptions",
        indexes=(_index("by_sub_id", "tenant_id", "sub_id", unique=True),),
    ),
)
_EFFECTS = (
    Collection(
        name="trigger_effects",
        indexes=(
            # The claim, the sweep, and the search for rows that are never due. Small however long the history is.
            _index(
                "live",
                "tenant_id",
                "state",
                "not_before",
                partialFilterExpression={"state": {"$in": [state.value for state in LIVE]}},
            ),
            # Done rows leave by themselves; live and failed ones are not in this index at all.
            _index(
                "done_ttl",
                "done_at",
                expireAfterSeconds=int(DONE_TTL.total_seconds()),
                partialFilterExpression={"state": State.DONE.value},
            ),
            # Dead letters, newest last.
            _index("failed", "tenant_id", "updated_at", partialFilterExpression={"state": State.FAILED.value}),
        ),
    ),
    Collection(
        name="runs",
        indexes=(_index("run_ttl", "finished_at", expireAfterSeconds=int(RUN_TTL.total_seconds())),),
    ),
)
_BOARD = (
    # The card of a pull request, which a comment names by its link alone.
    Collection(name="board_cards", indexes=(_index("by_link", "tenant_id", "link"),)),
)
_PACE = (Collection(name="tenant_slots"), Collection(name="ticks", of_tenant=False))

_BOARDS = (
    Collection(name="boards", indexes=(_index("by_board_id", "tenant_id", "board_id", unique=True),)),
    Collection(
        name="board_cards",
        indexes=(
            # Renaming or removing a column takes its cards along.
            _index("by_column", "tenant_id", "board", "state"),
            # A page of a board.
            _index("by_board", "tenant_id", "board", "card_id"),
        ),
    ),
)
_LIFECYCLE = (
    # A tenant's counter, which the deletions of a tenant wait for one after the other.
    Collection(name="lifecycle_sequences"),
    Collection(
        name="lifecycle_outbox",
        indexes=(
            # A consumer reads after its cursor, pruning removes from the lowest on; a number is given once.
            _index("by_sequence", "tenant_id", "sequence", unique=True),
            # One event of each deletion and of each restore.
            _index("by_event_id", "tenant_id", "event_id", unique=True),
        ),
    ),
    Collection(
        name="lifecycle_consumer_cursors",
        indexes=(
            # A tenant's consumers: their lags, and how far pruning may go. A consumer is registered once.
            _index("by_consumer_id", "tenant_id", "consumer_id", unique=True),
            # The consumers' tick, across tenants: which are due. It holds what takes part, and is asked from its start.
            _index(
                "due", "next_poll_at", "consumer_id", partialFilterExpression={"retired_at": None, "paused_at": None}
            ),
        ),
    ),
    Collection(
        name="lifecycle_dead_letters",
        indexes=(
            # A page of letters in their order, of one state: by operators, and by a consumer that replays.
            _index("by_state", "tenant_id", "state", "_id"),
            # The consumers' tick, across tenants: which have something to observe again. Its size is what waits.
            _index(
                "replaying", "tenant_id", "consumer_id", partialFilterExpression={"state": LetterState.REPLAYING.value}
            ),
            # Pruning: what was resolved long ago.
            _index(
                "resolved", "tenant_id", "settled_at", partialFilterExpression={"state": LetterState.RESOLVED.value}
            ),
        ),
    ),
    Collection(
        name="run_audit",
        indexes=(
            # The newest rows.
            _index("by_time", "tenant_id", "at", "_id"),
            # The newest rows of one kind, and what became of one card or one consumer.
            _index("by_code", "tenant_id", "code", "at", "_id"),
            _index("by_subject", "tenant_id", "subject", "at", "_id"),
        ),
    ),
    Collection(
        name="board_cards",
        # Reconciling reads the live cards by id, however many deleted ones stand between them.
        indexes=(_index("live", "tenant_id", "card_id", partialFilterExpression={"deleted_at": None}),),
    ),
)

STEPS = (
    Step(number=1, name="log", collections=_LOG),
    Step(number=2, name="drain", collections=_DRAIN),
    Step(number=3, name="effects", collections=_EFFECTS),
    Step(number=4, name="board", collections=_BOARD),
    Step(number=5, name="pace", collections=_PACE),
    Step(number=6, name="boards", collections=_BOARDS),
    Step(number=7, name="lifecycle", collections=_LIFECYCLE),
)


def pending_steps(database: Database[dict[str, Any]]) -> Sequence[str]:
    """Return the names of the steps that are not recorded."""
    with translated():
        applied = {found["_id"] for found in database["schema_versions"].find({}, {"_id": 1})}
    return [step.name for step in STEPS if step.number not in applied]


def apply_steps(database: Database[dict[str, Any]]) -> Sequence[str]:
    """Apply the steps that are not recorded, in order; return their names. Two that race do the same work twice.

    Raises ConfigurationError where the server is no replica set or too old: transactions would not work.
    """
    _require_fit(database)
    names = pending_steps(database)
    for step in STEPS:
        if step.name not in names:
            continue
        with translated():
            for collection in step.collections:
                _ensure(database, collection)
            # A duplicate is another process that applied the same step meanwhile.
            with suppress(DuplicateKeyError):
                database["schema_versions"].insert_one(
                    {"_id": step.number, "name": step.name, "applied_at": datetime.now(UTC)}
                )
    return names


def _ensure(database: Database[dict[str, Any]], collection: Collection) -> None:
    options: dict[str, Any] = _OF_TENANT if collection.of_tenant else {}
    try:
        database.create_collection(collection.name, **options)
    except CollectionInvalid:
        if options:
            database.command("collMod", collection.name, **options)
    if collection.indexes:
        database[collection.name].create_indexes(list(collection.indexes))


def _require_fit(database: Database[dict[str, Any]]) -> None:
    with translated():
        hello = database.command("hello")
        version = tuple(database.client.server_info()["versionArray"][:2])
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise ConfigurationError(
            "MongoDB is not a replica set, so it has no transactions; start mongod with --replSet and initiate it"
        )
    if version < _OLDEST_SERVER:
        raise ConfigurationError(f"MongoDB {version[0]}.{version[1]} is too old; 6.0 or newer is needed")
