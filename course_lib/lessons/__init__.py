"""What the lessons need of their own: one module for each, with the tests and hints of its tasks."""
