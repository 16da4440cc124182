"""The control plane over MQTT: signed messages on typed topics. It reconnects, and repeats what is retained.

A coordinator's own broker must prove the coordinator's key, and is shown this member's credential.
"""

import asyncio
import contextlib
import ipaddress
import logging
import random
import re
import secrets
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import aiomqtt

from dtfm_protocol.control.messages import MEMBERSHIP, PRESENCE, TOPICS, MembershipNews, Presence, Topic
from dtfm_protocol.errors import Cause, Refused, UserError
from dtfm_protocol.identity.admission import MOST_AUTHORITIES, Admission
from dtfm_protocol.identity.coordinators import Coordinators
from dtfm_protocol.identity.envelope import Letter, Post, read_body
from dtfm_protocol.identity.freshness import Freshness
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity, short
from dtfm_protocol.process.freshness_files import FreshnessFile
from dtfm_protocol.process.logs import log
from dtfm_protocol.process.outage import Outage
from dtfm_protocol.process.timeouts import TIMEOUTS, Timeouts
from dtfm_protocol.schema import Schema
from dtfm_protocol.transport.pinned_tls import PinnedContext
from dtfm_protocol.transport.shown_credential import show_credential

Reader = Callable[[str, Any], Awaitable[None] | None]
"""A function that is given the sender's peer id and the message's body, and may be awaited."""

RETRY_PART = 0.1
"""Part of the time that a broker has been away after which it is tried again, between the shortest pause and the
longest: whoever waits for a swarm to come together again waits little longer than the broker took."""

NOT_AUTHORIZED = (5, 135)
"""Codes with which a broker refuses a client, in MQTT 3.1.1 and as paho gives them."""
NO_DELAY = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
"""Else the first packet waits 40 ms for the acknowledgement of the handshake."""


