"""Exercise 3, one large batch in small pieces: what ``train`` and ``same_curve`` promise, and how that is seen.

The names of mistakes are in :mod:`course_lib.exercises.accumulation_mistakes`.
"""
