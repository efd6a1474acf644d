"""The connection: every option that correctness hangs on is explicit here."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import MongoClient
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Primary
from pymongo.uri_parser import split_options
from pymongo.write_concern import WriteConcern

from outbox_core.adapters.mongo.errors import translated
from outbox_core.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from pymongo.database import Database

    from outbox_core.domain.limits import Limits

MAJORITY = ReadConcern("majority")
DURABLE = WriteConcern(w="majority", j=True)
CODEC = CodecOptions[dict[str, Any]](
    document_class=dict, tz_aware=True, tzinfo=UTC, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
"""Dates outside Python's years come as plain milliseconds, so that one such document does not stop its batch."""

TOLERANT = CODEC.with_options(unicode_decode_error_handler="replace")
"""For reads that span tenants: bytes that are no text, in a document of one, must not end them for all."""


def connect(url: str, db_name: str, limits: Limits) -> Database[dict[str, Any]]:
    """Return the database handle; nothing is sent yet.

    Every operation, its retries by the driver included, ends within OP_TIMEOUT, and the server is told to stop
    before that. Writes are journaled on a majority, reads are of what a majority holds, and both go to the primary,
    whatever the URL says. Raises ConfigurationError for a URL that is none.
    """
    timeout_ms = int(limits.op_timeout.total_seconds() * 1000)
    try:
        with translated():
            _require_known_options(url)
            client: MongoClient[dict[str, Any]] = MongoClient(
                url,
                appname="outbox",
                timeoutMS=timeout_ms,
                serverSelectionTimeoutMS=timeout_ms,
                connectTimeoutMS=timeout_ms,
                retryWrites=True,
                retryReads=True,
                maxPoolSize=20,
                uuidRepresentation="standard",
            )
    except (ValueError, ConfigurationError) as error:  # What the driver raises for a port or an option that is none.
        raise ConfigurationError(f"OUTBOX_MONGO_URL: {' '.join(str(error).split())}") from None
    return database_of(client, db_name)


def database_of(client: MongoClient[Any], db_name: str) -> Database[dict[str, Any]]:
    """Return the database by a client that may be a caller's own, whatever that one's options say."""
    return client.get_database(
        db_name, codec_options=CODEC, read_concern=MAJORITY, write_concern=DURABLE, read_preference=Primary()
    )


def _require_known_options(url: str) -> None:
    """Raise what the driver would only warn of: an option that it does not know, or a value, does nothing."""
    query = url.partition("://")[2].partition("?")[2]
    for option in filter(None, query.split("&")):
        try:
            with translated():
                split_options(option, validate=True, warn=False)
        except ConfigurationError:
            name = option.partition("=")[0][:40]
            raise ConfigurationError(f"{name!r} is no option that the driver takes so") from None
