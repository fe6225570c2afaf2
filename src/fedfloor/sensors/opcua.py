"""OPC UA: subscriptions to variables with asyncua; missed values are read from the server's history, if available."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fedfloor.base.errors import SettingError, nearest, require, require_private, shown
from fedfloor.sensors.events import Event, Inbox, Missing, Refusal, Signal, Update, seconds, secret, warn_once

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
LONGEST_WAIT_S = 30.0
BROWSED = 2_000  # nodes listed without tags, at most
DEEPEST = 12
POLICIES = ("Basic256Sha256", "Aes128Sha256RsaOaep", "Aes256Sha256RsaPss")
MODES = ("Sign", "SignAndEncrypt")
FORM = (
    "'POLICY,MODE,CERTIFICATE,KEY,SERVER_CERTIFICATE', such as "
    "'Basic256Sha256,SignAndEncrypt,own.der,own.pem,server.der', where the last is the certificate of the only server "
    "that is trusted, and KEY::$NAME names the variable with the key's password"
)
NAMESPACE = re.compile(r"nsu=(?P<uri>[^;]+);(?P<rest>[^;].*)", re.DOTALL)
OVERFLOW = 0x480  # bits of a status: values were dropped before this one
HISTORY = 100_000  # values of a node read at once


@dataclass(frozen=True)
class OpcUaSource:
    """Variables of a server; an address is a NodeId, ``ns=2;s=Press.Temp`` or ``nsu=http://plant/press;s=Press.Temp``.

    Args:
        url: the server's address, such as ``opc.tcp://10.42.0.9:4840``.
        publish_s: the time between two messages of the server, in s.
        sampling_s: the server's sampling period of a variable, in s; 0: as fast as possible.
        queue: values of a variable that the server keeps between messages, and while the connection is lost.
        user: the user name.
        password: ``$NAME`` of the environment variable with the password.
        security: ``POLICY,MODE,CERTIFICATE,KEY,SERVER_CERTIFICATE``: this client's certificate and key (``KEY::$NAME``
            if it has a password), and the certificate of the only server that is trusted.
        plain: accept that the password travels in clear text.
    """

    url: str
    publish_s: float = 0.5
    sampling_s: float = 0.25
    queue: int = 1000
    user: str | None = None
    password: str | None = None
    security: str | None = None
    plain: bool = False
    kind: Literal["opcua"] = "opcua"

    def __post_init__(self) -> None:
        require(self.url.startswith("opc.tcp://"), "source.url", self.url, "an address, such as 'opc.tcp://host:4840'")
        require(
            "@" not in self.url, "source.url", self.url, "without a user; set source.user and source.password instead"
        )
        if self.security is not None:
            parts = self.security.split(",")
            ok = len(parts) == 5 and all(parts) and parts[0] in POLICIES and parts[1] in MODES
            ok = ok and re.fullmatch(r"[^:]+(::\$\w+)?", parts[3]) is not None
            require(ok, "source.security", "…", FORM)  # a wrong one may contain the key's password
        require(self.password is None or self.user is not None, "source.user", self.user, "given with password")
        require_private(
            "source.password",
            f"Set source.security = {FORM}; or accept it with plain = true.",
            private=self.password is None or self.security is not None or self.plain,
        )
        require(0.01 <= self.publish_s <= 3600, "source.publish_s", self.publish_s, "from 0.01 to 3,600")
        require(0 <= self.sampling_s <= 3600, "source.sampling_s", self.sampling_s, "from 0 to 3,600")
        require(1 <= self.queue <= 100_000, "source.queue", self.queue, "from 1 to 100,000")

    def below(self, folder: Path) -> OpcUaSource:
        """Return the source with relative paths of certificates and key as paths in a folder."""
        if self.security is None:
            return self
        *how, certificate, key, server = self.security.split(",")
        return replace(self, security=",".join([*how, *(str(folder / path) for path in (certificate, key, server))]))

    def events(self, addresses: Sequence[str], stop: threading.Event, position: str | None) -> Iterator[Event]:
        """Yield an update for each value; values missed before the start come from the server's history."""
        try:
            import asyncua  # noqa: F401
        except ImportError as error:
            raise SettingError("OPC UA sources need asyncua: pip install 'fedfloor[opcua]'.") from error
        library = logging.getLogger("asyncua")
        library.handlers = [LibraryLog()]
        library.propagate = False
        newest = None if position is None else seconds(position)
        since = {} if newest is None else dict.fromkeys(addresses, newest)
        check_nodes(addresses)
        reader = Session(self, tuple(addresses), Inbox(stop), since)
        thread = threading.Thread(target=lambda: asyncio.run(reader.stay()), name="opcua", daemon=True)
        thread.start()
        yield from reader.inbox.events(lambda: Signal.ALIVE if reader.alive else Signal.IDLE)
        thread.join(TIMEOUT_S)


