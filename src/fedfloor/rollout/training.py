"""The connection of a training device that also receives releases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread

from fedfloor import config
from fedfloor.deploy import own
from fedfloor.deploy.mqtt import Connection, MqttConnection, Receive, topic_parts
from fedfloor.deploy.own import Labelled
from fedfloor.deploy.settings import DeviceSettings
from fedfloor.rollout.judging import judge
from fedfloor.rollout.serving import Serving


class WithReleases:
    """A connection shared by training and releases, as a broker accepts only one connection per name."""

    def __init__(self, link: Connection, serving: Serving) -> None:
        self._link, self._serving = link, serving
        self.subscribe, self.unsubscribe, self.publish = link.subscribe, link.unsubscribe, link.publish

    def start(self, topics: Sequence[str], receive: Receive, connected: Callable[[], None]) -> None:
        """Connect, and pass messages about releases to ``Serving``, all others to ``receive``."""

        def route(topic: str, payload: bytes) -> None:
            (self._serving.heard if topic_parts(topic)[0] in ("release", "model") else receive)(topic, payload)

        def both() -> None:
            connected()
            self._serving.joined()

        self._link.start([*topics, *self._serving.topics], route, both)
        Thread(target=self._serving.run, name="releases", daemon=True).start()

    def stop(self) -> None:
        """Stop the releases and the connection."""
        self._serving.end()
        self._link.stop()


def with_releases(
    settings: DeviceSettings, labelled: Callable[[], Labelled]
) -> Callable[[tuple[str, bytes]], Connection] | None:
    """Return a function from a device's last will to its connection; None without certificates, thus without releases.

    Args:
        labelled: returns the labelled samples for judgements; raises SettingError if there are none.
    """
    if settings.tls is None:
        return None

    def link(will: tuple[str, bytes]) -> Connection:
        made = MqttConnection(settings.name, settings.broker, settings.tls, will)
        headline = config.read(settings.experiment, []).evaluate.headline
        return WithReleases(made, Serving(settings, made, partial(own.written, settings), judge(labelled, headline)))

    return link
