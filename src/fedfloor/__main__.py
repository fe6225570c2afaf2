"""``python -m fedfloor`` is the command ``fedfloor``."""

from fedfloor.cli import main

if __name__ == "__main__":
    main()
