"""Tests of errors of items in responses."""

from __future__ import annotations

import pytest

from millrace.errors import UnknownServerError, UnknownTopicOrPartitionError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.item_errors import check_item, error_in


def test_an_item_without_an_error_has_none() -> None:
    assert error_in(pb.TopicErrors().partitions.add().error) is None
    check_item(pb.Error(), "orders-0")


def test_an_error_has_the_class_of_its_code() -> None:
    error = error_in(pb.Error(code=UnknownTopicOrPartitionError.code, message="orders does not exist"))
    assert isinstance(error, UnknownTopicOrPartitionError)
    assert error.message == "orders does not exist"


def test_a_raised_error_begins_with_the_name_of_its_item() -> None:
    with pytest.raises(UnknownServerError, match=r"^orders-0: the disk is full$"):
        check_item(pb.Error(code=UnknownServerError.code, message="the disk is full"), "orders-0")
    with pytest.raises(UnknownServerError, match=r"^the disk is full$"):
        check_item(pb.Error(code=UnknownServerError.code, message="the disk is full"))
