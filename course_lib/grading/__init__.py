"""Grades a class: collect → sanitize → execute → score → record → report, a room for each step.

``collect`` finds what was handed in, ``sanitize`` makes of it the cells that are run, ``execute`` runs them twice in
the ``sandbox``: once as the student sees them, once for the ``referee``, who holds the tests and asks the student's
functions from outside. ``score`` weighs both words, ``outbox`` and ``gradebook`` record, ``report`` and ``feedback``
tell. ``run`` puts the rooms in a row, ``workers`` go through them with one ``job`` each.

Inside the sandbox are ``zygote`` (which has imported torch and forks), ``namespaces`` (the walls of a child),
``kernel`` (cells) and ``answering`` (calls of the referee); ``line`` and ``wire`` are what the two sides speak.
"""
