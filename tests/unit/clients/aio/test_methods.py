"""Comparison of the asyncio clients' methods with those of the others."""

import inspect
from typing import Any

import pytest

from millrace.clients import Consumer, Producer
from millrace.clients.aio import AsyncConsumer, AsyncProducer


def _methods(client: type[Any]) -> set[str]:
    return {name for name, _ in inspect.getmembers(client, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize(("client", "of_asyncio"), [(Consumer, AsyncConsumer), (Producer, AsyncProducer)])
def test_a_client_of_asyncio_has_all_methods_as_coroutines(client: type[Any], of_asyncio: type[Any]) -> None:
    assert _methods(client) <= _methods(of_asyncio)
    plain = {name for name in _methods(of_asyncio) if not inspect.iscoroutinefunction(getattr(of_asyncio, name))}
    assert plain <= {"wakeup", "forget_wakeup", "transaction"}
