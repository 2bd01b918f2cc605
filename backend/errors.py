"""The two kinds of failure a person meets, each carrying one sentence."""


def first_line(error: BaseException) -> str:
    """The first line of what another library's error says, without its stop: part of a sentence of ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


class PivotscopeError(Exception):
    """A failure whose message is one sentence fit for a page or a terminal."""


class UserError(PivotscopeError):
    """The arguments or the input are wrong: the sentence names the file, line or field, and what would be right."""


class WorkFailed(PivotscopeError):
    """The work itself failed (a lost worker, a full disk, no memory): the sentence says what to do next."""


class OutOfMemory(WorkFailed):
    """One engine call needed more memory than there is; fewer requests at once may do."""


class CallFailed(WorkFailed):
    """One engine call failed, and the engine is still there; what the call was about may be to blame."""


class Cancelled(PivotscopeError):
    """The work was stopped because somebody asked for it; what was finished before stays."""
