"""What gateways share by a state server, and the files in which each has it."""