class LibraryLog(logging.Handler):
    """A handler of asyncua's warnings: the first of each kind, on one line, instead of tracebacks at each attempt."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._warned = set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """Log a warning of asyncua as this package's own."""
        text = (record.getMessage().splitlines() or [""])[0]
        warn_once(self._warned, str(record.msg), "asyncua: %.300s", text)


class Session:
    """A connection to a server, restored whenever it is lost.

    Args:
        source: the server.
        addresses: NodeIds; if empty, all variables are read once.
        inbox: the queue of incoming values.
        since: address → the time of its newest written value, in s since 1970; empty at the beginning.
    """

    def __init__(
        self, source: OpcUaSource, addresses: tuple[str, ...], inbox: Inbox, since: Mapping[str, float]
    ) -> None:
        self.source = source
        self.addresses = addresses
        self.inbox = inbox
        self.alive = False
        self._began = False
        self._seen = set[str]()
        self._address = dict[str, str]()  # node in asyncua's notation → its address
        self._newest = dict[str, float]()  # newest time of each address, s since 1970
        self._since = dict(since)  # the same at the loss of the connection

    async def stay(self) -> None:
        """Keep the connection until the inbox stops."""
        wait_s = 0.5
        while not self.inbox.stop.is_set():
            try:
                await self._connected()
                wait_s = 0.5
            except SettingError as error:
                self.inbox.put(error)
                return
            except Exception as error:  # asyncua's errors range from OSError to its own classes
                log.warning("%s: %s. Attempts continue.", self.source.url, str(error) or type(error).__name__)
            if self.alive:
                self.alive, self._since = False, dict(self._newest)
                self.inbox.put(Signal.LOST)
            await asyncio.to_thread(self.inbox.stop.wait, wait_s)
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)

    async def _connected(self) -> None:
        from asyncua import ua
        from asyncua.client.client import Client

        source = self.source
        client = Client(source.url, timeout=TIMEOUT_S)
        if source.user is not None:
            client.set_user(source.user)
            client.set_password(secret(source.password or "", "source.password"))
        if source.security is not None:
            await _secure(client, source.security)
        try:
            await client.connect()
        except (ua.uaerrors.BadUserAccessDenied, ua.uaerrors.BadIdentityTokenRejected) as error:
            raise SettingError(f"{source.url} refused this client ({error}). Check user and password.") from error
        try:
            if not self.addresses:
                await self._browse(client)
                return
            await self._subscribe(client)
            self.alive = True
            while not self.inbox.stop.is_set():
                await client.check_connection()
                await asyncio.sleep(0.1)
        finally:
            try:
                await asyncio.wait_for(client.disconnect(), TIMEOUT_S)
            except Exception as error:
                log.debug("%s: %s", source.url, error)

    async def _subscribe(self, client: Any) -> None:
        from asyncua import ua

        nodes = await self._nodes(client)
        self._address = {node.nodeid.to_string(): address for address, node in nodes.items()}
        self._seen.clear()
        subscription = await client.create_subscription(self.source.publish_s * 1e3, self)
        handles = await subscription.subscribe_data_change(
            [*nodes.values()], queuesize=self.source.queue, sampling_interval=self.source.sampling_s * 1e3
        )
        for address, handle in zip(nodes, handles, strict=True):
            if isinstance(handle, ua.StatusCode):
                await self._lack(client, address, f"cannot be read from {self.source.url} ({handle.name})")
        if self._since:
            await self._read_history(nodes)
        self._began = True

    async def _nodes(self, client: Any) -> dict[str, Any]:
        """Return address → node, for the namespaces that the server has at present."""
        uris: Sequence[str] = ()
        if any(NAMESPACE.match(address) for address in self.addresses):
            uris = await client.get_namespace_array()
        nodes = {}
        for address in self.addresses:
            match = NAMESPACE.match(address)
            if match and match["uri"] not in uris:
                near = f"{nearest(match['uri'], uris)} Its namespaces: {', '.join(map(shown, uris))}"
                await self._lack(client, address, f"the server has no such namespace.{near}")
                continue
            text = f"ns={uris.index(match['uri'])};{match['rest']}" if match else address
            nodes[address] = client.get_node(_node_id(text))
        return nodes

    async def _lack(self, client: Any, address: str, problem: str) -> None:
        """Refuse an address that the server lacks at the start; log one that vanished later."""
        if self._began:
            log.warning("%s does not exist any more (%s): its values count as missing.", address, problem)
            self.inbox.put(Update(time.time(), {address: Missing("node vanished")}, initial=True))
            return
        known = [name async for name, _ in _variables(client)]
        raise SettingError(
            f"tags: '{address}': {problem}.{nearest(address, known)} --check without tags lists the variables of a "
            "server."
        )

    async def _read_history(self, nodes: Mapping[str, Any]) -> None:
        """Read the values missed while the connection was lost from the server's history."""
        updates = list[Update]()
        for address, node in nodes.items():
            since = self._since.get(address, 0.0)
            try:
                begin = datetime.fromtimestamp(since, UTC)
                values = await node.read_raw_history(begin, datetime.now(UTC), HISTORY, False)
            except Exception as error:  # a node without a history
                log.info("%s: no history of %s (%s): its pause is a gap.", self.source.url, address, error)
                continue
            if len(values) >= HISTORY:
                text = f"{address}: only its first {HISTORY:,} values since the connection was lost are read"
                self.inbox.put(Refusal("history beyond the limit", address, text))
            for value in values:
                moment = _moment(value)
                if moment > since:
                    updates.append(Update(moment, {address: _plain(value)}, stored=True))
        for update in sorted(updates, key=lambda update: update.time):
            self.inbox.put(update)

    async def _browse(self, client: Any) -> None:
        """Report the present values of all variables except those in the server's own folder."""
        async for address, value in _variables(client):
            self.inbox.put(Update(_moment(value), {address: _plain(value)}))
        self.inbox.put(Signal.IDLE)

    def datachange_notification(self, node: Any, value: object, data: Any) -> None:  # noqa: ARG002
        """Put a changed value into the inbox; called by asyncua."""
        item = data.monitored_item.Value
        name = node.nodeid.to_string()
        address = self._address.get(name)
        if address is None:
            self.inbox.put(Refusal("node without a subscription", "", shown(name)))
            return
        if item.StatusCode is not None and item.StatusCode.value & OVERFLOW == OVERFLOW:
            text = f"{address}: the server dropped values between two messages. Set a longer source.queue."
            self.inbox.put(Refusal("full queue of the server", address, text))
        moment = _moment(item)
        self._newest[address] = max(self._newest.get(address, 0.0), moment)
        initial = address not in self._seen
        self._seen.add(address)
        self.inbox.put(Update(moment, {address: _plain(item)}, initial=initial))


