"""``python -m neurenix`` is the command ``neurenix``."""

from neurenix.cli.app import main

if __name__ == "__main__":
    main()
