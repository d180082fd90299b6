"""The section `state`: a server of Valkey or Redis by which several gateways agree."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import msgspec

from gateway.config.base import Seconds, Section

_Variable = Annotated[str, msgspec.Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$")]


class StateSection(Section, frozen=True):
    """What gateways share: endpoints, figures, feedback, keys, limits, stored responses, and cached answers.

    Attributes:
        url_env: environment variable with the server's URL: `valkey://[user:password@]host[:port][/database]`,
            `valkeys://` for TLS, `unix://path`; also `redis://` and `rediss://`.
        password_env: environment variable with the password, where it is not in the URL.
        prefix: of all names on the server; gateways with another one share nothing with these.
        timeout: seconds that an answer of the server may take; then it counts as away.
    """

    url_env: _Variable
    password_env: _Variable | None = None
    prefix: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_.-]{1,64}$")] = "interlingua"
    timeout: Seconds = 0.1

    @property
    def lacks_package(self) -> str | None:
        """What this machine lacks for it, as a sentence; None: nothing."""
        if find_spec("redis") is not None:
            return None
        return "state: a state server needs redis-py: pip install 'interlingua[state]'"
