"""The ports on MongoDB: every query and every use of the driver lives here."""
