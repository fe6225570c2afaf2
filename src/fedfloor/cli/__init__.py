"""The commands, thin layers over the library."""

import os

from fedfloor.base.machine import VARIABLES

os.environ.update(VARIABLES)  # before NumPy and PyTorch start

from fedfloor.cli.app import app, main

__all__ = ["app", "main"]
