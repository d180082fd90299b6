"""The command `gateway cluster`."""
