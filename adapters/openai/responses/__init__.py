"""The Responses API: requests, answers and stored responses."""
