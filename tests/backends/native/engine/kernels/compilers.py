"""What the tests of compiled code need on the machine."""

from __future__ import annotations

import pytest

from backends.native.engine.kernels import jit

needs_compiler = pytest.mark.skipif(jit.find_compiler() is None, reason="missing tool: g++")
