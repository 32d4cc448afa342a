"""From one hand-written source to everything a reader opens.

``repository`` knows where things lie, ``sources`` reads and checks a unit, ``pairs`` compares its
two languages, ``editions`` makes notebooks of it, ``build`` writes them, ``run`` executes them.
Reading and writing notebooks is Jupytext's and nbformat's work, executing nbclient's, and clearing
solutions is done by nbgrader's own preprocessors.
"""
