"""The arithmetic of experiments: pure functions of counts and sums. They read no file and know no endpoint."""
