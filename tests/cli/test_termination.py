"""Signals end a process whichever of its threads receives them."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from fedfloor.cli.shared import termination


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_another_thread_wakes_the_main_thread(number: signal.Signals) -> None:
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        ended = termination()
        began = time.monotonic()

        def strike() -> None:
            time.sleep(0.2)
            signal.pthread_kill(threading.get_ident(), number)

        threading.Thread(target=strike).start()
        assert ended.wait(20)
        assert time.monotonic() - began < 10
    finally:
        signal.set_wakeup_fd(-1)
        for one, handler in before.items():
            signal.signal(one, handler)
