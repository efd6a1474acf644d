"""Play every point of the matrix on both stores, and print a line for each play: `python -m tests.simulation.crash`.

Names of plays as arguments play those alone.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from outbox_core.domain.limits import Limits
from outbox_core.embedded import EmbeddedMongo
from tests.harness.on_mongo import MongoDatabases, MongoHarness
from tests.simulation.crash.every_play import PLAYS
from tests.simulation.crash.matrix import Covered, MongoStage, TwinStage, points_of, strike

if TYPE_CHECKING:
    from tests.simulation.crash.matrix import Stage


def tell(text: str) -> None:
    """Print at once: the whole takes minutes."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def play_all(stage: Stage, names: list[str]) -> list[str]:
    """Play on one store; return what was broken."""
    broken: list[str] = []
    whole = Covered()
    for play in PLAYS:
        if stage.name not in play.stores or (names and play.name not in names):
            continue
        began, covered = time.monotonic(), Covered()
        for point in points_of(stage, play):
            try:
                covered.add(point, strike(stage, play, point))
            except AssertionError as error:
                broken.append(str(error))
        tell(f"{stage.name:7} {play.name:28} {time.monotonic() - began:6.1f} s  {covered}")
        whole += covered
    tell(f"{stage.name:7} {whole}\n        repeats: {dict(sorted(whole.repeated.items()))}")
    return broken


def main(names: list[str]) -> int:
    """Play on both stores; return 1 where a promise was broken."""
    logging.disable(logging.CRITICAL)
    broken = play_all(TwinStage(), names)
    with tempfile.TemporaryDirectory() as folder, EmbeddedMongo(Path(folder)) as server:
        databases = MongoDatabases(server.url, "crash")
        broken += play_all(MongoStage(MongoHarness(databases.empty(), Limits())), names)
        databases.close()
    tell("\n".join(broken) or "every promise was kept")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
