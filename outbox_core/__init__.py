"""A durable effect outbox for Celery on MongoDB."""
