"""The command ``neurenix``: ``app`` is the frame, each command has a file; they decide nothing."""