@dataclass(frozen=True)
class BrokerAddress:
    """An MQTT broker's host and port, and how it and its clients prove who they are."""

    host: str
    port: int
    coordinator: str | None = None
    """Peer id of the coordinator whose broker it is, and whose own key it must prove; None: an external broker."""
    tls: bool = True
    username: str | None = None
    """Account at an external broker; None: the peer id."""
    password: str | None = None
    ca: str | None = None
    """PEM certificate that signs an external broker's, where the system's own authorities do not."""

    @classmethod
    def of(cls, invite: Invite, coordinator: str | None = None) -> "BrokerAddress":
        """Return the broker of a coordinator that an invite names; None: of the first one.

        Raises:
            UserError: its address is not one, or names a broker without TLS.
        """
        if coordinator in {None, invite.coordinator}:
            return cls._at(invite.entrance, invite.broker, invite.coordinator, invite.broker_ca)
        card = next(standby.card for standby in invite.standbys if standby.card.peer == coordinator)
        return cls._at(card.entrance, card.broker, card.peer, invite.broker_ca)

    @classmethod
    def others(cls, invite: Invite) -> "tuple[BrokerAddress, ...]":
        """Return the brokers of the standby coordinators that an invite names, but for the first coordinator's own."""
        found = (cls.of(invite, standby.card.peer) for standby in invite.standbys)
        return tuple(address for address in dict.fromkeys(found) if address != cls.of(invite))

    @classmethod
    def entrances(cls, invite: Invite) -> "tuple[BrokerAddress, ...]":
        """Return the entrances of all coordinators that an invite names, at which nodes enrol."""
        cards = (standby.card for standby in invite.standbys)
        return cls.embedded(invite.entrance, invite.coordinator), *(
            cls.embedded(one.entrance, one.peer) for one in cards
        )

    @classmethod
    def embedded(cls, entrance: str, coordinator: str) -> "BrokerAddress":
        """Return the broker at the entrance HOST:PORT of a coordinator."""
        host, _, port = entrance.rpartition(":")
        return cls(host.strip("[]"), int(port), coordinator)

    @classmethod
    def external(cls, url: str, ca: str | None = None) -> "BrokerAddress":
        """Return the broker at `url`. Raises as `split_broker_url`."""
        host, port, tls, username, password = split_broker_url(url)
        return cls(host, port, None, tls, username, password, ca)

    @classmethod
    def _at(cls, entrance: str, url: str | None, coordinator: str, ca: str | None) -> "BrokerAddress":
        return cls.embedded(entrance, coordinator) if url is None else cls.external(url, ca)

    def context(
        self,
        identity: Identity | None = None,
        certificate: bytes = b"",
        coordinators: Coordinators | None = None,
        seen: Callable[[bytes], None] = lambda _: None,
    ) -> ssl.SSLContext | None:
        """Return the TLS context in which to connect to it as `identity`, with this credential; None: without TLS.

        Without an identity nothing is shown: enough to enrol, or to see who is there. For `coordinators` and `seen` see
        `PinnedContext`.
        """
        if not self.tls:
            return None
        if self.coordinator is not None:
            context: ssl.SSLContext = PinnedContext(self.coordinator, coordinators, seen)
        else:
            context = ssl.create_default_context(cadata=self.ca)
        if identity is not None:
            show_credential(context, identity, certificate)
        return context

    @property
    def called(self) -> str:
        """What a person knows it as."""
        return f"the {'broker' if self.coordinator is None else 'coordinator'} at {self}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def split_broker_url(url: str) -> tuple[str, int, bool, str | None, str | None]:
    """Return host, port, TLS or not, user name and password of an `mqtt[s]://[USER:PASSWORD@]HOST[:PORT]` address.

    Raises:
        UserError: `url` is not such an address, or is one without TLS of another machine.
    """
    shown = re.sub(r"//[^@/]*@", "//...@", url)  # an error may end in a log; a password must not
    form = f"--broker {shown}: write embedded, or mqtts://[USER:PASSWORD@]HOST[:PORT]"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # a bracket that is not closed, or a port that is none
        raise UserError(form) from None
    if parts.scheme not in {"mqtt", "mqtts"} or not parts.hostname or parts.path.strip("/"):
        raise UserError(form)
    tls = parts.scheme == "mqtts"
    if not tls and not _is_this_machine(parts.hostname):
        raise UserError(
            f"--broker {shown}: without TLS whoever is on the way can read and change what is said there; use mqtts://"
        )
    username = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    return parts.hostname, port or (8883 if tls else 1883), tls, username, password


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ControlPlane:
    """A program's connection to the swarm's MQTT broker."""

    def __init__(
        self,
        address: BrokerAddress,
        swarm: str,
        coordinators: Collection[str],
        post: Post,
        session: str,
        others: Sequence[BrokerAddress] = (),
        *,
        identity: Identity,
        admission: Admission,
        only_looks: bool = False,
        heard: FreshnessFile | None = None,
        timeouts: Timeouts = TIMEOUTS,
    ) -> None:
        """Set the connection up; `run` opens it.

        Args:
            address: the broker to connect to.
            swarm: the swarm's id, with which all its topics begin.
            coordinators: peer ids that may write the coordinator's topics; they may change.
            post: signs what is sent and verifies what comes.
            session: this run of the program, as its presence says it.
            others: brokers to try, in turn, when that one cannot be reached.
            identity: this member's key, which it proves to brokers.
            admission: its credential, which it shows with that; it learns who has taken a coordinator's place.
            only_looks: whether it leaves no last will, for it never says that it is there.
            heard: keeps what was heard on the disk, so that an earlier run's messages tell nothing new; None: only
                those of this run do not.
            timeouts: seconds of each wait, of which those that begin with `broker_` are used.
        """
        self._timeouts = timeouts
        self.connected = asyncio.Event()
        self.dropped: Counter[Cause] = Counter()
        """Number of messages that were dropped, by cause."""
        self.refused = asyncio.Event()
        """Event that is set when a broker does not let this member in; whoever waits clears it."""
        self.when_unreadable: Callable[[Topic, Refused], None] = lambda topic, error: None
        """Function that is told of messages by coordinators which verify, and which this version cannot read."""
        self.last_error = ""
        self.clock_ahead: float | None = None
        """Seconds that the coordinator's clock is ahead of this machine's, by the message that took the least time on
        its way: the longer one takes, the less it tells. None: not known."""
        self.clock_told = asyncio.Event()
        """Event that is set whenever a message tells of `clock_ahead`; whoever waits for another one clears it."""
        self.remote = ""
        """IP address at which the broker was reached last; "": it was not."""
        self._addresses = (address, *others)
        self._turn = 0
        self._root = f"dtfm/{swarm}"
        self._coordinators = coordinators
        self._post = post
        self._session = session
        self._identity, self._admission, self._only_looks = identity, admission, only_looks
        # Nobody else can know it: a broker drops whoever was connected under the same client id.
        self._client_id = f"{post.peer_id}.{secrets.token_hex(8)}"
        self._contexts: dict[tuple[BrokerAddress, bytes], ssl.SSLContext | None] = {}
        self._leaving = False
        self._client: aiomqtt.Client | None = None
        self._readers: dict[str, Reader] = {}
        self._filters: list[str] = []
        self._only: dict[str, str] = {}
        self._retained: dict[str, tuple[Topic, Schema]] = {}
        self._file = heard
        self._heard = heard.load() if heard is not None else Freshness()
        self._outage = Outage()
        self._will = 0
        """Number of the last will that the broker has for the present connection."""

    def on(self, topic: Topic, reader: Reader, peer: str = "+") -> None:
        """Have `reader` called with each message of `topic` (of one `peer`, or of all). Call it before `run`."""
        self._readers[topic.name] = reader
        if peer != "+":
            self._only[topic.name] = peer
        self._filters.append(f"{self._root}/{topic.name}" + (f"/{peer}" if topic.author == "peer" else ""))

    async def publish(self, topic: Topic, body: Schema) -> None:
        """Send a message now if there is a connection; a retained one also after every reconnection."""
        name = f"{self._root}/{topic.name}" + (f"/{self._post.peer_id}" if topic.author == "peer" else "")
        if topic.retained:
            self._retained[name] = topic, body
        if self._client is not None and self.connected.is_set():
            try:
                await self._client.publish(name, self._sealed(topic, body), qos=1, retain=topic.retained)
            except aiomqtt.MqttError as error:
                self.last_error = str(error)

    def _sealed(self, topic: Topic, body: Schema) -> bytes:
        """Seal a message at the moment when it goes: what is repeated on another connection is newer than on the
        last."""
        return self._post.seal(topic.name, body, will=self._will if topic is PRESENCE else 0)

    @property
    def _address(self) -> BrokerAddress:
        return self._addresses[self._turn % len(self._addresses)]

    def reconnect(self) -> None:
        """End the connection, if there is one, and make a new one at once: the present one may lead nowhere."""
        if self._client is not None:
            _cut(self._client)

    async def run(self) -> None:
        """Stay connected until cancelled; then say goodbye to the broker."""
        try:
            await self._reconnect()
        finally:
            self._save(now=True)

    async def _reconnect(self) -> None:
        """Serve one connection after the other, for ever."""
        lost = time.monotonic()
        while True:
            try:
                await self._connection()
                lost = time.monotonic()
            except (aiomqtt.MqttError, OSError) as error:
                if self._leaving:  # the goodbye failed, and took the place of the cancellation that it followed
                    raise asyncio.CancelledError from None
                self.last_error = str(error) or type(error).__name__
                if isinstance(error, aiomqtt.MqttCodeError) and error.rc in NOT_AUTHORIZED:
                    self.refused.set()
                if self.connected.is_set():
                    lost = time.monotonic()
                if self.remote and (line := self._outage.fails(f"lost {self._address.called} ({self.last_error})")):
                    log.warning("%s", line)
                if not self.connected.is_set():
                    self._turn += 1
            finally:
                self.connected.clear()
                self._client = None
            # Jitter, so that a whole swarm does not knock at a returning broker at the same instant.
            pause = max(self._timeouts.broker_retry_shortest, RETRY_PART * (time.monotonic() - lost))
            pause = min(self._timeouts.broker_retry_longest, pause)
            await asyncio.sleep(pause * (0.5 + random.random()))

    def _save(self, *, now: bool = False) -> None:
        if self._file is not None:
            self._file.save(self._heard, now=now)

    async def _connection(self) -> None:
        """Serve one connection, from the first message to its end."""
        gone = Presence(online=False, session=self._session)
        self._will = self._post.number()
        here = f"{self._root}/presence/{self._post.peer_id}"
        sealed = self._post.seal(PRESENCE.name, gone, counter=self._will)
        will = aiomqtt.Will(here, sealed, qos=1, retain=True)
        async with aiomqtt.Client(
            hostname=self._address.host,
            port=self._address.port,
            username=self._address.username or self._post.peer_id,
            password=self._address.password,
            identifier=self._client_id,
            will=None if self._only_looks else will,
            keepalive=self._timeouts.broker_keep_alive,
            protocol=aiomqtt.ProtocolVersion.V311,
            tls_context=self._tls(),
            socket_options=NO_DELAY,
            timeout=self._timeouts.broker_answer,
        ) as client:
            self._client, self.remote = client, _remote_of(client)
            for name in self._filters:
                await client.subscribe(name, qos=1)
            sent: dict[str, tuple[Topic, Schema]] = {}
            while due := {name: said for name, said in self._retained.items() if sent.get(name) is not said}:
                for name, (topic, body) in due.items():  # any of which may be published anew in the meantime
                    await client.publish(name, self._sealed(topic, body), qos=1, retain=True)
                sent |= due
            self.connected.set()
            if line := self._outage.ends(f"connected to {self._address.called}"):
                log.info("%s", line)
            try:
                async for message in client.messages:
                    await self._read(message)
                    self._save()
            except asyncio.CancelledError:
                self._leaving = True
                if here in self._retained:
                    # Not acknowledged: the broker may be ending at the same moment, and its last will says the same.
                    await client.publish(here, self._sealed(PRESENCE, gone), qos=0, retain=True)
                raise

    async def _read(self, message: aiomqtt.Message) -> None:
        """Check one message against its topic and hand it to the reader."""
        parts = str(message.topic).removeprefix(self._root + "/").split("/")
        topic = TOPICS.get(parts[0])
        payload = message.payload
        if topic is None or not isinstance(payload, bytes | bytearray):
            return
        if topic.name not in self._readers or self._only.get(topic.name, parts[-1]) != parts[-1]:
            return  # a broker may send more than it was asked for
        try:
            letter = self._post.open(bytes(payload), topic.name, topic.limit)
            self._check_author(topic, parts[-1], letter)
            body = self._body(letter, topic)
            if not self._is_news(letter, body):
                return
            if topic.author == "coordinator" and not message.retain:  # a retained one may be of any age
                told = letter.at - time.time()
                self.clock_ahead = told if self.clock_ahead is None else max(told, self.clock_ahead)
                self.clock_told.set()
            done = self._readers[topic.name](letter.sender, body)
            if done is not None:
                await done
        except Refused as error:
            if not self.dropped[error.cause]:
                level = logging.DEBUG if error.cause is Cause.STALE else logging.WARNING  # brokers keep what is old
                log.log(level, "dropped a control message: %s", error)
            self.dropped[error.cause] += 1

    def _body(self, letter: Letter, topic: Topic) -> Schema:
        """Read what a message says. Raises Refused where that is not what its topic is for."""
        try:
            return read_body(letter, topic.schema)
        except Refused as error:
            if topic.author == "coordinator":
                self.when_unreadable(topic, error)
            raise

    def _check_author(self, topic: Topic, name: str, letter: Letter) -> None:
        """Check that whoever has sent a message on `topic` may write it, which ends in `name`.

        Raises:
            Refused: it may not.
        """
        coordinators = self._coordinators
        if topic is MEMBERSHIP and letter.sender not in coordinators:  # with it a new key introduces itself
            for authority in read_body(letter, MembershipNews).authorities[:MOST_AUTHORITIES]:
                with contextlib.suppress(Refused):
                    self._admission.trust(bytes.fromhex(authority))
        if letter.sender not in (coordinators if topic.author == "coordinator" else (name,)):
            raise Refused(f"{topic.name}: {short(letter.sender)} may not write this", Cause.AUTHOR)

    def _is_news(self, letter: Letter, body: Schema) -> bool:
        """Whether a message is to be handed on; False: it was heard before.

        Raises:
            Refused: a newer one was heard before it.
        """
        if not isinstance(body, Presence):
            return self._heard.admit(letter.sender, letter.kind, letter.counter)
        if body.online:
            return self._heard.admit_hello(letter.sender, letter.kind, letter.counter, letter.will)
        return self._heard.admit_goodbye(letter.sender, letter.kind, letter.counter)

    def _tls(self) -> ssl.SSLContext | None:
        """Return the context for the broker whose turn it is, made anew when this member's credential changes."""
        key = self._address, self._admission.certificate
        if key not in self._contexts:
            loop = asyncio.get_running_loop()

            def seen(certificate: bytes) -> None:  # a handshake is another thread's work
                with contextlib.suppress(RuntimeError):  # the program ends
                    loop.call_soon_threadsafe(self._meet, certificate)

            known = self._admission.coordinators
            made = self._address.context(self._identity, self._admission.certificate, known, seen)
            self._contexts = {key: made, **self._contexts}
            while len(self._contexts) > len(self._addresses):
                self._contexts.popitem()
        return self._contexts[key]

    def _meet(self, authority: bytes) -> None:
        """Learn from the certificate of the coordinator whose broker this is whose place it has taken."""
        try:
            self._admission.trust(authority)
        except Refused as error:
            log.debug("the broker at %s: %s", self._address, error)


def _cut(client: aiomqtt.Client) -> None:
    """Cut a connection, as a network would that fails: whoever waits for it hears so at once."""
    connection: Any = client._client.socket()
    if connection is not None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _remote_of(client: aiomqtt.Client) -> str:
    """Return the IP address at the other end of a connection; "" where it has just ended."""
    try:
        connection: Any = client._client.socket()
        return str(connection.getpeername()[0])
    except (OSError, AttributeError):
        return ""
