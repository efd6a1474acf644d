"""Transactions of one tenant's store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Transaction(Protocol):
    """An open transaction; port methods that take one write inside it, and become visible exactly if it commits."""

    @property
    def session(self) -> Any:  # noqa: ANN401 - the one named leak
        """The store's own session, None on the twin."""
        ...

    @property
    def database(self) -> Any:  # noqa: ANN401 - the one named leak
        """The store's own database handle, None on the twin."""
        ...

    def commit(self) -> None:
        """Commit, durably on a majority; only the commit itself is sent again while its answer is unclear.

        Raises ContentionError (undone), UnclearCommitError (may have happened), TransientError (undone).
        A second call does nothing.
        """
        ...


class Transactions(Protocol):
    """Opens transactions that read one majority snapshot, and takes part in those of a caller."""

    def begin(self) -> AbstractContextManager[Transaction]:
        """Open a transaction; leaving the block without `commit` undoes it.

        An exception of the body that the store labels as contention leaves as ContentionError; any other passes
        unchanged. Raises TransientError where none can be opened.
        """
        ...

    def adopt(self, session: object) -> AbstractContextManager[Transaction]:
        """Take part in the open transaction of a caller's own session; leaving the block neither commits nor undoes it.

        The caller commits: `commit` raises InvariantError. A ContentionError or an EventConflictError that leaves the
        block means that the transaction is undone; it leaves as a ContentionError, in a form that the session's own way
        of running a transaction again understands. What is done in the block ends within OP_TIMEOUT. Raises
        InvalidInputError, in one line, where no transaction is open, it would not commit to a majority, or the session
        is another store's; the twin has no sessions. Raises TransientError.
        """
        ...
