"""What is measured: a scenario is a row of the table and a function."""
