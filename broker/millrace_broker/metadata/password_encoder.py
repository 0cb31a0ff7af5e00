"""Encryption of stored passwords, in the format of Kafka's ``EncryptingPasswordEncoder``.

An encoded password is a list of ``name:value`` with commas. It has all parameters of its encryption except the secret,
so that the options ``password.encoder.*`` can change later.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import pbkdf2_hmac
from typing import Final

from millrace.config.password_options import PasswordEncoderOptions
from millrace.errors import InvalidConfigError

_SALT_BYTES: Final = 256
_CBC: Final = "AES/CBC/PKCS5Padding"
_GCM: Final = "AES/GCM/NoPadding"
_IV_BYTES: Final = {_CBC: 16, _GCM: 12}
_DIGESTS: Final = {f"PBKDF2WithHmac{name.upper()}": name for name in ("sha512", "sha256", "sha1")}
_TAG_BITS: Final = 128
_BLOCK_BITS: Final = 128
_KEY_BITS: Final = (128, 192, 256)
_ITERATIONS_MAX: Final = 10_000_000
"""Bound for encoded passwords of others, which a broker would else decode for hours."""


class PasswordEncoder:
    """Encoder of one secret. Kafka's class is ``EncryptingPasswordEncoder``."""

    def __init__(self, secret: str, options: PasswordEncoderOptions) -> None:
        self._secret: Final = secret
        self._options: Final = options

    def encode(self, password: str) -> str:
        """Encrypt a password."""
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import CBC
        from cryptography.hazmat.primitives.padding import PKCS7

        options, salt = self._options, os.urandom(_SALT_BYTES)
        iv = os.urandom(_IV_BYTES[options.password_encoder_cipher_algorithm])
        parameters = {
            "keyFactoryAlgorithm": options.password_encoder_keyfactory_algorithm,
            "cipherAlgorithm": options.password_encoder_cipher_algorithm,
            "keyLength": options.password_encoder_key_length,
            "salt": b64encode(salt).decode(),
            "iterations": str(options.password_encoder_iterations),
            "passwordLength": str(_java_length(password)),
            "initializationVector": b64encode(iv).decode(),
        }
        key, data = self._key(parameters), password.encode()
        if options.password_encoder_cipher_algorithm == _GCM:
            parameters["authenticationTagLength"] = str(_TAG_BITS)
            encrypted = AESGCM(key).encrypt(iv, data, None)
        else:
            padder, encryptor = PKCS7(_BLOCK_BITS).padder(), Cipher(AES(key), CBC(iv)).encryptor()
            encrypted = encryptor.update(padder.update(data) + padder.finalize()) + encryptor.finalize()
        parameters["encryptedPassword"] = b64encode(encrypted).decode()
        return ",".join(f"{name}:{value}" for name, value in parameters.items())

    def decode(self, encoded: str) -> str:
        """Decrypt a password. Raises ``InvalidConfigError``, which quotes nothing of it."""
        from cryptography.exceptions import InvalidTag

        try:
            parameters = dict(_parameter(part) for part in encoded.split(","))
            password = self._decrypted(parameters).decode()
            if _java_length(password) != int(parameters["passwordLength"]):
                raise ValueError("another length")
        except (ValueError, KeyError, InvalidTag):
            raise InvalidConfigError(
                "a stored password cannot be decrypted: set password.encoder.secret to the secret that encrypted it, "
                "or password.encoder.old.secret if the secret has changed, and restart the broker"
            ) from None
        return password

    def _decrypted(self, parameters: Mapping[str, str]) -> bytes:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import CBC
        from cryptography.hazmat.primitives.padding import PKCS7

        encrypted = b64decode(parameters["encryptedPassword"], validate=True)
        key, iv = self._key(parameters), b64decode(parameters["initializationVector"], validate=True)
        cipher = parameters["cipherAlgorithm"]
        if cipher == _GCM:
            return AESGCM(key).decrypt(iv, encrypted, None)
        if cipher != _CBC:
            raise ValueError("unknown cipher")
        unpadder, decryptor = PKCS7(_BLOCK_BITS).unpadder(), Cipher(AES(key), CBC(iv)).decryptor()
        return unpadder.update(decryptor.update(encrypted) + decryptor.finalize()) + unpadder.finalize()

    def _key(self, parameters: Mapping[str, str]) -> bytes:
        """Derive the key from the secret."""
        iterations, key_bits = int(parameters["iterations"]), int(parameters["keyLength"])
        if iterations > _ITERATIONS_MAX or key_bits not in _KEY_BITS:
            raise ValueError("too many iterations, or a key that AES does not have")
        digest = _DIGESTS[parameters["keyFactoryAlgorithm"]]
        salt = b64decode(parameters["salt"], validate=True)
        return pbkdf2_hmac(digest, self._secret.encode(), salt, iterations, key_bits // 8)


def _parameter(part: str) -> tuple[str, str]:
    name, _, value = part.partition(":")
    return name, value


def _java_length(text: str) -> int:
    """Return the length of a Java string, in UTF-16 code units."""
    return len(text.encode("utf-16-le")) // 2
