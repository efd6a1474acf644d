"""The queues that the outbox is measured against: each installed on its own, and set up as its own documents advise."""
