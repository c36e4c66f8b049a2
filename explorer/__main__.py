"""The command line: python -m explorer COMMAND. stdout holds the answer alone; progress and errors go to stderr."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import threading
from typing import NoReturn

from explorer import sweep, worker

COMMANDS = {  # name -> module; only the chosen one is imported, so that support answers without JAX
    "doctor": "explorer.cli.doctor",
    "run": "explorer.cli.run",
    "sweep": "explorer.cli.sweep",
    "support": "explorer.cli.support",
    "compare": "explorer.cli.compare",
    "rehearse": "explorer.cli.rehearse",
    "record": "explorer.cli.record",
}


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line on stderr and exit 2."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):  # none came, or one that looks like an option
            message += ": a value that begins with - is written with =, such as --values=-5,64"
        self.exit(2, f"{self.prog}: {message}\n")


def there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    names = [name for name, module in COMMANDS.items() if there(module)]
    name = argv[0] if argv else ""
    if name in ("-h", "--help"):
        print(f"usage: python -m explorer COMMAND [options]\ncommands: {', '.join(names)}\neach has its own --help")
        return 0
    if name not in names:
        print(
            f"python -m explorer: a command is needed, one of {', '.join(names)}, got {name or 'none'}", file=sys.stderr
        )
        return 2
    command = importlib.import_module(COMMANDS[name])
    parser = Parser(prog=f"python -m explorer {name}", description=command.HELP, allow_abbrev=False)
    command.add_arguments(parser)
    args = parser.parse_args(argv[1:])
    worker.set_environment()  # also the cache on disk: what one command compiled, the next one finds
    try:
        return command.main(args)
    except ValueError as error:
        print(f"python -m explorer {name}: {error}", file=sys.stderr)
        return 2
    except sweep.NotCompiled as error:
        print(f"python -m explorer {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def leave(code: int) -> NoReturn:
    """Exit; at once where a compiler is still at work: it can't be stopped, and Python would wait for its thread."""
    if any(thread.name.startswith(sweep.COMPILING) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    leave(main())
