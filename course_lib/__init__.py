"""Where GPU memory goes when a large model is trained: predict, measure, reconcile.

Three floors, imports only point down:

* lessons, command line, widgets, plots: what people touch
* :mod:`~course_lib.ledger` (predict), :mod:`~course_lib.dryrun` and :mod:`~course_lib.probe` (measure),
  :mod:`~course_lib.reconcile` (compare)
* the nouns: :class:`ModelShape`, :class:`Recipe`, :class:`Account`, :class:`Moment`, :class:`Trace`, units

The nouns and the ledger import without torch.
"""

__version__ = "0.1.0"
