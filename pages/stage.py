"""Stage: a talk, scene by scene; and what the audience sees of it."""

from explorer.ui import audience, shell, stage

shell.guard()
if (code := audience.watched()) is not None:
    audience.watch(code)
elif (play := stage.asked()) is not None:
    stage.perform(play)
else:
    stage.prepare()
