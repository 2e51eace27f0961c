"""AWS Lambda as a platform: a deployed function becomes a function there, and a batch one Invoke of it.

Read `platform` for what an instance is where instances cost nothing until they compute, `channel` for what becomes of a batch,
`functions` for how code gets there, and docs/decisions/0021-lambda.md for why.
"""
