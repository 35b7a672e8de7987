"""The reference engine as a server that speaks OpenAI's HTTP API."""
