"""Stand-ins read words as their programs do, as far as the recorded help says."""

from __future__ import annotations

import pytest

from tests.shell.stand_in import HELP, UsageError, options, parse, split


@pytest.mark.parametrize(
    ("words", "given", "arguments"),
    [
        ("docker run -d -v a:b --env X image --env Y", {"detach": [""], "volume": ["a:b"], "env": ["X"]}, 3),
        ("docker run --publish=1:1 -p2:2 image", {"publish": ["1:1", "2:2"]}, 1),
        ("docker build . --tag x", {"tag": ["x"]}, 1),
        ("kubectl apply --filename=a -f b", {"filename": ["a", "b"]}, 0),
        ("kubectl rollout status deployment/x --watch=false", {"watch": ["false"]}, 1),
        ("ray start --head --num-cpus 0", {"head": [""], "num-cpus": ["0"]}, 0),
    ],
)
def test_words_that_are_right(words: str, given: dict[str, list[str]], arguments: int) -> None:
    found, rest = parse(*split(words.split()))
    assert (found, len(rest)) == (given, arguments)


@pytest.mark.parametrize(
    "words", ["docker runs image", "docker run --evn X image", "docker run -v", "kubectl apply -y", "ray start --heads"]
)
def test_words_that_are_wrong(words: str) -> None:
    with pytest.raises(UsageError):
        parse(*split(words.split()))


def test_the_help_is_read() -> None:
    """No option is lost because its line has another form."""
    for file in HELP.iterdir():
        command, _ = split(file.stem.split("-"))
        named = file.read_text().count("\n    --") + file.read_text().count("\n      --")
        assert len(options(command)) >= max(named, 5), command
