"""Files and batches over HTTP, and the background work that answers a batch's lines as live requests are answered."""
