"""The greeting of a TCP connection between worker and engine: each proves that it knows the secret, before any frame.

Bytes in, bytes out; no I/O. The engine sends a challenge, the worker answers it with a challenge of its own, and the
engine proves itself by that:

    engine -> worker: MAGIC, nonce of the engine (32 bytes)
    worker -> engine: nonce of the worker (32 bytes), HMAC("worker", both nonces)
    engine -> worker: HMAC("engine", both nonces)

The labels keep a proof from being sent back as the other end's. The greeting says who is at the other end, no more:
what follows is neither encrypted nor signed, so a network that others can read or change needs a tunnel around it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets

_MAGIC = b"interlingua-engine-1\n"
_NONCE_BYTES = 32
PROOF_BYTES = hashlib.sha256().digest_size
CHALLENGE_BYTES = len(_MAGIC) + _NONCE_BYTES
ANSWER_BYTES = _NONCE_BYTES + PROOF_BYTES
MIN_SECRET_CHARACTERS = 16
"""A proof can be checked against guesses by whoever reads it from the network."""


def read_secret(variable: str | None) -> bytes:
    """The secret in an environment variable.

    Raises:
        ValueError: there is none, or it is too short; the text is for the operator.
    """
    if variable is None:
        raise ValueError("engines over TCP need `secret_env`, the name of the environment variable with their secret")
    secret = os.environ.get(variable, "")
    if len(secret) < MIN_SECRET_CHARACTERS:
        said = f"has {len(secret)} characters" if secret else "is not set"
        raise ValueError(
            f"the environment variable {variable} {said}: it must hold the secret of engines over TCP, of at least "
            f"{MIN_SECRET_CHARACTERS} characters"
        )
    return secret.encode()


def new_challenge() -> bytes:
    """What an engine sends first: another one for each connection."""
    return _MAGIC + secrets.token_bytes(_NONCE_BYTES)


def answer(secret: bytes, challenge: bytes) -> bytes | None:
    """What a worker answers to a challenge; None: it is not the challenge of an engine."""
    if not challenge.startswith(_MAGIC):
        return None
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + _proof(secret, b"worker", challenge, nonce)


def prove(secret: bytes, challenge: bytes, answered: bytes) -> bytes | None:
    """The engine's proof for a worker that answered the challenge rightly; None: the worker did not."""
    nonce, proof = answered[:_NONCE_BYTES], answered[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, b"worker", challenge, nonce)):
        return None
    return _proof(secret, b"engine", challenge, nonce)


def is_proof(secret: bytes, challenge: bytes, answered: bytes, proof: bytes) -> bool:
    """Whether an engine's proof is right, for the answer that it was sent."""
    return hmac.compare_digest(proof, _proof(secret, b"engine", challenge, answered[:_NONCE_BYTES]))


def _proof(secret: bytes, of: bytes, challenge: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, of + challenge + nonce, "sha256")
