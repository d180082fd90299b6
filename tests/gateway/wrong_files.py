"""Configurations that `gateway check` refuses: what is wrong in each, on which line, and words of the sentence."""

from __future__ import annotations

GOOD = """\
[server]
port = 0

[backends.toy]
kind = "scripted"

[backends.far]
kind = "openai"
url = "http://127.0.0.1:9/v1"

[endpoints.chat]
served_entities = [
  { name = "a", backend = "toy", traffic_percentage = 60 },
  { name = "b", backend = "far", traffic_percentage = 40 },
]
"""
END = GOOD.count("\n") + 1  # the line of what is appended

Change = tuple[str, str]
BAD: dict[str, tuple[Change | str, int, str]] = {
    "a price without end": (
        ('backend = "toy", traffic', 'backend = "toy", price = { prompt = inf }, traffic'),
        13,
        "<= 1000000000",
    ),
    # --- syntax, and other languages
    "bracket": (("[backends.toy]", "[backends.toy"), 4, "Expected"),
    "quote": (('kind = "scripted"', 'kind = "scripted'), 5, "Illegal character"),
    "key twice": (("port = 0", "port = 0\nport = 1"), 3, "Cannot overwrite"),
    "section twice": ("[backends.toy]\n", END, "Cannot declare"),
    "json": ('{"model_list": []}\n', -1, "this is JSON, and the gateway reads TOML"),
    "yaml": (
        "model_list:\n  - model_name: x\n",
        -1,
        "this is YAML, and the gateway reads TOML",
    ),
    "other yaml": ("server:\n  port: 1\n", -1, "this is YAML"),
    "mindie": ('{"ServerConfig": {}}\n', -1, "this is JSON"),
    "cut": ("[server.limits]\nmax_body = 80", END + 1, "cut"),
    "nothing": ("\n", -1, "no endpoints and no backends"),
    "unquoted": (('"scripted"', "scripted"), 5, 'Invalid value; texts stand in quotes: key = "text"'),
    "curly quotes": (('"scripted"', "\u201cscripted\u201d"), 5, "texts stand in straight quotes"),
    "capital": (("port = 0", "strict = True"), 2, "write true or false"),
    "null": (("port = 0", "default = null"), 2, "leave out what has no value"),
    "colon": (("port = 0", "port: 0"), 2, "write key = value"),
    "comment": (("[server]", "// ours\n[server]"), 1, "a comment begins with #"),
    "backslash": (
        "[backends.n]\nkind = 'native'\nmodel = \"C:\\models\"\n",
        END + 2,
        "in single quotes a backslash is one",
    ),
    "two lines": (
        '[endpoints.x]\nserved_entities = [{ name = "a",\n }]\n',
        END + 1,
        "a table in { } stands on one line",
    ),
    "comma": ((" = 60 }", " = 60, }"), 13, "no comma stands before }"),
    "dots": (
        '[endpoints.gpt-4.1]\nserved_entities = [{ name = "a", backend = "toy" }]\n',
        END,
        'a name with a dot stands in quotes: [endpoints."gpt-4.1"]',
    ),
    "dots of a backend": ("[backends.qwen2.5.1]\nkind = 'scripted'\n", END, '[backends."qwen2.5.1"]'),
    "double brackets": ("[[filters]]\nkind = 'x'\n", END, "write [filters.NAME], not [[filters]]"),
    "single brackets": (
        "[endpoints.x.served_entities]\nname = 'a'\n",
        END,
        "write [[endpoints.x.served_entities]], or [{ ... }]",
    ),
    # --- what cannot be kept (a file is no folder)
    "storage": (("port = 0", "storage_folder = '/dev/null/x'"), 2, "server.storage_folder: the folder '/dev/null/x'"),
    "batches": ("[batches]\nfolder = '/dev/null/x'\n", END + 1, "batches.folder: the folder '/dev/null/x' cannot be"),
    # --- a backend that is the gateway itself
    "itself": (("port = 0", "port = 9"), 9, "http://127.0.0.1:9/v1 is an address of this gateway itself"),
    "another listener": (
        '[backends.me]\nkind = "tgi"\nurls = ["http://10.0.0.5", "http://localhost:9009/"]\n'
        "[[server.listeners]]\nport = 9009\n",
        END + 2,
        "backends.me: http://localhost:9009/ is an address of this gateway itself",
    ),
    # --- unknown keys, with a suggestion from the right table
    "backend": ("[backend.local]\nkind = 'x'\n", END, "backend: unknown field; did you mean 'backends'?"),
    "endpoint": ("[endpoint.x]\n", END, "endpoint: unknown field; did you mean 'endpoints'?"),
    "ports": (("port = 0", "ports = 0"), 2, "server.ports: unknown field; did you mean 'port'?"),
    "worker": (("port = 0", "worker = 2"), 2, "did you mean 'workers'?"),
    "limits": ("[server.limits]\nmax_bodyy = 1\n", END + 1, "did you mean 'max_body'?"),
    "entity": (('name = "a"', 'nam = "a"'), 13, "endpoints.chat.served_entities[0].nam: unknown field; did you mean"),
    "no name": (('name = "a", ', ""), 13, "endpoints.chat.served_entities[0]: `name` is missing"),
    "timeout": (
        ("[endpoints", "timeout = 3\n[endpoints"),
        11,
        "backends.far.timeout: unknown field; did you mean 'timeouts'?",
    ),
    "api_key": (("[endpoints", "api_key = 'x'\n[endpoints"), 11, "did you mean 'api_key_env'?"),
    "base_url": (("url = ", "base_url = "), 9, "backends.far.base_url: unknown field; did you mean 'url'?"),
    "weight": (
        ('"a", backend', '"a", weight = 1, backend'),
        13,
        "weight: unknown field; did you mean 'traffic_percentage'?",
    ),
    "connect": (
        ("[endpoints", "timeouts.conect = 1\n[endpoints"),
        11,
        "timeouts.conect: unknown field; did you mean 'connect'?",
    ),
    "share": (
        "experiment = { margn = 0.1 }\n",
        END,
        "endpoints.chat.experiment.margn: unknown field; did you mean 'margin'?",
    ),
    "guardrail": ("experiment = { guardrail = { worse = 0.1 } }\n", END, "experiment.guardrail.worse: unknown field"),
    # --- values
    "port text": (("port = 0", 'port = "80"'), 2, "server.port: Expected `int`, got `str`"),
    "port range": (("port = 0", "port = 70000"), 2, "server.port: Expected `int` <= 65535"),
    "workers": (("port = 0", "workers = 0"), 2, "server.workers: Expected `int` >= 1"),
    "task": ("task = 'chatt'\n", END, "'chatt' is none of chat, completions, embeddings, rerank, classify; did you"),
    "routing": ("routing = 'random'\n", END, "'random' is none of hash"),
    "percent": (("= 60", "= 160"), 13, "traffic_percentage: Expected `int` <= 100"),
    "entity name": (('name = "a"', 'name = "a b"'), 13, "served_entities[0].name: Expected `str` matching"),
    "entities": (
        ("served_entities = [", "aliases = ['x y']\nserved_entities = ["),
        12,
        "aliases[0]: Expected `str` matching",
    ),
    "entities text": ("[endpoints.more]\nserved_entities = 'a'\n", END + 1, "Expected `array`, got `str`"),
    "no entities": ("[endpoints.more]\ntask = 'chat'\n", END, "endpoints.more: `served_entities` is missing"),
    "empty entities": ("[endpoints.more]\nserved_entities = []\n", END + 1, "`served_entities` is empty"),
    "drain": (("port = 0", "drain_timeout = -1.0"), 2, "Expected `float` >= 0"),
    "cors": (("port = 0", "cors_origins = ['x']"), 2, "cors_origins[0]: Expected `str` matching"),
    "mount": ("[[server.mounts]]\nprefix = 'x'\n", END + 1, "server.mounts[0].prefix: Expected `str` matching"),
    "second mount": (
        "[[server.mounts]]\nprefix = '/x'\n[[server.mounts]]\nprefix = 'y'\n",
        END + 3,
        "mounts[1].prefix",
    ),
    "timeouts": (
        ("[endpoints", 'timeouts.connect = "2s"\n[endpoints'),
        11,
        "timeouts.connect: Expected `float`, got `str`",
    ),
    "features": (("[endpoints", 'features = ["chats"]\n[endpoints'), 11, "features"),
    "raw text": (("[endpoints", 'raw_text = "chat"\n[endpoints'), 11, "'chat' is none of as_chat, refuse"),
    "header": (("[endpoints", "headers = { a = 1 }\n[endpoints"), 11, "headers.a"),
    # --- contradictions
    "sum": (("= 60", "= 50"), 11, "traffic percentages add up to 90, not 100"),
    "same name": (('name = "b"', 'name = "a"'), 11, "two served entities have the same name"),
    "no backend": (('backend = "far"', 'backend = "fra"'), 14, "no backend is called 'fra'; did you mean 'far'?"),
    **{
        f"far's {options}": (("[endpoints", f"{options}\n[endpoints"), 11, words)
        for options, words in (
            ("timeouts = { whole = -5.0 }", "backends.far.timeouts.whole: Expected `float` > 0.0"),
            ("timeouts = { whole = nan }", "backends.far.timeouts.whole: Expected `float` > 0.0"),
            ("timeouts = { idle = inf }", "backends.far.timeouts.idle: Expected `float` <= 1000000000.0"),
            ("limits = { connections = 0 }", "backends.far.limits.connections: Expected `int` >= 1"),
            ("limits = { waiting = -1 }", "backends.far.limits.waiting: Expected `int` >= 0"),
            ("limits = { queue_timeout = -1.0 }", "backends.far.limits.queue_timeout: Expected `float` > 0.0"),
            ("limits = { body = 0 }", "backends.far.limits.body: Expected `int` >= 1"),
            ("limits = { linger = -0.1 }", "backends.far.limits.linger: Expected `float` >= 0.0"),
            ("retries = { attempts = 0 }", "backends.far.retries.attempts: Expected `int` >= 1"),
            ("retries = { budget = nan }", "backends.far.retries.budget: Expected `float` >= 0.0"),
            ("failures = 0", "backends.far.failures: Expected `int` >= 1"),
            ("health_interval = 0.0", "backends.far.health_interval: Expected `float` > 0.0"),
            ("context_length = -1", "backends.far.context_length: Expected `int` >= 1"),
        )
    },
    "shadow": (('"b", backend = "far"', '"b", shadow = {}, backend = "far"'), 14, "a shadow answers no client"),
    "paired first": (('"a", backend', '"a", paired = {}, backend'), 13, "the one that others are `paired` with"),
    "tasks": (('"b", backend', '"b", task = "embeddings", backend'), 11, "served entities must have the same task"),
    "unit": ("experiment = { unit = ['users'] }\n", END, "there is no unit 'users'"),
    "ramp": ("experiment = { ramp = { arm = 'b' } }\n", END, "a `ramp` needs a `state_file`"),
    "ramp arm": ("experiment = { ramp = { arm = 'c' } }\n", END, "'c' is none of the served entities after the first"),
    "feedback's name": ("experiment.feedback = { latency = 'lower' }\n", END, "'latency' is the gateway's own metric"),
    "feedback's bounds": (
        "experiment.feedback.x = { better = 'lower', min = 1, max = 0 }\n",
        END,
        "`min` is more than `max`",
    ),
    "limit of nothing": ("limits = [{}]\n", END, "a limit needs one of requests, tokens, cost and concurrent"),
    "limit's window": ("limits = [{ window = 'day' }]\n", END, "a limit needs one of requests"),
    "empty name": (
        '[endpoints.""]\nserved_entities = [{ name = "a", backend = "toy" }]\n',
        END,
        "the name of an endpoint is empty",
    ),
    "shadow first": (
        ('"toy", traffic_percentage = 60 },', '"toy", traffic_percentage = 0, shadow = {} },'),
        13,
        ".a: the first served entity is the one that others are compared with; a shadow goes after it",
    ),
    "metric": ("experiment = { guardrails = [{ metric = 'x', worse_than = 0.1 }] }\n", END, "there is no metric 'x'"),
    "alias": (
        "aliases = ['m']\n[endpoints.m]\nserved_entities = [{ name = 'a', backend = 'toy' }]\n",
        END,
        "the name of an endpoint",
    ),
    "mounts twice": ("[[server.mounts]]\nprefix = '/x'\n" * 2, END + 2, "two of them have the prefix '/x'"),
    "port twice": (
        "[[server.listeners]]\nport = 9\n[[server.listeners]]\nport = 9\n",
        END + 2,
        "the port 9 is taken twice",
    ),
    "no certificate": (("port = 0", "ssl_keyfile = 'server.key'"), 2, "`ssl_keyfile` needs an `ssl_certfile`"),
    "server certificate": (("port = 0", "ssl_certfile = 'none.pem'"), 2, "there is no file none.pem"),
    "default": (("port = 0", "default = 'chatt'"), 2, "there is no endpoint 'chatt'; did you mean 'chat'?"),
    "export": (("port = 0", "workers = 4\nexport = { folder = '/tmp', files = 4 }"), 3, "`files` must be more"),
    "client key": (("[endpoints", "client_key = 'x'\n[endpoints"), 7, "`client_key` needs a `client_cert`"),
    "proxy password": (("[endpoints", "proxy = 'http://u:p@h:1'\n[endpoints"), 7, "is a secret"),
    "url": (("http://127.0.0.1:9/v1", "127.0.0.1:9"), 7, "`url`: not an http or https URL"),
    "url with a key": (("http://", "http://sk-x@"), 7, "name the variable of a key in `api_key_env`"),
    "url of a route": (("9/v1", "9/v1/chat/completions"), 7, "leave out /chat/completions at its end"),
    # --- protocols and kinds
    "kind": (('kind = "openai"', 'kind = "opena"'), 8, "no backend of kind 'opena'"),
    "vllm": (('kind = "openai"', 'kind = "vllm"'), 8, "for vllm say 'openai'"),
    "kind in capitals": (('"openai"', '"OpenAI"'), 8, "did you mean 'openai'?"),
    "no kind": (('kind = "openai"\n', ""), 7, "`kind` is missing"),
    "no url": (('url = "http://127.0.0.1:9/v1"\n', ""), 7, "give `url`, or `urls` for several servers"),
    "dialect": ("[server.dialects]\ntgi = 'mindi'\n", END + 1, "there is no dialect 'mindi'"),
    "protocol": ("[server.dialects]\ntgii = 'mindie'\n", END + 1, "there is no protocol 'tgii'"),
    "dialect field": ("[server.dialect_options.mindie]\nfulltext = true\n", END, "did you mean 'full_text'?"),
    "mount dialect": ("[[server.mounts]]\nprefix = '/x'\ndialects = { tgi = 'x' }\n", END, "there is no dialect 'x'"),
    "template": (("[endpoints", "chat_template = 'x'\n[endpoints"), 7, "the server renders chats itself"),
    # --- this machine
    "keys": (("port = 0", "keys_env = 'NOT_SET'"), 2, "the environment variable NOT_SET"),
    "key": (("[endpoints", "api_key_env = 'NOT_SET'\n[endpoints"), 11, "the environment variable NOT_SET is not set"),
    "second key": (("[endpoints", "api_key_env = ['HOME', 'NOT_SET']\n[endpoints"), 11, "variable NOT_SET is not set"),
    "header variable": (("[endpoints", "headers = { x = { env = 'NOT_SET' } }\n[endpoints"), 11, "NOT_SET is not set"),
    "ca": (("[endpoints", "ca_file = '/no/such.pem'\n[endpoints"), 11, "there is no file /no/such.pem"),
    "certificate": (("[endpoints", "client_cert = '/dev/null'\n[endpoints"), 11, "there is no file /dev/null"),
    "tokenizer": (("[endpoints", "tokenizer = '/no/such'\n[endpoints"), 11, "there is no file or folder /no/such"),
    "model": ("[backends.n]\nkind = 'native'\nmodel = '/no/such'\n", END + 2, "there is no folder or file '/no/such'"),
    "home": ("[backends.n]\nkind = 'native'\nmodel = '~/x'\n", END + 2, "the shell alone knows ~"),
    "not a model": ("[backends.n]\nkind = 'native'\nmodel = '/etc'\n", END + 2, "holds no config.json"),
    "state": (("port = 0", "state_file = '/no/such/state.json'"), 2, "the folder '/no/such' cannot be written to"),
    "usage": ("[usage]\ndatabase = '/dev/null/usage'\n", END + 1, "the folder '/dev/null' cannot be written to"),
    "usage scheme": ("[usage]\ndatabase = 'mysql://x/y'\n", END + 1, "usage.database: it must be a file of SQLite"),
    "retention": ("[usage]\nretention = 30\n", END + 1, "usage.retention: Expected `str`"),
    "users": ("[usage]\nusers = 'hash'\n", END + 1, "'hash' is none of hashed, plain, none; did you mean 'hashed'?"),
    "public": (("port = 0", "host = '0.0.0.0'"), 2, "other machines can reach this address"),
    "host and port": (("port = 0", "host = '127.0.0.1:80'"), 2, "host and port are two keys"),
    "no host name": (("port = 0", 'host = "\\u0080127.0.0.1"'), 2, "is no address"),
    "listener's host": (
        ("port = 0", "port = 0\n[[server.listeners]]\nport = 9\nroles = ['ask']\nhost = 'a..b'"),
        6,
        "server.listeners[0].host: 'a..b' is no address",
    ),
    "host": (("port = 0", "host = '203.0.113.7'\nkeys_env = 'HOME'"), 2, "cannot listen on 203.0.113.7"),
}


def changed(change: Change | str, line: int) -> str:
    if isinstance(change, tuple):
        assert change[0] in GOOD
        return GOOD.replace(*change, 1)
    return change if line < 0 else GOOD + change
