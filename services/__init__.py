"""headrace: LLM serving through queues."""

__version__ = "0.1.0"
