"""Whoever waits for a coordinator that is not there hears so within seconds, with one thing to do."""

import asyncio

import pytest

from dtfm_node.doctor.closed_ports import advice_once_closed, check_data_ports, look_ahead, split, unless_closed
from dtfm_node.doctor.host_lookup import Host
from dtfm_protocol.errors import UserError
from tests.node.doctor_hosts import HOST, INVITE, host

PORT = ("train.example.org", 7700)
AFAR = "93.184.216.34"
NO_SUCH_NAME = Host("train.example.org", 7700, fault="Name or service not known")


class Looks:
    """What looks at a port see, one after the other; the last one again and again."""

    def __init__(self, *seen: Host) -> None:
        self._seen, self.asked = list(seen), list[tuple[str, int]]()

    async def __call__(self, name: str, port: int) -> Host:
        self.asked.append((name, port))
        return self._seen.pop(0) if len(self._seen) > 1 else self._seen[0]


async def pause(seconds: float) -> None:
    await asyncio.sleep(0)


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (NO_SUCH_NAME, ["has no address", "check this machine's internet connection"]),
        (host("refused"), ["refuses the connection", "ask the swarm's owner whether the coordinator is running"]),
        (host("silent", AFAR), ["does not answer at all", "allow outgoing TCP to port 7700"]),
        (host("unreachable", AFAR), ["knows no way", "check this machine's internet connection, VPN included"]),
        (host("refused", "127.0.0.1"), ["this machine itself", "--announce"]),
    ],
)
async def test_each_way_of_being_closed_has_its_own_advice(seen: Host, words: list[str]) -> None:
    with pytest.raises(UserError, match="no coordinator answers: ") as error:
        await asyncio.wait_for(unless_closed(never(), [PORT], None, Looks(seen), pause), 10)
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


async def test_a_port_that_is_closed_for_a_moment_is_not_given_up() -> None:
    looks = Looks(host("refused"), host("open"), host("refused"), host("refused"))
    assert await asyncio.wait_for(advice_once_closed([PORT], looks, pause), 10)
    assert len(looks.asked) == 4


async def test_one_open_port_of_several_is_enough_and_the_others_are_not_waited_for() -> None:
    async def look(name: str, port: int) -> Host:
        if name == "two":
            return host("open")
        await never()
        raise AssertionError

    await asyncio.wait_for(check_data_ports(["/dns4/one/tcp/1", "/dns4/two/tcp/2"], look, pause), 10)


async def test_who_waits_on_is_told_once_and_gets_the_answer() -> None:
    told: list[str] = []
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def tell(advice: str) -> None:
        told.append(advice)
        answer.set_result(7)

    assert await asyncio.wait_for(unless_closed(answer, [PORT], tell, Looks(host("refused")), pause), 10) == 7
    assert len(told) == 1


async def test_what_is_awaited_is_cancelled_with_whoever_waits() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await never()
        finally:
            ended.set()

    waiting = asyncio.create_task(unless_closed(work(), [PORT], None, Looks(host("open")), pause))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()


async def test_a_closed_data_port_is_said_to_be_that() -> None:
    with pytest.raises(UserError, match=r"entrance answers, but not its data port.*198\.51\.100\.1:7701 .* refuses"):
        await check_data_ports(["/ip4/198.51.100.1/tcp/7701/p2p/x"], Looks(host("refused", port=7701)), pause)


async def test_doors_over_a_relay_alone_are_no_matter_of_a_port() -> None:
    await check_data_ports(["/ip4/198.51.100.1/tcp/1/p2p/x/p2p-circuit/p2p/y"], Looks(host("refused")), pause)


async def test_before_the_slow_imports_both_ports_are_looked_at_and_the_entrance_first() -> None:
    shut = Looks(host("refused", HOST, 9))
    with pytest.raises(UserError, match=r"no coordinator answers: nothing listens at 127\.0\.0\.1:9"):
        await look_ahead(INVITE, lan=False, look=shut, pause=pause)
    assert shut.asked == [(HOST, 9)] * 2
    data = Looks(host("open", HOST, 9), host("refused", HOST, 9))
    with pytest.raises(UserError, match="entrance answers, but not its data port"):
        await look_ahead(INVITE, lan=False, look=data, pause=pause)
    await look_ahead(INVITE, lan=False, look=Looks(host("open", HOST, 9)), pause=pause)


def test_an_entrance_may_have_a_name_or_an_ipv6_address() -> None:
    assert [split("train.example.org:7700"), split("[2001:db8::1]:7700")] == [PORT, ("2001:db8::1", 7700)]
