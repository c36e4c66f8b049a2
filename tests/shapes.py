"""The type checker of the tests: shapes and types of every call into explorer; an int may stand for a float."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
