"""Starts a private MongoDB replica set and a Redis-compatible server, and leaves no process behind.

For development and tests. Each server lives in a folder of its own, where a second start finds its
data. The supervisor underneath also runs other programs: a worker, a beat, Flower.
"""

from outbox_core.embedded.errors import EmbeddedServerError
from outbox_core.embedded.mongo import EmbeddedMongo
from outbox_core.embedded.programs import find_mongod, find_redis
from outbox_core.embedded.redis import EmbeddedRedis
from outbox_core.embedded.supervisor import Process, Supervisor

__all__ = [
    "EmbeddedMongo",
    "EmbeddedRedis",
    "EmbeddedServerError",
    "Process",
    "Supervisor",
    "find_mongod",
    "find_redis",
]
