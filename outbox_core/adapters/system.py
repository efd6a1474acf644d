"""The machine's own clock and chance."""

from __future__ import annotations

import random
import secrets
import time

_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""BOOTTIME goes on while the machine sleeps, so a lease that ran out meanwhile is seen to be over."""


class SystemClock:
    """Implements ports.runtime.Clock."""

    def monotonic(self) -> float:
        """See the port."""
        return time.clock_gettime(_CLOCK_ID)

    def sleep(self, seconds: float) -> None:
        """See the port."""
        time.sleep(seconds)


class SystemEntropy:
    """Implements ports.runtime.Entropy; safe after a fork, since each token is asked of the system."""

    def token(self) -> str:
        """See the port: 128 random bits in hexadecimal."""
        return secrets.token_hex(16)

    def jitter(self) -> float:
        """See the port."""
        return random.SystemRandom().uniform(0.8, 1.2)
