"""Tests of the settings that ``session()`` reads."""

from __future__ import annotations

import pytest

from millrace.errors import UsageError
from pyspark_millrace.environment.settings import SESSION_SETTINGS, check_names


def test_known_settings_and_those_of_others_are_accepted() -> None:
    names = [setting.name for setting in SESSION_SETTINGS]
    check_names([*names, "spark.millrace.monitor.ssl.keystore.location", "spark.sql.shuffle.partitions"])


@pytest.mark.parametrize("name", ["spark.millrace.monitor.prot", "spark.millrace.errors", "spark.millrace."])
def test_an_unknown_setting_of_millrace_is_refused_with_the_known_names(name: str) -> None:
    with pytest.raises(UsageError, match=f"unknown setting {name}.*spark.millrace.monitor.port"):
        check_names(["spark.master", name])
