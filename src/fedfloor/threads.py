"""One thread per process: two threads add in another order, so results would depend on the number of cores."""

from __future__ import annotations

VARIABLES = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
