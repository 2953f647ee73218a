"""The scenarios: each is a row of a table and a function."""
