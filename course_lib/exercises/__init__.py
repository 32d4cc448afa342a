"""What stands behind the graded exercises: their tests, which explain themselves, and the names of mistakes.

``judge`` compares what a student's function shows with what was promised, and says which known mistake it
looks like; ``precision``, ``checkpointing`` and ``accumulation`` hold each exercise's promises and mistakes.
Visible and hidden tests of a notebook call the same functions, with other models, sizes and seeds.
"""