async def _variables(client: Any) -> AsyncIterator[tuple[str, Any]]:
    """Yield the NodeIds and present values of a server's variables except those in its own folder."""
    from asyncua import ua

    level = [client.nodes.objects]
    count = 0
    for _ in range(DEEPEST):
        below = []
        for node in level:
            for child in await node.get_children(ua.object_ids.ObjectIds.HierarchicalReferences):
                if child.nodeid.NamespaceIndex == 0 or count >= BROWSED:
                    continue
                below.append(child)
                count += 1
                if await child.read_node_class() == ua.NodeClass.Variable:
                    yield child.nodeid.to_string(), await child.read_data_value(raise_on_bad_status=False)
        level = below


async def _secure(client: Any, security: str) -> None:
    """Set a client's policy, mode, certificate, key and the certificate of the only server that is trusted."""
    from asyncua import ua
    from asyncua.crypto import security_policies

    policy, mode, certificate, key, server = security.split(",")
    path, mark, password = key.partition("::")
    try:
        await client.set_security(
            getattr(security_policies, f"SecurityPolicy{policy}"),
            certificate,
            path,
            secret(password, "source.security") if mark else None,
            server,
            getattr(ua.MessageSecurityMode, mode),
        )
    except (OSError, ValueError, TypeError, ua.uaerrors.UaError) as error:
        raise SettingError(
            f"source.security: no certificate or key in {certificate}, {path} or {server} ({error}). Relative paths "
            "begin at the folder of the source file."
        ) from error


def check_nodes(addresses: Sequence[str]) -> None:
    """Check the form of addresses, and that each is of another node.

    Raises:
        SettingError: an address is no NodeId, or two are of one node.
    """
    known = dict[str, str]()
    for address in addresses:
        match = NAMESPACE.match(address)
        name = f"{match['uri']} {_node_id(match['rest'])}" if match else _node_id(address)
        other = known.setdefault(name, address)
        require(other == address, "tags", f"{other}' and '{address}", "different nodes; these are spellings of one")


def _node_id(address: str) -> str:
    """Return a NodeId in asyncua's notation, which servers' notifications have, too."""
    from asyncua import ua

    try:
        node = ua.NodeId.from_string(address)
    except (ua.uaerrors.UaError, ValueError, TypeError) as error:
        raise SettingError(f"tags: '{address}' is no NodeId, such as 'ns=2;s=Press.Temperature' ({error}).") from None
    if isinstance(node, ua.ExpandedNodeId):
        raise SettingError(f"tags: '{address}': must begin with ns= or nsu=, and name a node of this server (no srv=).")
    return str(node.to_string())


def _moment(value: Any) -> float:
    """Return the time of a value in s since 1970, by the source's clock if known, otherwise the server's."""
    moment = value.SourceTimestamp or value.ServerTimestamp
    if moment is None:
        return time.time()
    return float((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _plain(value: Any) -> object:
    """Return a value as a Python object; :class:`Missing` if its status is bad."""
    if value.StatusCode is not None and value.StatusCode.is_bad():
        return Missing(f"status {value.StatusCode.name}")
    plain: object = value.Value.Value if value.Value is not None else None
    return plain
