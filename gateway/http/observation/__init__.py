"""What is known of a request's work beside its account: who listens to its backends, and its spans."""
