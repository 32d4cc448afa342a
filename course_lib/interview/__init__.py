"""The interview room: questions and answers, a drill that brings weak ones back, a mock interview, an Anki deck.

``questions.toml`` holds every question in both languages; its figures are expressions that
:mod:`course_lib.interview.figures` evaluates when an answer is shown.
"""
