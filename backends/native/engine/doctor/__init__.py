"""What the engine finds on a machine: `gateway doctor`."""
