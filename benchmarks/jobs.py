"""What a job of the benchmark is to the outbox: an event by whose id it is numbered, and the bot that it launches."""

BOT = "count-it"
PREFIX = "job-"
