"""The router: takes OpenAI requests, runs their prefill and decode legs on the engines, and roots their traces."""
