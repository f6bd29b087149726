"""Standard library only: errors and the wording of messages."""
