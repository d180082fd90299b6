"""The Responses API: request bodies decoded, answers encoded, stored responses."""
