"""Does the engine's memory stop growing? New prompts, one after the other, until the KV cache has been used up twice.

    python -m benchmarks.engine_memory

The bundled model in an engine process with a cache of 8,192 tokens. Every prompt is new, so each one takes blocks of
the cache that nobody has used, until there are none. Prints the memory of the process and the share of the cache whose
memory is taken.
"""

from __future__ import annotations

import asyncio

from backends.native.backend import NativeBackend
from schemas.ir import Generate, Sampling, Stopping, TokensPrompt

KV_TOKENS, LENGTH, NEW = 8_192, 120, 8
ROUNDS = 6 * KV_TOKENS // (LENGTH + NEW)


async def measure() -> None:
    """Run and print."""
    backend = NativeBackend("native", {"threads": 1, "kv_tokens": KV_TOKENS, "heartbeat": 0.05})
    await backend.start()
    try:
        print("tokens      cache touched   resident")
        for number in range(ROUNDS + 1):
            if number % (ROUNDS // 12) == 0:
                await asyncio.sleep(0.2)  # the next report of the engine
                state = backend.engine_states["0"]
                assert state is not None
                tokens = number * (LENGTH + NEW)
                print(f"{tokens:7,}      {state.kv_touched:8.0%}    {state.resident_bytes / 2**20:8.1f} MiB")
            prompt = tuple(7 + (number * 7919 + place * 31 + place * place * number) % 200 for place in range(LENGTH))
            request = Generate(
                id="m",
                model="m",
                prompts=(TokensPrompt(prompt),),
                sampling=Sampling(temperature=0.0),
                stopping=Stopping(max_new_tokens=NEW, ignore_eos=True),
            )
            async for _ in backend.generate(request):
                pass
    finally:
        await backend.aclose()


if __name__ == "__main__":
    asyncio.run(measure())
