"""Any endpoint of OpenAI's chat completions."""
