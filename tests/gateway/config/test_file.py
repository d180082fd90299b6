from __future__ import annotations

from pathlib import Path

import pytest

from gateway.check import validate
from gateway.config import BUNDLED, ConfigError, default, load, parse, remote

GOOD = """\
[backends.local]
kind = "native"
model = "./models/llama"
[backends.other]
kind = "scripted"

[endpoints.chat]
task = "chat"
served_entities = [
  { name = "current",    backend = "local", traffic_percentage = 90 },
  { name = "challenger", backend = "other", model = "llama-3", traffic_percentage = 10 },
]
"""


def test_a_file_is_read() -> None:
    config = parse(GOOD)
    current, challenger = config.endpoints["chat"].served_entities
    assert (current.traffic_percentage, current.model) == (90, None)
    assert (challenger.backend, challenger.model) == ("other", "llama-3")
    assert config.backends["local"] == {"kind": "native", "model": "./models/llama"}
    assert config.server.port == 8000


WRONG = {
    GOOD.replace("[backends.local]", "[backends.local"): "1: ",
    GOOD.replace('task = "chat"', 'tassk = "chat"'): "8: endpoints.chat.tassk: unknown field; did you mean 'task'?",
    GOOD.replace(
        'task = "chat"', 'task = "chess"'
    ): "8: endpoints.chat.task: 'chess' is none of chat, completions, embeddings",
    GOOD.replace("= 90", "= 80"): "7: endpoints.chat: traffic percentages add up to 90, not 100",
    GOOD.replace('backend = "local"', 'backend = "locl"'): (
        "10: endpoints.chat.current: no backend is called 'locl'; did you mean 'local'?"
    ),
    GOOD.replace('name = "challenger"', 'name = "current"'): (
        "7: endpoints.chat: two served entities have the same name"
    ),
    GOOD.replace('kind = "native"\n', ""): "1: backends.local: `kind` is missing",
    GOOD.replace("= 90", "= 190"): "10: endpoints.chat.served_entities[0].traffic_percentage: Expected `int` <= 100",
    GOOD.replace('model = "llama-3"', 'task = "embeddings"'): (
        "8: endpoints.chat: served entities must have the same task, "
        "and 'current' (chat) and 'challenger' (embeddings) do not"
    ),
    GOOD
    + 'experiment = { unit = ["users"] }\n': "13: endpoints.chat: there is no unit 'users'; there are header:<name>",
    GOOD + '[server]\nport = "80"\n': "14: server.port: Expected `int`, got `str`",
    GOOD + "[server]\nworkers = 0\n": "14: server.workers: Expected `int` >= 1",
    GOOD + "[server]\nport = 99999\n": "14: server.port: Expected `int` <= 65535",
    GOOD + "[server]\ndrain_timeout = -1.0\n": "14: server.drain_timeout: Expected `float` >= 0",
    GOOD + "[server.limits]\nbody_idle = 0.0\n": "14: server.limits.body_idle: Expected `float` > 0",
    GOOD + "[server.limits]\nmax_concurrent_requests = 0\n": "14: server.limits.max_concurrent_requests: Expected",
    GOOD + "[[server.mounts]]\nprefix = 'x'\ndialects = {}\n": "14: server.mounts[0].prefix: Expected `str` matching",
    GOOD
    + "[[server.mounts]]\nprefix = '/x'\ndialects = {}\n" * 2: "16: server.mounts: two of them have the prefix '/x'",
    GOOD + "[[server.listeners]]\nport = 8000\n": "13: server.listeners: the port 8000 is taken twice",
    GOOD + "[server]\nworkers = 4\nexport = { folder = 'x', files = 4 }\n": (
        "15: server.export: `files` must be more than the number of workers"
    ),
    GOOD + "experiment = { ramp = { arm = 'challenger' } }\n": "13: endpoints.chat: a `ramp` needs a `state_file`",
    GOOD + "experiment = { ramp = { arm = 'current' } }\n": (
        "13: endpoints.chat.experiment.ramp: 'current' is none of the served entities after the first"
    ),
    GOOD + "experiment = { ramp = { arm = 'challenger', steps = [5, 1] } }\n": (
        "13: endpoints.chat.experiment.ramp: `steps` must ascend"
    ),
    GOOD + "[server.limits]\nmax_bodyy = 1\n": "14: server.limits.max_bodyy: unknown field; did you mean 'max_body'?",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_wrong_is_said_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert str(error.value).startswith(message)


UNSERVABLE = {
    "[server.dialects]\ntgi = 'mindi'": "dialects.tgi: there is no dialect 'mindi'; there are tgi, tgi-0.9, mindie",
    "[server.dialects]\ntgii = 'mindie'": "dialects: there is no protocol 'tgii'",
    "[server.dialect_options.mindy]": "dialect_options: there is no dialect 'mindy'; did you mean 'mindie'?",
    "[server.dialect_options.mindie]\nfulltext = true": (
        "dialect_options.mindie: there is no field 'fulltext'; did you mean 'full_text'?"
    ),
    "[server.dialect_options.mindie]\nfull_text = 1": "dialect_options.mindie: Expected `bool`, got `int`",
    "[backends.far]\nkind = 'opena'": "backends.far: there is no backend of kind 'opena'; there are anthropic, ",
    "[backends.far]\nkind = 'openai'\nurll = ''": ("backends.far.urll: unknown field; did you mean 'url'?"),
}


@pytest.mark.parametrize(("text", "message"), UNSERVABLE.items(), ids=range(len(UNSERVABLE)))
def test_what_cannot_be_served_is_said_before_anything_starts(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        validate(parse(GOOD.replace('"native"\nmodel = "./models/llama"', '"scripted"') + text))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("files", "refused"),
    [
        ({"modules.json": "[]", "config.json": '{"architectures": ["BertModel"]}'}, True),
        ({"config.json": '{"architectures": ["LlamaForCausalLM"]}'}, False),
        # Not known before it is loaded: a warning then.
        ({"config.json": '{"architectures": ["BertModel"]}'}, False),
        ({"config.json": "{"}, False),
        ({}, False),
    ],
)
def test_arms_for_text_and_for_embeddings_are_refused_as_far_as_folders_tell(
    tmp_path: Path, files: dict[str, str], refused: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    mixed = GOOD.replace("./models/llama", str(tmp_path))
    if not refused:
        validate(parse(mixed), offline=True)
        return
    with pytest.raises(ConfigError) as error:
        validate(parse(mixed), offline=True)
    assert str(error.value) == ("endpoints.chat: 'challenger' generates text, and 'current' makes embeddings only")
    validate(parse(mixed.replace('task = "chat"', 'task = "embeddings"')), offline=True)


def test_the_files_name_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    with pytest.raises(ConfigError, match="cannot be read"):
        load(path)
    path.write_text("x = 1\n")
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}:1: x: unknown field")


def test_the_names_of_a_model_are_an_endpoint_and_its_aliases() -> None:
    ((name, endpoint),) = default("llama", ("mine", "gpt-4o", "gpt-*")).endpoints.items()
    assert (name, endpoint.aliases) == ("mine", ("gpt-4o", "gpt-*"))
    ((name, endpoint),) = remote("openai", "http://x/v1", ["org/llama"], names=("mine", "other")).endpoints.items()
    assert (name, endpoint.aliases, endpoint.served_entities[0].model) == ("mine", ("other",), "org/llama")
    with pytest.raises(ConfigError, match="names one model, and the server at http://x/v1 has 2"):
        remote("openai", "http://x/v1", ["a", "b"], names=("mine",))


def test_without_a_file_a_folder_or_the_bundled_model_is_served(tmp_path: Path) -> None:
    assert list(default().endpoints) == [BUNDLED]
    assert default().backends == {"local": {"kind": "native"}}
    checkpoint = default(str(tmp_path / "llama"))
    assert list(checkpoint.endpoints) == ["llama"]
    assert checkpoint.backends["local"]["model"] == str(tmp_path / "llama")


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "[server]\nport = 8000\n"])
def test_a_file_without_endpoints_is_refused(text: str, tmp_path: Path) -> None:
    (file := tmp_path / "gateway.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"gateway.toml:1: .*(no endpoints|empty)"):
        load(file)


def test_endpoints_may_all_be_in_a_state_file() -> None:
    assert parse('[server]\nadmin_keys_env = "A"\nstate_file = "state.json"\n').endpoints == {}


def test_a_file_that_was_cut_in_a_line_is_refused(tmp_path: Path) -> None:
    text = GOOD + "[server]\nport = 8001\n"
    (file := tmp_path / "gateway.toml").write_text(text)
    assert load(file).server.port == 8001
    # Without the whole of [endpoints] it would serve what its backends list.
    for end in range(text.index("[endpoints") + 1, len(text)):
        file.write_text(text[:end])
        if text[end - 1] == "\n" and text[:end].rstrip().endswith(("]", "[server]")):
            continue  # the end of a section
        with pytest.raises(ConfigError):
            load(file)
