"""Where a broker is, by its address and by an invite."""

from typing import Any

import pytest

from dtfm_protocol.control.mqtt import BrokerAddress, split_broker_url
from dtfm_protocol.errors import UserError
from dtfm_protocol.identity.credential import authority_certificate
from dtfm_protocol.identity.entry_token import EntryToken
from dtfm_protocol.identity.invite import Invite
from dtfm_protocol.identity.keys import Identity
from dtfm_protocol.identity.standby_card import AppointedStandby, StandbyCard
from tests.harness.membership import SWARM
from tests.protocol.control_planes import BOB, OWNER


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("mqtt://127.0.0.1", ("127.0.0.1", 1883, False, None, None)),
        ("mqtts://broker.example.org", ("broker.example.org", 8883, True, None, None)),
        ("mqtt://localhost:7700/", ("localhost", 7700, False, None, None)),
        ("mqtts://me:p%40ss%3A@broker.example.org:99", ("broker.example.org", 99, True, "me", "p@ss:")),
        ("mqtts://[2001:db8::1]:1884", ("2001:db8::1", 1884, True, None, None)),
        ("mqtt://[::1]:1884", ("::1", 1884, False, None, None)),
    ],
)
def test_a_brokers_address_is_taken_apart(url: str, parts: tuple[object, ...]) -> None:
    assert split_broker_url(url) == parts


@pytest.mark.parametrize(
    "url", ["", "embeded", "http://a", "mqtt://", "mqtt://:1883", "mqtt://a:x", "mqtt://a:70000", "mqtt://a/b", "//a",
            "mqtts://[", "mqtts://[a", "mqtts://]:1"],
)  # fmt: skip
def test_what_is_no_brokers_address_is_a_user_error(url: str) -> None:
    with pytest.raises(UserError, match="write embedded, or mqtt") as caught:
        split_broker_url(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["mqtt://me:secret@192.0.2.1", "mqtt://broker.example.org:1883", "mqtt://[2001:db8::1]"]
)
def test_a_broker_of_another_machine_without_tls_is_a_user_error(url: str) -> None:
    with pytest.raises(UserError, match="use mqtts://") as caught:
        split_broker_url(url)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def invite(**values: Any) -> Invite:
    token = EntryToken.issue(OWNER, SWARM, 1, 1 << 33)
    given = {"swarm": SWARM, "coordinator": OWNER.peer_id, "dht": ("d",), "entrance": "192.0.2.1:7700", "token": token}
    return Invite(**(given | values))


def standby(identity: Identity, entrance: str, broker: str | None = None) -> AppointedStandby:
    certificate = authority_certificate(identity).hex()
    card = StandbyCard(peer=identity.peer_id, certificate=certificate, entrance=entrance, broker=broker, dht=("d",))
    return AppointedStandby.appoint(card, SWARM, OWNER)


def test_the_embedded_broker_is_at_the_entrance_and_proves_its_coordinators_key() -> None:
    address = BrokerAddress.of(invite())
    assert (address.coordinator, address.tls, str(address)) == (OWNER.peer_id, True, "192.0.2.1:7700")
    assert BrokerAddress.of(invite(entrance="[2001:db8::1]:7700")).host == "2001:db8::1"
    other = BrokerAddress.of(invite(broker="mqtts://me:pw@b", broker_ca="PEM"))
    assert (other.username, other.password, other.tls, other.port, other.ca) == ("me", "pw", True, 8883, "PEM")
    assert other.coordinator is None


def test_the_other_brokers_of_an_invite_are_its_standbys_each_once_and_of_its_own_key() -> None:
    assert BrokerAddress.others(invite()) == ()
    carol = Identity.generate()
    standbys = (standby(BOB, "192.0.2.2:7700"), standby(carol, "192.0.2.3:7700", "mqtts://b"))
    second, third = BrokerAddress.others(invite(standbys=standbys))
    assert second == BrokerAddress("192.0.2.2", 7700, BOB.peer_id)
    assert third == BrokerAddress("b", 8883, None) == BrokerAddress.of(invite(standbys=standbys), carol.peer_id)
    shared = invite(broker="mqtts://b", standbys=(standby(BOB, "192.0.2.2:7700", "mqtts://b"),))
    assert BrokerAddress.others(shared) == ()
