"""The REST interface's shapes: views, summaries, answers, problems.

The gateway fills them and publishes their schemas in ``proto/openapi.json``; a client reads them. Each is stated here
once.
"""
