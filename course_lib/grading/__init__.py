"""Grades a folder of submissions: collect → sanitize → execute → score → record → report, a file for each step."""
