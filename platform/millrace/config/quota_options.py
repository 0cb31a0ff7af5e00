"""Broker options of quotas of clients. Names are Kafka's."""

from __future__ import annotations

from pydantic import Field

from millrace.config.base import Config
from millrace.config.integers import INT_MAX


class QuotaOptions(Config):
    """Broker options of the windows in which quotas are measured."""

    quota_window_size_seconds: int = Field(
        1,
        ge=1,
        le=60,
        description="Seconds of its quota that a client may use at once after a pause. Kafka has quota.window.num "
        "windows of this size.",
    )
    controller_quota_window_num: int = Field(
        11,
        ge=1,
        le=INT_MAX,
        description="Windows of controller.quota.window.size.seconds whose mutations a client may make at once.",
    )
    controller_quota_window_size_seconds: int = Field(
        1, ge=1, le=INT_MAX, description="Seconds of each window of the quotas of controller mutations."
    )
