"""Run the command ``fedfloor`` as ``python -m fedfloor``."""

from fedfloor.cli import main

if __name__ == "__main__":
    main()
