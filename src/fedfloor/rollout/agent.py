"""A device that only predicts: ``fedfloor-agent CONFIG.toml``, without PyTorch.

It needs only NumPy, ONNX Runtime, paho-mqtt and cryptography. The wheel ``fedfloor-agent`` (``agent/``) holds this
module and the modules that it imports, and depends on these four packages.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from fedfloor.base.errors import FedfloorError, SettingError
from fedfloor.base.strict import EscapedFormatter, printable
from fedfloor.deploy import authority, settings
from fedfloor.deploy.mqtt import MqttConnection, topic
from fedfloor.deploy.settings import DeviceSettings
from fedfloor.rollout.serving import Serving, report

USAGE = "usage: fedfloor-agent CONFIG.toml, the settings of a device that fedfloor park provision wrote"


def run(config: str) -> None:
    """Run the agent with the settings in a file: accept releases and predict until SIGTERM or SIGINT."""
    check_wheels(Path(__file__).parents[2])
    what = settings.read(DeviceSettings, config)
    if what.tls is None:
        raise SettingError(f"{config}: [tls] is missing: releases require certificates. Provision it again.")
    authority.check(what.tls, what.name)
    place = topic(what.park, "serving", what.name)
    gone = report(what.name, "gone", None)
    link = MqttConnection(what.name, what.broker, what.tls, (place, gone))
    serving = Serving(what, link)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: serving.end())
    link.start(serving.topics, serving.heard, serving.joined)
    serving.run()
    link.publish(place, gone, retain=True)
    link.stop()


def check_wheels(folder: Path) -> None:
    """Check that the two wheels, which share files, are not installed in a folder in different versions.

    Raises:
        SettingError: the versions differ, so that files of one wheel have replaced those of the other.
    """
    wheels = [path.stem for name in ("fedfloor", "fedfloor_agent") for path in folder.glob(f"{name}-*.dist-info")]
    if len({wheel.rpartition("-")[2] for wheel in wheels}) > 1:
        raise SettingError(
            f"{' and '.join(wheels)} are both installed in {folder}, and share files. "
            "Run `pip uninstall fedfloor fedfloor-agent`, then install one of them.",
            key="two-wheels",
        )


def main(words: Sequence[str] | None = None) -> int:
    """Run the agent; return its exit code."""
    given = list(sys.argv[1:] if words is None else words)
    if len(given) != 1 or given[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 0 if given in (["-h"], ["--help"]) else 2
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EscapedFormatter("note: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        run(given[0])
    except FedfloorError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
