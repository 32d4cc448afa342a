"""The one error class for mistakes that a user can mend."""


class CourseError(ValueError):
    """What came, what was expected, and what to do, in one line.

    The command line prints the message and exits with status 2; in a notebook it is an ordinary
    exception. Anything else that is raised is a bug of ours.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
