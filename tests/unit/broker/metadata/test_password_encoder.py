"""Tests of the encryption of stored passwords.

Some of the passwords were encrypted by Java's cryptography.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.config.password_options import PasswordEncoderOptions
from millrace.errors import InvalidConfigError
from millrace_broker.metadata.password_encoder import PasswordEncoder

SECRET, PASSWORD = "broker-sécret", "pässword,1:2😀"
BY_JAVA = (
    (
        "passwordLength:14,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,keyLength:128,"
        "salt:kOQiKoSJYbRgv2H71LjPfz698k/HmA8gS7bLhvI+tEJShuzjVq/s4fYvZO9Q5RUk/XMCm1c2mq5oUkQajCdOqxPwEWvnrxSasSe7qyEiw"
        "jDDVFWuftYyVpY2zm5T3YGji8dLFc8IFKSYp5zi/UpyxlRwSGeP9EsTo9TQhuL/33Xo0E3Ix8gHUckW8zlF1TSAdO085BXsUiTYmNquUVrQpDP"
        "GlKlqcWqAGicvNbvVeeGC+LdmHktUl9wMQ9uAjCFkmkO7vxVcuqDzUbnJxhWSjCfivpHKSKOMJWXrbHth3n4ov6qkUUMDWKW6zRKkLFkryMScU"
        "pOPJAQPW0wBWdfGOA==,iterations:4096,encryptedPassword:h00Jo3jdDnt4T/yIgruW5oN4A/MXjfUuLngREwad3os=,initializat"
        "ionVector:XoxrfeUXT4J8mtQYwaZNtA=="
    ),
    (
        "passwordLength:14,keyFactoryAlgorithm:PBKDF2WithHmacSHA1,cipherAlgorithm:AES/CBC/PKCS5Padding,keyLength:256,sa"
        "lt:9FvwvJmoOwMjG9AcPvotww7boW22Mc1W0wpHV2RFhQ8oDm/4xu4OaR+CpQCy0YePqC3CszR0XzfSoMDXNtmwdfw4BBSGShcGhkfHEAE8c/C"
        "rrjafXsMMBPuWa002aggoGPN8ScGCDEVOyDF88aYHoIFzgHnQ0GvD84mq/rLePFQtmmZw4ec8Ece75myU4fGI1Rr/RiYdMapWBiSESJ64XdIR7"
        "/5zt0+TDIDfAItvd1vsdzIuJEbES8to51sYn00oF1ww2IoaZytKl3Gk9XK2+4D4N/udSghWEj2Fdm85MIOimKatPeiwfaMOa1Yf3VYiBGInDpU"
        "5zfGKwANy6piOXw==,iterations:4096,encryptedPassword:wu4L7/QaruAg95ayaym2QxzuJ6fn3jcY+R23VnJSdoM=,initializatio"
        "nVector:H0JigFzZovllvf9ycRdQqg=="
    ),
    (
        "passwordLength:14,keyFactoryAlgorithm:PBKDF2WithHmacSHA256,cipherAlgorithm:AES/GCM/NoPadding,keyLength:128,sal"
        "t:n2GlFD6eliMW20IX+BgAbObcbM29YkjU0NzOMFg2Zpkk0sLc2gCQ7wbvp0zdWtzBq2sEqEBZQTf9BJ1DiMy4BXuIcMkStevxIddy/IVee3oP"
        "DiHvpS8ETr+Z98ADk63F6uOQB3+cdj0yeduZpaNE/I7T3LuDOfdZviPdb8LKnXVRFXRGo1qsAONPEtVP/kz2YoaAs/YTWryMdEUAdXUdx/zCJ0"
        "+7rXh51rIQpLIel5RX1OxFjsVQKA3vVXKubWxD8X/ErO4whePia3UTykqfpU4SPhejEZswqySZWp5iq4OPo0GiI+3j9BSgGecZOQaAVey/vsIj"
        "GRjDgST0kNTvRg==,iterations:4096,encryptedPassword:y10nwPy5dk5pXAFQGfcWcIVJ2koO3rb5vJMilCeJlPJe,initialization"
        "Vector:efYb9NJfT3zN+vX3,authenticationTagLength:128"
    ),
)
"""``PASSWORD`` in Kafka's format, encrypted by ``javax.crypto`` with ``SECRET``, for three pairs of algorithms."""

encoders = st.builds(
    lambda factory, cipher, length: PasswordEncoder(
        SECRET,
        PasswordEncoderOptions.load(
            {
                "password.encoder.keyfactory.algorithm": factory,
                "password.encoder.cipher.algorithm": cipher,
                "password.encoder.key.length": length,
                "password.encoder.iterations": 1024,
            }
        ),
    ),
    st.sampled_from(["PBKDF2WithHmacSHA512", "PBKDF2WithHmacSHA256", "PBKDF2WithHmacSHA1"]),
    st.sampled_from(["AES/CBC/PKCS5Padding", "AES/GCM/NoPadding"]),
    st.sampled_from(["128", "192", "256"]),
)


@pytest.mark.parametrize("encoded", BY_JAVA, ids=["sha512-cbc", "sha1-cbc", "sha256-gcm"])
def test_a_password_that_kafka_stored_is_decrypted(encoded: str) -> None:
    assert PasswordEncoder(SECRET, PasswordEncoderOptions.load({})).decode(encoded) == PASSWORD


@settings(deadline=None, max_examples=30)
@given(encoder=encoders, password=st.text(max_size=40))
def test_a_password_survives_and_two_of_its_encryptions_differ(encoder: PasswordEncoder, password: str) -> None:
    encoded = encoder.encode(password)
    assert PasswordEncoder(SECRET, PasswordEncoderOptions.load({})).decode(encoded) == password
    assert encoder.encode(password) != encoded


@pytest.mark.parametrize(
    ("secret", "encoded"),
    [
        ("another secret", BY_JAVA[2]),
        (SECRET, BY_JAVA[2].replace("passwordLength:14", "passwordLength:13")),
        (SECRET, BY_JAVA[0].replace("AES/CBC", "DES/CBC")),
        (SECRET, BY_JAVA[0].replace("iterations:4096", "iterations:999999999999")),
        (SECRET, BY_JAVA[0].replace("keyLength:128", "keyLength:99999999999999")),
        (SECRET, "plain text"),
        (SECRET, ""),
    ],
    ids=["secret", "length", "cipher", "iterations", "key", "plain", "empty"],
)
def test_another_secret_or_a_damaged_password_is_refused_without_a_quote(secret: str, encoded: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"cannot be decrypted: set password\.encoder\.secret") as refused:
        PasswordEncoder(secret, PasswordEncoderOptions.load({})).decode(encoded)
    assert encoded == "" or encoded not in refused.value.message
