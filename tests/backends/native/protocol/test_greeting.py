"""The greeting of TCP connections, as pure functions, and addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.native.protocol import greeting
from backends.native.protocol.addresses import TcpAddress, read_address, unix_address

SECRET = b"a secret of some length"


def test_both_ends_prove_that_they_know_the_secret() -> None:
    challenge = greeting.new_challenge()
    assert len(challenge) == greeting.CHALLENGE_BYTES
    answer = greeting.answer(SECRET, challenge)
    assert answer is not None
    assert len(answer) == greeting.ANSWER_BYTES
    proof = greeting.prove(SECRET, challenge, answer)
    assert proof is not None
    assert len(proof) == greeting.PROOF_BYTES
    assert greeting.is_proof(SECRET, challenge, answer, proof)
    assert SECRET not in challenge + answer + proof


def test_what_is_refused() -> None:
    challenge = greeting.new_challenge()
    answer = greeting.answer(SECRET, challenge)
    assert answer is not None
    proof = greeting.prove(SECRET, challenge, answer)
    assert proof is not None
    assert greeting.prove(b"another secret", challenge, answer) is None
    assert greeting.prove(SECRET, greeting.new_challenge(), answer) is None, "an answer that was recorded"
    assert greeting.prove(SECRET, challenge, answer[:32] + proof) is None, "a proof that is sent back"
    assert not greeting.is_proof(b"another secret", challenge, answer, proof)
    assert not greeting.is_proof(SECRET, challenge, answer, answer[32:])
    assert greeting.answer(SECRET, b"HTTP/1.1 400 Bad Request".ljust(greeting.CHALLENGE_BYTES)) is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://10.0.0.7:7000", TcpAddress("10.0.0.7", 7000)),
        ("tcp://gpu-1.example:1", TcpAddress("gpu-1.example", 1)),
        ("tcp://[::1]:7000", TcpAddress("::1", 7000)),
        ("unix:///run/engine.sock", Path("/run/engine.sock")),
    ],
)
def test_addresses(text: str, address: TcpAddress | Path) -> None:
    assert read_address(text) == address
    assert (unix_address(address) if isinstance(address, Path) else str(address)) == text


@pytest.mark.parametrize(
    "text", ["", "tcp://", "tcp://host", "tcp://host:70000", "tcp://::1:7", "http://host:1", "unix://", "host:1"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="no address of an engine"):
        read_address(text)
