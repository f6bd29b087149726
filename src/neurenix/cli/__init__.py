"""The command ``neurenix``: ``app`` registers the commands, and each command has one file."""
