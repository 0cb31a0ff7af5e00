"""Tests of client options.

The tests cover Kafka's names, joint checks and refusals by name.
"""

import pytest

from millrace.config.client import Acks, ClientConfig, ConsumerConfig, ProducerConfig, parse_addresses
from millrace.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", ("a:1",)),
        ("a", ("a:9092",)),
        (" a:1 , b:2,", ("a:1", "b:2")),
        ("[::1]:5", ("[::1]:5",)),
        ("[::1]", ("[::1]:9092",)),
    ],
)
def test_addresses_are_read_with_the_default_port(text: str, addresses: tuple[str, ...]) -> None:
    assert parse_addresses(text) == addresses
    assert ClientConfig.of(text).addresses == addresses


@pytest.mark.parametrize("text", ["", ",", "a:b", "a:0", "a:70000", ":9092", "::1", "[]:5"])
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"bootstrap\.servers"):
        ClientConfig.of(text)


def test_lists_of_servers_and_numbers_as_text_are_accepted() -> None:
    config = ConsumerConfig.of({"bootstrap.servers": ["a:1", "b:2"], "fetch.max.wait.ms": "7"})
    assert config.addresses == ("a:1", "b:2")
    assert config.fetch_max_wait_ms == 7


@pytest.mark.parametrize(("value", "number"), [("all", -1), (-1, -1), ("-1", -1), (1, 1), ("0", 0)])
def test_acks_is_read_in_all_its_spellings(value: object, number: int) -> None:
    config = ProducerConfig.of({"acks": value, "enable.idempotence": value in ("all", -1, "-1")})
    assert isinstance(config.acks, Acks)
    assert config.acks.number == number


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acks": "1", "enable.idempotence": True}, "enable.idempotence=true needs acks=all"),
        ({"acks": "1", "transactional.id": "t"}, "transactional.id needs enable.idempotence=true and acks=all"),
        ({"delivery.timeout.ms": 10}, "delivery.timeout.ms must be at least"),
        ({"delivery.timeout.ms": 120_000, "linger.ms": 100_000}, "delivery.timeout.ms must be at least"),
        ({"batch.size": 2**25}, "batch.size must not be above max.request.size"),
        ({"linger.ms": -1}, r"linger\.ms=-1"),
        ({"send.buffer.bytes": "1"}, r"unknown option send\.buffer\.bytes"),
    ],
)
def test_contradicting_or_unknown_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        ProducerConfig.of(options)


@pytest.mark.parametrize("acks", [0, "1"])
def test_fewer_acks_turn_idempotence_off_unless_it_is_set(acks: object) -> None:
    config = ProducerConfig.of({"acks": acks})
    assert not config.enable_idempotence
    assert not ProducerConfig.load(config.options()).enable_idempotence
    assert ProducerConfig.of({"acks": "all"}).enable_idempotence


def test_the_delivery_timeout_follows_a_larger_linger_or_request_timeout_unless_it_is_set() -> None:
    assert ProducerConfig.of({"linger.ms": 100_000}).delivery_timeout_ms == 130_000
    assert ProducerConfig.of({"linger.ms": 1, "request.timeout.ms": 2**31 - 1}).delivery_timeout_ms == 2**31 - 1
    assert ProducerConfig.of({"linger.ms": 90_000}).delivery_timeout_ms == 120_000
    assert ProducerConfig.of({"delivery.timeout.ms": 30_000}).delivery_timeout_ms == 30_000


def test_the_shipped_file_holds_only_options_that_exist() -> None:
    from millrace.cli.paths import conf_dir

    text = (conf_dir() / "client.properties").read_text()
    known = {**ProducerConfig().options(), **ConsumerConfig().options()}
    for line in text.splitlines():
        name, separator, value = line.removeprefix("#").partition("=")
        if separator and " " not in name and line.startswith("#"):
            assert str(known[name]) == value, f"{name}: a line that is commented out shows the default"
        elif separator and not line.startswith("#"):
            assert name in known
