"""Engines on the nodes of a Ray cluster: placed, scaled and restarted there; tokens never pass through Ray.

`ray_cluster` alone imports ray. Each model has engines, each an actor that runs the engine's process (`engine_host`).
One actor, the placer, decides where and how many (`placer`). A process beside each gateway's workers (`__main__`) asks
it which engines there are, and writes them to a file that workers follow: they need no Ray, and its loss changes
nothing for them.
"""
