"""``python -m cometric`` is the command ``cometric``."""

from cometric.cli import main

if __name__ == "__main__":
    main()
