"""A board cache in a process of its own: it follows deletions and restores, and feeds browsers.

    python -m examples.board_cache --tenant acme --file cache.sqlite --port 8090

It is a consumer of the tenant's lifecycle stream. Its cards lie in a SQLite file of its own, and its cursor in the
database: killed and started again, it takes up what it missed, or reconciles where the stream has been pruned. Browsers
own no cursor: each gets the whole board when it connects, then what changes. Cards that are created, moved or renamed
are no lifecycle events; the cache takes them in when it reconciles.
"""
