"""The command line: play a cast, a seed, or the choices of one schedule again."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.interleave.cast import CASTS
from tests.simulation.interleave.explore import BrokenPromiseError, Given, Seeded, explore, explore_seeds, play


def _say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Play what was asked for; return 1 where a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.interleave", description=__doc__)
    parser.add_argument("casts", nargs="*", metavar="CAST", help=f"of {', '.join(CASTS)}; all without one")
    parser.add_argument("--seeds", type=int, default=0, help="play so many seeds of each instead of every schedule")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop each cast after so many seconds")
    parser.add_argument("--seed", type=int, help="play one seed of one cast, and show its steps")
    parser.add_argument("--replay", nargs=2, metavar=("CAST", "CHOICES"), help="play choices as 0.2.1, and show them")
    parser.add_argument("--wide", action="store_true", help="the choices are a seed's")
    chosen = parser.parse_args()
    try:
        if chosen.replay:
            cast, choices = chosen.replay
            given = Given([int(choice) for choice in choices.split(".") if choice.isdigit()])
            played = play(cast, given, budget=CASTS[cast].wide if chosen.wide else None)
            _say("\n".join(played.trace))
        elif chosen.seed is not None:
            (cast,) = chosen.casts
            _say("\n".join(play(cast, Seeded(chosen.seed), budget=CASTS[cast].wide).trace))
        else:
            for cast in chosen.casts or CASTS:
                seeds = range(chosen.first, chosen.first + chosen.seeds)
                report = (
                    explore_seeds(cast, seeds, seconds=chosen.seconds)
                    if seeds
                    else explore(cast, seconds=chosen.seconds)
                )
                _say(report)
    except BrokenPromiseError as error:
        _say(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
