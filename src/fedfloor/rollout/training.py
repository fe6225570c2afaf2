"""A device that trains takes releases, too, by the connection that it has."""

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
    """A training device's connection that carries its releases, too: a broker takes one connection of each name."""

    def __init__(self, link: Connection, serving: Serving) -> None:
        self._link, self._serving = link, serving
        self.subscribe, self.unsubscribe, self.publish = link.subscribe, link.unsubscribe, link.publish

    def start(self, topics: Sequence[str], receive: Receive, connected: Callable[[], None]) -> None:
        """Connect; messages of releases go to one side, all others to the other."""

        def route(topic: str, payload: bytes) -> None:
            (self._serving.heard if topic_parts(topic)[0] in ("release", "model") else receive)(topic, payload)

        def both() -> None:
            connected()
            self._serving.joined()

        self._link.start([*topics, *self._serving.topics], route, both)
        Thread(target=self._serving.run, name="releases", daemon=True).start()

    def stop(self) -> None:
        """End both."""
        self._serving.end()
        self._link.stop()


def with_releases(
    settings: DeviceSettings, labelled: Callable[[], Labelled]
) -> Callable[[tuple[str, bytes]], Connection] | None:
    """Return how a training device connects, given its last will; None without certificates: it takes no releases.

    Args:
        labelled: returns samples with labels by which it judges models; a SettingError where there are none.
    """
    if settings.tls is None:
        return None

    def link(will: tuple[str, bytes]) -> Connection:
        made = MqttConnection(settings.name, settings.broker, settings.tls, will)
        headline = config.read(settings.experiment, []).evaluate.headline
        return WithReleases(made, Serving(settings, made, partial(own.written, settings), judge(labelled, headline)))

    return link
