"""Options that encrypt stored passwords.

Names, meanings and defaults are those of Kafka's ``PasswordEncoderConfigs``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from millrace.config.base import Config


class PasswordEncoderOptions(Config):
    """Encryption of passwords among the dynamic options of a broker (KIP-226)."""

    password_encoder_secret: str = Field(
        "",
        repr=False,
        description="Secret that encrypts the passwords among this broker's dynamic options. Without it no password "
        "can be set while the broker runs.",
    )
    password_encoder_old_secret: str = Field(
        "",
        repr=False,
        description="Earlier password.encoder.secret. The broker decrypts passwords by it at its start, and encrypts "
        "them by password.encoder.secret.",
    )
    password_encoder_keyfactory_algorithm: Literal[
        "PBKDF2WithHmacSHA512", "PBKDF2WithHmacSHA256", "PBKDF2WithHmacSHA1"
    ] = Field("PBKDF2WithHmacSHA512", description="Algorithm that derives the key from password.encoder.secret.")
    password_encoder_cipher_algorithm: Literal["AES/CBC/PKCS5Padding", "AES/GCM/NoPadding"] = Field(
        "AES/CBC/PKCS5Padding", description="Cipher that encrypts passwords."
    )
    password_encoder_key_length: Literal["128", "192", "256"] = Field("128", description="Length of the key, in bits.")
    password_encoder_iterations: Annotated[int, Field(ge=1024, le=10_000_000)] = Field(
        4096, description="Iterations that derive the key."
    )
